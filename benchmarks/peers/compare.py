"""Our baselines beside the programs that they are named after: auto_LiRPA (IBP, CROWN) and DeepT (zonotopes).

    python benchmarks/peers/compare.py [--model zoo:digits] [--count 3] [--radius 1e-4,3e-4,1e-3] [--out rows.jsonl]

The lowest certified margin of every method on the same inputs and balls, clipped to [0, 1] (--unclipped: not), and the
seconds of processor time it took, on one thread in float64. `--model` is zoo:digits, a directory, or random:SxdxL: S
tokens, width d, L layers, weights of seed 0. DeepT has no causal mask and no GELU, so it cannot bound this network as a
whole: its operators are held against deepz's one by one, on the first attention block without its mask (deept.py).

What is not installed is skipped with one line. README.md says how to install it.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deept
import lirpa
import torch
from network import PlainNetwork, plain_network
from torch import Tensor
from transformers import GPT2Config
from transformers.utils import logging

import zonogpt

Row = dict[str, Any]


def loaded(name: str) -> zonogpt.GPT2ForImageClassification:
    if name.startswith("random:"):
        tokens, width, layers = map(int, name.removeprefix("random:").split("x"))
        torch.manual_seed(0)
        config = GPT2Config(n_embd=width, n_head=4, n_layer=layers, n_positions=tokens, vocab_size=1, num_labels=10,
                            bos_token_id=None, eos_token_id=None)  # fmt: skip
        config.image_size, config.patch_size = (28, 28), (28 // tokens, 28)
        return zonogpt.GPT2ForImageClassification(config).eval()
    path = zonogpt.zoo.path(name.removeprefix("zoo:")) if name.startswith("zoo:") else Path(name)
    return zonogpt.GPT2ForImageClassification.from_pretrained(path).eval()


def timed(work: Callable[[], float]) -> Row:
    """The margin (-inf if there is none), seconds of processor time, and what went wrong."""
    started = time.process_time()
    try:
        margin, note = work(), ""
    except (AssertionError, RuntimeError, ValueError, NotImplementedError) as error:
        margin, note = -math.inf, f"{type(error).__name__}: {error}".splitlines()[0]
    seconds = round(time.process_time() - started, 2)
    return {"margin": -math.inf if math.isnan(margin) else margin, "seconds": seconds, "note": note}


def margins(model: zonogpt.Model, plain: PlainNetwork, images: Tensor, args: argparse.Namespace) -> Iterator[Row]:
    """Of whole networks: a row for each input, radius and method."""

    def ours(spec: zonogpt.Spec, method: str) -> float:
        result = zonogpt.verify(model, spec, method=method, device="cpu", dtype="float64")
        return float(result.margins.min())

    def theirs(spec: zonogpt.Spec, method: str) -> float:
        lower, upper = (plain.patches(end) for end in (spec.input.lower, spec.input.upper))
        rows = spec.claim.margins(torch.eye(model.n_outputs, dtype=torch.float64)).T
        return lirpa.lowest(plain, lower, upper, rows, method)

    jobs = [("zonogpt", method, ours) for method in args.ours]
    jobs += [] if lirpa.missing() else [("auto_LiRPA", method, theirs) for method in args.theirs]
    for index, image in enumerate(images):
        for radius in args.radius:
            clip = (-math.inf, math.inf) if args.unclipped else (0.0, 1.0)
            spec = zonogpt.image_ball(model, image, radius, clip=clip)
            for tool, method, bound in jobs:
                named = {"tool": tool, "method": method, "input": index, "radius": radius}
                yield named | timed(lambda bound=bound, spec=spec, method=method: bound(spec, method))


def version() -> str:
    """Ours, with the commit where this is a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return f"zonogpt {zonogpt.__version__}" + (f" (commit {commit})" if commit else "")


def table(rows: list[Row], args: argparse.Namespace) -> str:
    """A line for each method: of every radius the mean of the lowest margins, at last the mean seconds."""
    lines = [f"{'':24s}" + "".join(f"{radius:>14g}" for radius in args.radius) + f"{'seconds':>12s}"]
    for tool, method in dict.fromkeys((row["tool"], row["method"]) for row in rows):
        of = [row for row in rows if (row["tool"], row["method"]) == (tool, method)]
        means = [_mean([row["margin"] for row in of if row["radius"] == radius]) for radius in args.radius]
        seconds = _mean([row["seconds"] for row in of])
        lines.append(f"{tool + ' ' + method:24s}" + "".join(f"{mean:14.6g}" for mean in means) + f"{seconds:12.2f}")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def write(rows: list[Row], out: Path) -> None:
    """JSON lines, or a table for an ending of .csv."""
    with out.open("w", newline="") as file:
        if out.suffix == ".csv":
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:digits")
    parser.add_argument("--count", type=int, default=3, help="inputs: the first of the bundled digits")
    parser.add_argument("--radius", default="1e-4,3e-4,1e-3", type=lambda s: [float(r) for r in s.split(",")])
    parser.add_argument("--ours", default="ibp,deepz,crown,E", type=_names)
    parser.add_argument("--theirs", default=",".join(lirpa.METHODS), type=_names, help="methods of auto_LiRPA")
    parser.add_argument("--deept", type=Path, default=None, help="a checkout of github.com/eth-sri/DeepT")
    parser.add_argument("--unclipped", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="rows as JSON lines, or .csv")
    args = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    net, (images, _) = loaded(args.model), zonogpt.zoo.samples("digits")
    model, plain = zonogpt.load(net), plain_network(net, images)
    print(f"{version()}, torch {torch.__version__}, {args.model}")
    for peer, reason in (("auto_LiRPA", lirpa.missing()), ("DeepT", deept.missing(args.deept))):
        there = lirpa.version if peer == "auto_LiRPA" else lambda: deept.version(args.deept)
        print(there() if reason is None else f"{peer} is skipped: {reason}")
    rows = []
    for row in margins(model, plain, images[: args.count], args):
        rows.append(row)
        if args.out is not None:
            write(rows, args.out)
    print("\nlowest certified margins, means over the inputs\n" + table(rows, args))
    if deept.missing(args.deept) is None:
        print("\nmean half-width behind each operator of the first attention block")
        for radius in args.radius:
            spec = zonogpt.image_ball(model, images[0], radius)
            for operator, whose, width in deept.widths(args.deept, model, spec):
                print(f"{radius:8g} {operator:10s} {whose:14s} {width:.6e}", flush=True)


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
