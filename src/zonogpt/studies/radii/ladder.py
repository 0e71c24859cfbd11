"""The radii that a search may try: a ladder from low to high, searched by halving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zonogpt.errors import OptionError


@dataclass(frozen=True)
class Ladder:
    steps: tuple[float, ...]  # increasing
    wanted: frozenset[int]  # indices of the steps that are asked for (the grid): these are tried first

    @staticmethod
    def build(low: float, high: float, tolerance: float, grid: Sequence[float] = ()) -> Ladder:
        """Steps from low to high, with the grid among them.

        The steps in between have a ratio of at most 1 + tolerance before they are rounded to three digits, so that what
        is printed is what was tried.
        """
        if not 0 < low < high < math.inf:
            raise OptionError(f"radii are searched between two positive numbers, low below high; got {low!r}, {high!r}")
        if not 1e-3 <= tolerance <= 10:
            raise OptionError(f"the tolerance must lie in 0.001..10; got {tolerance!r}")
        for radius in grid:
            if not low <= radius <= high:
                raise OptionError(f"radius {radius:g} lies outside of {low:g}..{high:g}, where radii are searched")
        count = math.ceil(math.log(high / low) / math.log1p(tolerance))
        between = (float(f"{low * (high / low) ** (k / count):.3g}") for k in range(1, count))
        steps = sorted({low, high, *map(float, grid), *(step for step in between if low < step < high)})
        return Ladder(tuple(steps), frozenset(steps.index(radius) for radius in map(float, grid)))

    def between(self, good: int, bad: int) -> int | None:
        """The step to try next, strictly between: the most central wanted one, else the middle; None: no more."""
        if bad - good < 2:
            return None
        middle = (good + bad) // 2
        inside = [i for i in self.wanted if good < i < bad]
        return min(inside, key=lambda i: (abs(i - middle), i), default=middle)
