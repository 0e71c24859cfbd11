"""What bounding the rounding costs: this version and one from before it, in turn, on the same verifications.

    git worktree add ../before 1c6d612     # the last commit that only estimated rounding
    python benchmarks/rounding_cost.py --before ../before/src [--device cpu] [--methods E,A,F,M,D,ibp] [--repeat 5]
        [--width 768 --blocks 4 [--texts 5]]

On the bundled model (20 digits at radius 2e-3; three for the methods that take one at a time), or, with --width, on a
randomly initialised model of that width: one image of 28 tokens at radius 1e-5, or, with --texts, one text of 20 tokens
of which the tenth moves, at so many radii. Two processes that take turns; of each the least of its times counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path


def worker(args: argparse.Namespace) -> None:
    """Answers every line on stdin with the seconds of one run and its lowest margin."""
    import torch
    from transformers import GPT2Config, GPT2ForSequenceClassification

    import zonogpt

    images, labels = zonogpt.zoo.samples("digits")
    if args.width is None:
        model, count = zonogpt.load(zonogpt.zoo.path("digits")), 20 if args.method in ("E", "ibp") else 3
        specs = [zonogpt.image_ball(model, images[i], 2e-3, label=int(labels[i])) for i in range(count)]
    elif args.texts:
        torch.manual_seed(0)
        config = GPT2Config(n_embd=args.width, n_head=args.width // 64, n_layer=args.blocks // 2, n_positions=64,
                            vocab_size=100, num_labels=2, pad_token_id=0)  # fmt: skip
        model = zonogpt.load(GPT2ForSequenceClassification(config).eval())
        radii = [1e-5 * (k + 1) for k in range(args.texts)]
        specs = [zonogpt.embedding_ball(model, list(range(1, 21)), [9], radius) for radius in radii]
    else:
        torch.manual_seed(0)
        config = GPT2Config(n_embd=args.width, n_head=args.width // 64, n_layer=args.blocks // 2, n_positions=28,
                            vocab_size=1, num_labels=10, bos_token_id=None, eos_token_id=None)  # fmt: skip
        config.image_size, config.patch_size = (28, 28), (1, 28)
        model = zonogpt.load(zonogpt.GPT2ForImageClassification(config).eval())
        specs = [zonogpt.image_ball(model, images[0], 1e-5)]
    for _ in sys.stdin:
        started = time.perf_counter()
        results = zonogpt.verify_many(model, specs, method=args.method, device=args.device)
        seconds = time.perf_counter() - started
        print(json.dumps([seconds, min(float(result.margins.min()) for result in results)]), flush=True)


def start(args: argparse.Namespace, source: Path, method: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", "--method", method, "--device", args.device]
    if args.width is not None:
        command += ["--width", str(args.width), "--blocks", str(args.blocks), "--texts", str(args.texts)]
    environment = os.environ | {"PYTHONPATH": str(source.resolve())}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str]) -> tuple[float, float]:
    inp, out = process.stdin, process.stdout
    assert inp is not None
    assert out is not None
    inp.write("\n")
    inp.flush()
    seconds, margin = json.loads(out.readline())
    return seconds, margin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default="E,A,F,M,D,ibp")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--texts", type=int, default=0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    if args.before is None:
        parser.error("--before is needed: the src directory of a checkout from before rounding was bounded")
    here = Path(__file__).parent.parent / "src"
    what = f"width {args.width}, {args.blocks} blocks" if args.width else "bundled model"
    what += f", a text at {args.texts} radii" if args.texts else ""
    print(f"{what}, {args.device}, least of {args.repeat}")
    for method in args.methods.split(","):
        sides = {"before": start(args, args.before, method), "after": start(args, here, method)}
        for process in sides.values():
            ask(process)  # warm up
        seen = {name: [] for name in sides}
        for _ in range(args.repeat):
            for name, process in sides.items():
                seen[name].append(ask(process))
        for process in sides.values():
            process.kill()
        (before, margin_before), (after, margin_after) = (min(seen[name]) for name in ("before", "after"))
        print(
            f"{method:>4}: before {before:.3f} s, after {after:.3f} s, ratio {after / before:.3f};"
            f" lowest margin {margin_before:.9g} and {margin_after:.9g}",
            flush=True,
        )


if __name__ == "__main__":
    main()
