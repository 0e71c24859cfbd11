"""The demonstration: the bundled digits, several radii, method E and the paper's variants. Data only, no drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.model import zoo
from zonogpt.model.hf import load
from zonogpt.spec.spec import image_ball
from zonogpt.verification.api import verify
from zonogpt.verification.result import Result

METHODS = ("E", "A", "F", "D", "M", "A-literal")
RADII = (1e-4, 3e-4, 1e-3, 2e-3, 4e-3)


@dataclass(frozen=True)
class Study:
    images: Tensor  # (n, 28, 28)
    labels: Tensor  # (n,)
    results: dict[tuple[str, float, int], Result]  # (method, radius, digit); absent where a smaller radius failed

    def proved(self, method: str, radius: float) -> int:
        return sum(self.verified(method, radius, digit) for digit in range(len(self.labels)))

    def verified(self, method: str, radius: float, digit: int) -> bool:
        result = self.results.get((method, radius, digit))
        return result is not None and result.status == "verified"

    def largest_radius(self, method: str, digit: int) -> float:
        return max((r for r in RADII if self.verified(method, r, digit)), default=0.0)

    def median_margin(self, method: str, radius: float) -> float:
        """Median over all digits of the smallest certified margin; -inf where a digit was given up."""
        margins = [self.results.get((method, radius, digit)) for digit in range(len(self.labels))]
        values = [float(r.margins.min()) if r is not None else -torch.inf for r in margins]
        return float(torch.tensor(values).median())

    def seconds(self, method: str) -> float:
        """Mean seconds per run."""
        times = [r.seconds for (m, _, _), r in self.results.items() if m == method]
        return sum(times) / len(times)


def run_study(on_digit: Callable[[str, int], None]) -> Study:
    """Each method climbs the radii digit by digit and stops at the first it cannot prove: bounds only grow.

    `on_digit` is told what comes next and how many steps there are in all.
    """
    model = load(zoo.path("digits"))
    images, labels = zoo.samples("digits")
    results: dict[tuple[str, float, int], Result] = {}
    for method in METHODS:
        for digit in range(len(labels)):
            on_digit(f"{method}, digit {digit + 1} of {len(labels)}", len(METHODS) * len(labels))
            for radius in RADII:
                result = verify(
                    model, image_ball(model, images[digit], radius, int(labels[digit])), method=method, hint=False
                )
                results[method, radius, digit] = result
                if result.status != "verified":
                    break
    return Study(images, labels, results)
