"""How much radius each method certifies on the bundled model, against what an attack breaks.

    python benchmarks/tightness.py [--digits 20] [--methods E,A,A-literal,F,M,D] [--out rows.jsonl]

For every digit the largest radius that a method certifies for all nine rivals and the smallest at which projected
gradient descent changes the answer, each by bisection to 1 %. Geometric means over the digits, and over the same digits
how much more E certifies than each method. Minutes on two cores, most of them for the paper's methods.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zonogpt
from zonogpt.search.descent import attack
from zonogpt.spec.spec import Spec

START, TOLERANCE, SMALLEST = 1e-3, 1.01, 1e-7
Holds = Callable[[Sequence[Spec]], list[bool]]


def threshold(specs: Sequence[Spec], holds: Holds) -> list[float]:
    """For each spec the largest radius at which `holds` was seen, within TOLERANCE of one at which it was not."""
    low, high, radius = [0.0] * len(specs), [math.inf] * len(specs), [START] * len(specs)
    while True:
        todo = [i for i in range(len(specs)) if high[i] > TOLERANCE * low[i] and high[i] > SMALLEST]
        if not todo:
            return low
        for i, held in zip(todo, holds([specs[i].shrunk(radius[i]) for i in todo]), strict=True):
            if held:
                low[i] = radius[i]
            else:
                high[i] = radius[i]
            if math.isinf(high[i]):
                radius[i] = 2 * low[i]
            elif low[i] == 0:
                radius[i] = high[i] / 2
            else:
                radius[i] = math.sqrt(low[i] * high[i])


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=20)
    parser.add_argument("--methods", default="E,A,A-literal,F,M,D")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    model = zonogpt.load(zonogpt.zoo.path("digits"))
    images, labels = zonogpt.zoo.samples("digits")
    chosen = list(zip(images, labels.tolist(), strict=True))[: args.digits]
    specs = [zonogpt.image_ball(model, image, 1.0, label=label) for image, label in chosen]

    def certified(method: str) -> Holds:
        return lambda some: [r.status == "verified" for r in zonogpt.verify_many(model, some, method=method)]

    def survives(some: Sequence[Spec]) -> list[bool]:
        return [not attack(model, spec, restarts=4, steps=40).broken for spec in some]

    searches = {method: certified(method) for method in args.methods.split(",")} | {"attack": survives}
    found: dict[str, list[float]] = {}
    for name, holds in searches.items():
        started = time.perf_counter()
        found[name] = threshold(specs, holds)
        print(f"{name:10s} {geometric_mean(found[name]):.3e}   ({time.perf_counter() - started:.0f} s)", flush=True)
    for name, radii in found.items():
        if name != "E" and min(radii) > 0:
            ratios = [mine / other for mine, other in zip(found["E"], radii, strict=True)]
            print(f"E / {name:10s} {geometric_mean(ratios):6.3f}   from {min(ratios):.3f} to {max(ratios):.3f}")
    if args.out is not None:
        args.out.write_text(
            "".join(json.dumps({"method": name, "radii": radii}) + "\n" for name, radii in found.items())
        )


if __name__ == "__main__":
    main()
