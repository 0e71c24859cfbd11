"""Interval propagation (ibp): every operator acts on intervals, and how values depend on each other is lost."""

from __future__ import annotations

from torch import Tensor

from zonogpt.domains.interval import Interval
from zonogpt.methods.operators.network import Arrangement
from zonogpt.transforms.functions import Function


class IntervalOperators:
    def bounds(self, x: Interval) -> Interval:
        return x

    def arrange(self, x: Interval, how: Arrangement) -> Interval:
        return x.arranged(how.there)

    def add(self, x: Interval, y: Interval) -> Interval:
        return x.plus(y)

    def dense(self, x: Interval, weight: Tensor, bias: Tensor | None, *sizes: Tensor | None) -> Interval:
        return x.dense(weight, bias, *sizes)

    def matmul(self, x: Interval, y: Interval, known: Interval | None = None) -> Interval:
        return x.matmul(y) if known is None else x.matmul(y).meet(known)

    def apply(self, f: Function, x: Interval) -> Interval:
        return f.range(x)

    def relative(self, u: Interval, visible: Tensor) -> Interval:
        return u
