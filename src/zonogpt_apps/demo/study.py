"""The demonstration: the bundled digits, several radii, method E and the paper's variants. Data only, no drawing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from zonogpt.model import zoo
from zonogpt.model.hf import load
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec, image_ball
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.studies.radii.search import SpecAt, largest_proved
from zonogpt.verification.api import verify
from zonogpt.verification.result import Result

METHODS = ("E", "A", "F", "D", "M", "A-literal")
RADII = (1e-4, 3e-4, 1e-3, 2e-3, 4e-3)
SEARCHED = "E"  # the method whose largest radius is searched for, between the table's radii
TOLERANCE = 0.02
LADDER = Ladder.build(1e-5, 0.5, TOLERANCE)  # that of `zonogpt radius`
HIGH = 2e-2  # where the search ends
STEPS = len(METHODS) + 1  # of each digit: the methods, and the search


@dataclass(frozen=True)
class Study:
    images: Tensor  # (n, 28, 28)
    labels: Tensor  # (n,)
    results: dict[tuple[str, float, int], Result]  # (method, radius, digit); absent where a smaller radius failed
    clean: tuple[float, ...]  # margin of each digit as it is, to its nearest rival
    largest: tuple[float, ...]  # radius of each digit that SEARCHED proves, by bisection; 0: none

    def proved(self, method: str, radius: float) -> int:
        return sum(self.verified(method, radius, digit) for digit in range(len(self.labels)))

    def verified(self, method: str, radius: float, digit: int) -> bool:
        result = self.results.get((method, radius, digit))
        return result is not None and result.status == "verified"

    def bracket(self, digit: int) -> tuple[float, float]:
        """The largest radius of the table that SEARCHED proves, and the next one or HIGH; its own is between."""
        good = max((radius for radius in RADII if self.verified(SEARCHED, radius, digit)), default=0.0)
        return good, min((radius for radius in RADII if radius > good), default=HIGH)

    def median_loss(self, method: str, radius: float) -> float:
        """Median over all digits of what the bounds take from the margin; inf where a digit was given up."""
        losses = []
        for digit, clean in enumerate(self.clean):
            result = self.results.get((method, radius, digit))
            losses.append(math.inf if result is None else clean - float(result.margins.min()))
        return float(torch.tensor(losses).median())

    def seconds(self, method: str) -> float:
        """Mean seconds per run."""
        times = [r.seconds for (m, _, _), r in self.results.items() if m == method]
        return sum(times) / len(times)


def run_study(on_digit: Callable[[str, int], None]) -> Study:
    """Runs each method on each digit, radius by radius up to the first that it cannot prove: bounds only grow.

    `on_digit` is told the next step and the number of steps in all.
    """
    model = load(zoo.path("digits"))
    images, labels = zoo.samples("digits")
    n = len(labels)

    def spec(digit: int, radius: float) -> Spec:
        return image_ball(model, images[digit], radius, int(labels[digit]))

    results: dict[tuple[str, float, int], Result] = {}
    for method in METHODS:
        for digit in range(n):
            on_digit(f"{method}, digit {digit + 1} of {n}", STEPS * n)
            for radius in RADII:
                result = verify(model, spec(digit, radius), method=method, hint=False)
                results[method, radius, digit] = result
                if result.status != "verified":
                    break
    study = Study(images, labels, results, tuple(clean_margin(model, spec(digit, 0.0)) for digit in range(n)), ())
    largest = []
    for digit in range(n):
        on_digit(f"radius of digit {digit + 1} of {n}", STEPS * n)
        largest.append(search(model, partial(spec, digit), *study.bracket(digit)))
    return replace(study, largest=tuple(largest))


def search(model: Model, spec_at: SpecAt, good: float, bad: float) -> float:
    """The largest radius of the ladder that SEARCHED proves, if `good` (0: nothing) is proved and `bad` is not."""
    ladder = Ladder(tuple(step for step in LADDER.steps if good < step < bad), frozenset())

    def prove(spec: Spec, deadline: float) -> Result:
        return verify(model, spec, method=SEARCHED, hint=False)

    return max(good, largest_proved(ladder, spec_at, prove, math.inf, lambda trial: None).radius)


def clean_margin(model: Model, spec: Spec) -> float:
    """The lead over the nearest rival, of the input as it is."""
    exact = model.converted(model.device, torch.float64)
    return float(spec.claim.margins(exact.forward(spec.input.embed(spec.input.anchor))).min())
