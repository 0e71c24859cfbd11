"""Intervals, entry by entry, and what linear maps and products do to them, rounded outward."""

from __future__ import annotations

import math
from collections.abc import Callable
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

    def arranged(self, there: Callable[[Tensor], Tensor]) -> Interval:
        """The same entries in another order or shape: their ends are looked at already."""
        out = object.__new__(Interval)
        object.__setattr__(out, "lower", there(self.lower))
        object.__setattr__(out, "upper", there(self.upper))
        return out

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
        ends = torch.stack([self.lower, self.upper])
        says_nothing = ends.isinf()
        some = bool(says_nothing.any())
        ends = ends.masked_fill(says_nothing, 0.0) if some else ends  # 0 times an infinite end is 0
        rows = torch.cat([ends, ends.abs().amax(0, keepdim=True)])
        rising, falling = rows @ positive, rows @ negative
        lower, upper = rising[0] + falling[1], rising[1] + falling[0]
        size = rising[2] - falling[2] if weight_size is None else rows[2] @ weight_size
        if some:
            opened = says_nothing.to(weight)
            up_opened, down_opened = opened @ (positive > 0).to(weight), opened @ (negative < 0).to(weight)
            lower = lower.masked_fill(up_opened[0] + down_opened[1] > 0, -math.inf)
            upper = upper.masked_fill(up_opened[1] + down_opened[0] > 0, math.inf)
        below = size
        # Of a sum of squares or of exponentials nothing cancels, and its upper end may be far away.
        if weight.shape[1] == 1 and weight_size is None and bool((self.lower >= 0).all() & (weight >= 0).all()):
            below = lower.clamp(min=0)
        if bias is not None:
            bias_size = bias.abs() if bias_size is None else bias_size
            lower, upper, size, below = lower + bias, upper + bias, size + bias_size, below + bias_size
        below, above = (up(gamma(2 * k + 8, x.dtype) * x, k) for x in (below, size))
        return Interval(lower - below, upper + above)

    def plus(self, other: Interval) -> Interval:
        lower, upper = self.lower + other.lower, self.upper + other.upper
        unit = gamma(2, lower.dtype)
        return Interval(lower - up(unit * lower.abs()), upper + up(unit * upper.abs()))

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
        k = self.lower.shape[-1]
        # NaN and infinity make ends that say nothing, however far they are widened.
        by = up(gamma(k + 2, low.dtype) * torch.maximum(-low, high).sum(-2), k)  # |x y| is the larger of the two
        return Interval(low.sum(-2) - by, high.sum(-2) + by)

    def meet(self, other: Interval) -> Interval:
        """Where x lies if it lies in both. Ends that rounding has crossed are swapped: x is somewhere between them."""
        low, high = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)
        return Interval(torch.minimum(low, high), torch.maximum(low, high))
