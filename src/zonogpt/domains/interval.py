"""Intervals, entry by entry, and what linear maps and products do to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    lower: Tensor
    upper: Tensor

    @property
    def centre(self) -> Tensor:
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> Tensor:
        """The distance from `centre`, as rounded, to the farther end."""
        return torch.maximum(self.upper - self.centre, self.centre - self.lower)

    def dense(self, weight: Tensor, bias: Tensor | None) -> Interval:
        """The smallest interval around x @ weight + bias. By ends, not by middle and radius: a sum of positive lower
        ends must not round to zero."""
        up, down = weight.clamp(min=0), weight.clamp(max=0)
        lower, upper = self.lower @ up + self.upper @ down, self.upper @ up + self.lower @ down
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
        """Where x lies if it lies in both. An end that overflowed to NaN says nothing and yields to the other."""
        return Interval(torch.fmax(self.lower, other.lower), torch.fmin(self.upper, other.upper))


def everything(like: Tensor) -> Interval:
    return Interval(torch.full_like(like, -torch.inf), torch.full_like(like, torch.inf))
