"""How E, crown, covenn and deepz grow with tokens S, width d and layers L: seconds, peak memory, certified margin.

    python benchmarks/crown_scaling.py [--timeout 300] [--methods E,crown,covenn,deepz] [--device cpu] [--d 64,256]

Randomly initialised image models (28 x 28 pixels in S patches of whole rows), radius 1e-4, nine rivals. One of S, d, L
at a time is varied around S = 7, d = 64, L = 2. One process per run, so that each peak is its own.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Sequence

import torch
from transformers import GPT2Config

import zonogpt

BASE = {"S": 7, "d": 64, "L": 2}
SWEEPS = {"S": (4, 7, 14, 28), "d": (16, 32, 64, 128), "L": (1, 2, 4, 8)}
RADIUS = 1e-4


def measure(sizes: dict[str, int], method: str, timeout: float, device: str, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    torch.manual_seed(0)
    config = GPT2Config(n_embd=sizes["d"], n_head=4, n_layer=sizes["L"], n_positions=sizes["S"], vocab_size=1,
                        num_labels=10, bos_token_id=None, eos_token_id=None)  # fmt: skip
    config.image_size, config.patch_size = (28, 28), (28 // sizes["S"], 28)
    model = zonogpt.load(zonogpt.GPT2ForImageClassification(config).eval())
    images, _ = zonogpt.zoo.samples("digits")
    spec = zonogpt.image_ball(model, images[0], RADIUS)
    zonogpt.verify(model, spec, method="E", device=device, hint=False)  # whatever a first call sets up
    before = zonogpt.verify(model, spec.shrunk(0.0), method="ibp", device=device).peak_bytes
    result = zonogpt.verify(model, spec, method=method, timeout=timeout, device=device, hint=False)
    predicted = zonogpt.inspect(model).plans[method].peak_bytes
    queue.put({**sizes, "method": method, "status": result.status, "margin": float(result.margins.min()),
               "seconds": round(result.seconds, 3), "added_mib": round((result.peak_bytes - before) / 2**20),
               "predicted_mib": round(predicted / 2**20), "reason": result.reason})  # fmt: skip


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of a line through the logarithms, by least squares."""
    u, v = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mu, mv = sum(u) / len(u), sum(v) / len(v)
    return sum((a - mu) * (b - mv) for a, b in zip(u, v, strict=True)) / sum((a - mu) ** 2 for a in u)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--methods", default="E,crown,covenn,deepz")
    parser.add_argument("--device", default="cpu")
    for name, values in SWEEPS.items():
        parser.add_argument(f"--{name}", default=",".join(map(str, values)), help="values to try; empty: none")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for name in SWEEPS:
        values = [int(value) for value in getattr(args, name).split(",") if value]
        for method in args.methods.split(","):
            rows = []
            for value in values:
                queue = context.Queue()
                process = context.Process(
                    target=measure, args=(BASE | {name: value}, method, args.timeout, args.device, queue)
                )
                process.start()
                rows.append(queue.get())
                process.join()
                print(json.dumps(rows[-1]), flush=True)
            done = [row for row in rows if row["status"] in ("verified", "unknown") and "memory" not in row["reason"]]
            if len(done) > 2:
                grown = exponent([row[name] for row in done[1:]], [row["seconds"] for row in done[1:]])
                print(f"{method}: seconds grow like {name}^{grown:.2f}", flush=True)


if __name__ == "__main__":
    main()
