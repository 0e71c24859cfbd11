"""Intervals, entry by entry, and what linear maps and products do to them, rounded outward."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.rounding import gamma, up


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

    @property
    def size(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def widened(self, by: Tensor) -> Interval:
        """`by` >= 0 on either side; a tiny number more, for what may have underflowed."""
        by = up(by)
        return Interval(self.lower - by, self.upper + by)

    def dense(
        self, weight: Tensor, bias: Tensor | None, weight_size: Tensor | None = None, bias_size: Tensor | None = None
    ) -> Interval:
        """The smallest interval around x @ weight + bias, rounded outward. By ends, not by middle and radius: a sum of
        positive lower ends must not round to zero.

        Weight and bias may have been computed, in no more operations than x is long and eight, relative to the sizes
        given for them (their own, if none is given).
        """
        k = weight.shape[0]
        positive, negative = weight.clamp(min=0), weight.clamp(max=0)
        lower = _least_sum(self.lower, self.upper, positive, negative)
        upper = -_least_sum(-self.upper, -self.lower, positive, negative)
        size = self.finite_size @ (weight.abs() if weight_size is None else weight_size)
        below = size
        if weight_size is None and bool((self.lower >= 0).all() & (weight >= 0).all()):
            below = lower.clamp(min=0)  # nothing cancels, and the upper end may be far away
        if bias is not None:
            bias_size = bias.abs() if bias_size is None else bias_size
            lower, upper, size, below = lower + bias, upper + bias, size + bias_size, below + bias_size
        below, above = (up(gamma(2 * k + 8, x.dtype) * x, k) for x in (below, size))
        return Interval(lower - below, upper + above)

    def plus(self, other: Interval) -> Interval:
        total = Interval(self.lower + other.lower, self.upper + other.upper)
        return total.widened(gamma(2, total.lower.dtype) * total.finite_size)

    @property
    def finite_size(self) -> Tensor:
        return self.size.masked_fill(self.size.isinf(), 0.0)

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
        size = (
            torch.maximum(low.abs(), high.abs()).nan_to_num(nan=0.0, posinf=0.0).sum(-2)
        )  # NaN, inf: say nothing anyway
        k = self.lower.shape[-1]
        return Interval(low.sum(-2), high.sum(-2)).widened(up(gamma(k + 2, size.dtype) * size, k))

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
