"""Whether two versions of the source take the same time: medians of interleaved runs.

    python tools/same_speed.py --before BEFORE/src [--after src] [--device cpu] [--repeat 5] [--cases growth,width,text]
        [--trained MODELS --instances INSTANCES]

Cases: `growth`, images of 28 tokens by method E at widths 64 to 256 (as benchmarks/growth.py); `width`, methods E, A,
F, M, D at GPT-2 Small's width (as benchmarks/gpt2_width.py); `text`, one text of 20 tokens at width 768; `sst`, the
SST-2 instances of benchmark model sst-small-2. Each version is one process, and the two take turns; the first run of
each does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROWTH = [(64, 2), (64, 8), (128, 4), (256, 2), (256, 4)]  # width, layers
METHODS = "EAFMD"


def names(case: str) -> list[str]:
    match case:
        case "growth":
            return [f"growth {width}x{depth}" for width, depth in GROWTH]
        case "width":
            return [f"width {method}" for method in METHODS]
    return [case]


def prepared(name: str, args: argparse.Namespace) -> Callable[[], Any]:
    """What is to be timed."""
    import zonogpt

    kind, _, rest = name.partition(" ")
    if kind == "growth":
        width, depth = map(int, rest.split("x"))
        model, spec = image(width, depth, heads=max(2, width // 64))
        return lambda: zonogpt.verify_many(model, [spec], device=args.device)
    if kind == "width":
        model, spec = image(768, 2, heads=12)
        return lambda: zonogpt.verify_many(model, [spec], method=rest, device=args.device)
    if kind == "text":
        model, specs = text()
        return lambda: zonogpt.verify_many(model, specs, device=args.device)
    model, specs = benchmark_texts(args.trained, args.instances)
    return lambda: zonogpt.verify_many(model, specs, device=args.device)


def image(width: int, depth: int, heads: int) -> tuple[Any, Any]:
    import torch
    from transformers import GPT2Config

    import zonogpt

    torch.manual_seed(0)
    config = GPT2Config(n_embd=width, n_head=heads, n_layer=depth, n_positions=28, vocab_size=1, num_labels=10,
                        bos_token_id=None, eos_token_id=None)  # fmt: skip
    config.image_size, config.patch_size = (28, 28), (1, 28)
    model = zonogpt.load(zonogpt.GPT2ForImageClassification(config).eval())
    return model, zonogpt.image_ball(model, torch.rand(28, 28), 1e-5)


def text() -> tuple[Any, list[Any]]:
    import torch
    from transformers import GPT2Config, GPT2ForSequenceClassification

    import zonogpt

    torch.manual_seed(0)
    config = GPT2Config(n_embd=768, n_head=12, n_layer=2, n_positions=64, vocab_size=100, num_labels=2, pad_token_id=0)
    model = zonogpt.load(GPT2ForSequenceClassification(config).eval())
    return model, [zonogpt.embedding_ball(model, list(range(1, 21)), [9], radius) for radius in (1e-5, 1e-4)]


def benchmark_texts(trained: Path, instances: Path) -> tuple[Any, list[Any]]:
    import zonogpt

    rows = [json.loads(line) for line in (instances / "instances.jsonl").read_text().splitlines()]
    rows = [row for row in rows if (row["task"], row["size"], row["blocks"]) == ("sst", "small", 2)]
    model = zonogpt.load(trained / "sst-small-2")
    inputs = {row["input"]: json.loads((instances / row["input"]).read_text())["ids"] for row in rows}
    return model, [
        zonogpt.embedding_ball(model, inputs[row["input"]], row["positions"], row["radius"], row["label"])
        for row in rows
    ]


def worker(args: argparse.Namespace) -> None:
    """Answers every line on stdin with the seconds of one run."""
    act = prepared(args.worker, args)
    for _ in sys.stdin:
        started = time.perf_counter()
        act()
        print(time.perf_counter() - started, flush=True)


def start(source: Path, name: str, args: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", name, "--device", args.device, "--before", str(args.before)]
    if args.trained:
        command += ["--trained", str(args.trained), "--instances", str(args.instances)]
    environment = os.environ | {"PYTHONPATH": str(source.resolve())}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str]) -> float:
    inp, out = process.stdin, process.stdout
    assert inp is not None
    assert out is not None
    inp.write("\n")
    inp.flush()
    return float(out.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, default=Path(__file__).parent.parent / "src")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cases", default="growth,width,text")
    parser.add_argument("--trained", type=Path)
    parser.add_argument("--instances", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    for name in (name for case in args.cases.split(",") for name in names(case)):
        sides = {"before": start(args.before, name, args), "after": start(args.after, name, args)}
        for process in sides.values():
            ask(process)  # warm up
        seen: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(args.repeat):
            for side, process in sides.items():
                seen[side].append(ask(process))
        for process in sides.values():
            process.kill()
        before, after = (statistics.median(seen[side]) for side in ("before", "after"))
        print(f"{name:>14}: before {before:.3f} s, after {after:.3f} s, ratio {after / before:.3f}", flush=True)


if __name__ == "__main__":
    main()
