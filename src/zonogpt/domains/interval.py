"""Intervals, entry by entry, and their images under linear maps and products, rounded outward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.rounding import gamma, part, up


@dataclass(frozen=True)
class Interval:
    """lower <= x <= upper. An end is finite, or it says nothing: -inf below, +inf above.

    An end that overflowed or became NaN is replaced by the one that says nothing: where a part of a sum overflowed, the
    sum may be any number, so +inf is no lower bound either.
    """

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", self.lower.nan_to_num(-math.inf, -math.inf, -math.inf))
        object.__setattr__(self, "upper", self.upper.nan_to_num(math.inf, math.inf, math.inf))

    def arranged(self, there: Callable[[Tensor], Tensor]) -> Interval:
        """The same entries in another order or shape."""
        return Interval.known(there(self.lower), there(self.upper))

    @staticmethod
    def known(lower: Tensor, upper: Tensor) -> Interval:
        """An interval whose ends need no check: neither is NaN, nor infinite on the wrong side."""
        out = object.__new__(Interval)
        object.__setattr__(out, "lower", lower)
        object.__setattr__(out, "upper", upper)
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
        """The interval with `by` >= 0 added on either side, and a tiny number for what may have underflowed."""
        by = up(by)
        return Interval(self.lower - by, self.upper + by)

    def dense(
        self, weight: Tensor, bias: Tensor | None, weight_size: Tensor | None = None, bias_size: Tensor | None = None
    ) -> Interval:
        """The smallest interval around x @ weight + bias, rounded outward. It is formed from the ends, not from middle
        and radius: a sum of positive lower ends must not round to zero.

        Weight and bias may have been computed themselves, in at most k + 8 operations (k is the length of x), relative
        to the sizes given for them (their own, if none is given).
        """
        k = weight.shape[0]
        positive, negative = weight.clamp(min=0), weight.clamp(max=0)
        rows = torch.stack([self.lower, self.upper, self.size])
        says_nothing = rows[:2].isinf() if math.isinf(float(rows[2].amax())) else None
        if says_nothing is not None:
            ends = rows[:2].masked_fill(says_nothing, 0.0)  # 0 times an infinite end is 0
            rows = torch.cat([ends, ends.abs().amax(0, keepdim=True)])
        rising, falling = (rows @ positive).unbind(), (rows @ negative).unbind()
        lower, upper = rising[0] + falling[1], rising[1] + falling[0]
        size = rising[2] - falling[2] if weight_size is None else rows[2] @ weight_size
        if says_nothing is not None:
            opened = says_nothing.to(weight)
            up_opened, down_opened = opened @ (positive > 0).to(weight), opened @ (negative < 0).to(weight)
            lower = lower.masked_fill(up_opened[0] + down_opened[1] > 0, -math.inf)
            upper = upper.masked_fill(up_opened[1] + down_opened[0] > 0, math.inf)
        if bias is not None and bias_size is None:
            bias_size = bias.abs()

        def rounding(of: Tensor) -> Tensor:
            return part(gamma(2 * k + 8, of.dtype), of if bias_size is None else of + bias_size, k)

        below = above = rounding(size)
        # In a sum of squares or exponentials nothing cancels: its lower end rounds by its own size, not by the upper's.
        if weight.shape[1] == 1 and weight_size is None and float(torch.minimum(self.lower.amin(), weight.amin())) >= 0:
            below = rounding(lower.clamp(min=0))
        if bias is not None:
            lower, upper = lower + bias, upper + bias
        return Interval(lower - below, upper + above)

    def plus(self, other: Interval) -> Interval:
        lower, upper = self.lower + other.lower, self.upper + other.upper
        unit = gamma(2, lower.dtype)
        return Interval(lower - part(unit, lower.abs()), upper + part(unit, upper.abs()))

    @property
    def finite_size(self) -> Tensor:
        return self.size.nan_to_num(posinf=0.0)

    def matmul(self, other: Interval) -> Interval:
        """The smallest interval around x @ y for independent entries. Memory: rows times inner length times columns."""
        columns = (other.lower.unsqueeze(-3), other.upper.unsqueeze(-3))
        ends = [
            x * y for x in (self.lower.unsqueeze(-1), self.upper.unsqueeze(-1)) for y in columns
        ]  # (..., rows, inner, columns) each
        low, high = ends[0], ends[0]
        for end in ends[1:]:
            low, high = torch.minimum(low, end), torch.maximum(high, end)
        k = self.lower.shape[-1]
        # NaN and infinity make ends that say nothing, however far they are widened.
        by = part(gamma(k + 2, low.dtype), torch.maximum(-low, high).sum(-2), k)  # |x y| is the larger of the two
        return Interval(low.sum(-2) - by, high.sum(-2) + by)

    def meet(self, other: Interval) -> Interval:
        """An interval that contains x if both do. Ends that rounding has crossed are swapped: x lies between them."""
        low, high = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)
        return Interval(torch.minimum(low, high), torch.maximum(low, high))
