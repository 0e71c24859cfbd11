"""Intervals, entry by entry, and what linear maps and products do to them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    """lower <= x <= upper. Ends are finite or say nothing: -inf below, +inf above.

    Overflow and NaN make ends that say nothing, wherever they arise: a sum of which a part overflowed may be any
    number, so +inf is no lower bound either.
    """

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", torch.where(self.lower < math.inf, self.lower, -math.inf))
        object.__setattr__(self, "upper", torch.where(self.upper > -math.inf, self.upper, math.inf))

    @property
    def centre(self) -> Tensor:
        """Finite where both ends are; NaN or infinite elsewhere."""
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> Tensor:
        """The distance from `centre`, as rounded, to the farther end."""
        return torch.maximum(self.upper - self.centre, self.centre - self.lower)

    def dense(self, weight: Tensor, bias: Tensor | None) -> Interval:
        """The smallest interval around x @ weight + bias. By ends, not by middle and radius: a sum of positive lower
        ends must not round to zero."""
        up, down = weight.clamp(min=0), weight.clamp(max=0)
        lower = _least_sum(self.lower, self.upper, up, down)
        upper = -_least_sum(-self.upper, -self.lower, up, down)
        return Interval(lower, upper) if bias is None else Interval(lower + bias, upper + bias)

    def plus(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)

    def matmul(self, other: Interval) -> Interval:
        """The smallest interval around x @ y for independent entries. Memory: rows times inner length times columns."""
        ends = [
            x[..., :, :, None] * y[..., None, :, :]
            for x in (self.lower, self.upper)
            for y in (other.lower, other.upper)
        ]  # (..., rows, inner, columns) each
        low, high = ends[0], ends[0]
        for end in ends[1:]:
            low, high = torch.minimum(low, end), torch.maximum(high, end)
        return Interval(low.sum(-2), high.sum(-2))

    def meet(self, other: Interval) -> Interval:
        """Where x lies if it lies in both. Ends that rounding has crossed are swapped: x is somewhere between them."""
        low, high = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)
        return Interval(torch.minimum(low, high), torch.maximum(low, high))


def _least_sum(lower: Tensor, upper: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """lower @ up + upper @ down for up >= 0 >= down, where 0 times an infinite end is 0."""
    low_open, high_open = lower.isinf(), upper.isinf()
    total = lower.masked_fill(low_open, 0.0) @ up + upper.masked_fill(high_open, 0.0) @ down
    if not bool(low_open.any() | high_open.any()):
        return total
    open_terms = low_open.to(up) @ (up > 0).to(up) + high_open.to(up) @ (down < 0).to(up)
    return total.masked_fill(open_terms > 0, -math.inf)
