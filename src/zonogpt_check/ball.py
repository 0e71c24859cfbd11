"""Arrays of balls: a midpoint and a radius in float64, such that the exact value is never farther than the radius.

Every operation adds its rounding to the radius. numpy's +, -, *, /, sqrt round to nearest (unit U = 2^-53); a sum or
a product of matrices of inner length k may be added up in any order, so it is off by at most gamma(k) times the sum of
the absolute values; exp, log, tanh and the like are off by at most LIBRARY units. Radii are sums and products of
positive numbers: each operation on them is followed by a factor that outweighs its own rounding, and by a tiny number
for what may have underflowed. So whatever is computed with balls is proved; nothing else in this package rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Number = Union["Ball", ArrayLike]

U = 2.0**-53
TINY = 2.0**-1022
LIBRARY = 8  # four units in the last place, each up to 2 U


def gamma(k: int) -> float:
    return k * U / (1 - k * U)


def _up(x: Array, operations: int = 6) -> Array:
    """At least the exact value of x >= 0, which took that many operations on numbers of one sign."""
    return np.asarray(x * (1 + gamma(operations + 2)) + TINY)


class Ball:
    """An array of numbers, each known to lie within `rad` of `mid`."""

    __array_ufunc__ = None  # numpy leaves mixed operations to us
    __slots__ = ("mid", "rad")

    def __init__(self, mid: ArrayLike, rad: ArrayLike = 0.0) -> None:
        self.mid: Array = np.asarray(mid, dtype=np.float64)
        self.rad: Array = np.broadcast_to(np.asarray(rad, dtype=np.float64), self.mid.shape)

    @staticmethod
    def of(x: Number) -> Ball:
        """A number is the ball of radius zero: floats are exact."""
        return x if isinstance(x, Ball) else Ball(x)

    @staticmethod
    def between(low: Array, high: Array) -> Ball:
        """The ball that holds every number from low to high."""
        mid = low / 2 + high / 2
        return Ball(mid, _up(np.maximum(np.abs(high - mid), np.abs(mid - low))))

    @staticmethod
    def choose(which: NDArray[np.bool_], a: Ball, b: Ball) -> Ball:
        """a where `which`, b elsewhere."""
        return Ball(np.where(which, a.mid, b.mid), np.where(which, a.rad, b.rad))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mid.shape

    @property
    def T(self) -> Ball:
        return self.swap(-1, -2)

    def swap(self, a: int, b: int) -> Ball:
        return Ball(np.swapaxes(self.mid, a, b), np.swapaxes(self.rad, a, b))

    def reshape(self, *shape: int) -> Ball:
        return Ball(self.mid.reshape(shape), self.rad.reshape(shape))

    def transpose(self, *axes: int) -> Ball:
        return Ball(self.mid.transpose(axes), self.rad.transpose(axes))

    def __getitem__(self, index: Any) -> Ball:
        return Ball(self.mid[index], self.rad[index])

    def upper(self) -> Array:
        """A float that no number of the ball exceeds."""
        return np.where(self.rad == 0, self.mid, np.nextafter(self.mid + self.rad, np.inf))

    def lower(self) -> Array:
        return np.where(self.rad == 0, self.mid, np.nextafter(self.mid - self.rad, -np.inf))

    def __neg__(self) -> Ball:
        return Ball(-self.mid, self.rad)

    def __abs__(self) -> Ball:
        return Ball(np.abs(self.mid), self.rad)  # | |x| - |m| | <= |x - m|

    def __add__(self, other: Number) -> Ball:
        b = Ball.of(other)
        mid = self.mid + b.mid
        return Ball(mid, _up(self.rad + b.rad + U * np.abs(mid)))

    def __sub__(self, other: Number) -> Ball:
        return self + -Ball.of(other)

    def __mul__(self, other: Number) -> Ball:
        b = Ball.of(other)
        mid = self.mid * b.mid
        return Ball(mid, _up(np.abs(self.mid) * b.rad + self.rad * (np.abs(b.mid) + b.rad) + U * np.abs(mid)))

    def __truediv__(self, other: Number) -> Ball:
        b = Ball.of(other)
        away = np.abs(b.mid) - b.rad
        if not np.all(away > 4 * U * np.abs(b.mid)):
            raise ZeroDivisionError("a divisor may be zero")
        mid = self.mid / b.mid
        # x/y - m/n = (x - m)/y - (m/n) (y - n)/y, and |y| >= away, less its rounding.
        away = away * (1 - 4 * U)
        off = self.rad / away + np.abs(mid) * (1 + 4 * U) * (b.rad / away)  # divided before it could underflow
        return Ball(mid, _up(off + 2 * U * np.abs(mid), 12))

    def __matmul__(self, other: Number) -> Ball:
        b = Ball.of(other)
        k = self.mid.shape[-1]
        size = np.abs(self.mid)
        # gamma stands outside: inside, its product could underflow before it is multiplied by something large.
        rad = size @ b.rad + gamma(k) * (size @ np.abs(b.mid)) + self.rad @ (np.abs(b.mid) + b.rad)
        return Ball(self.mid @ b.mid, _up(rad, 2 * k + 6) + k * TINY)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Number) -> Ball:
        return -self + other

    def __rtruediv__(self, other: Number) -> Ball:
        return Ball.of(other) / self

    def __rmatmul__(self, other: Number) -> Ball:
        return Ball.of(other) @ self

    def sum(self, axis: int) -> Ball:
        k = self.mid.shape[axis]
        rad = self.rad.sum(axis) + gamma(k) * np.abs(self.mid).sum(axis)
        return Ball(self.mid.sum(axis), _up(rad, 2 * k + 6))

    def max(self, axis: int) -> Ball:
        return Ball.between(self.lower().max(axis), self.upper().max(axis))

    def square(self) -> Ball:
        return self * self

    def length(self) -> Ball:
        return self.square().sum(-1).sqrt()

    def centred(self) -> Ball:
        return self - (self.sum(-1) / self.shape[-1])[..., None]

    def diagonal(self) -> Ball:
        return Ball(np.diagonal(self.mid, axis1=-2, axis2=-1), np.diagonal(self.rad, axis1=-2, axis2=-1))

    def sqrt(self) -> Ball:
        """The root of numbers that are not negative: the part of the ball below zero is rounding."""
        low, high = np.sqrt(np.maximum(self.lower(), 0.0)), np.sqrt(np.maximum(self.upper(), 0.0))
        return Ball.between(low * (1 - 2 * U), _up(high))

    def _growing(self, f: Callable[[Array], Array], above: float | None = None) -> Ball:
        """f of the ball, for a growing function of numpy's library, defined above a number."""
        if above is not None and not np.all(self.lower() > above):
            raise ZeroDivisionError("the logarithm of a number that may be zero")
        low, high = f(self.lower()), f(self.upper())
        units = (LIBRARY + 2) * U
        return Ball.between(low - units * np.abs(low) - TINY, high + units * np.abs(high) + TINY)

    def exp(self) -> Ball:
        return self._growing(np.exp)

    def expm1(self) -> Ball:
        return self._growing(np.expm1)

    def tanh(self) -> Ball:
        return self._growing(np.tanh)

    def log(self) -> Ball:
        return self._growing(np.log, 0.0)

    def log1p(self) -> Ball:
        return self._growing(np.log1p, -1.0)


def largest(*balls: Ball) -> Ball:
    """Entry by entry the maximum."""
    low, high = np.maximum.reduce([b.lower() for b in balls]), np.maximum.reduce([b.upper() for b in balls])
    return Ball.between(low, high)


def smallest(*balls: Ball) -> Ball:
    return -largest(*(-b for b in balls))


def smaller(a: Ball, b: Ball) -> Ball:
    """The better of two bounds; where one is not a number, the other."""
    first, second = (np.where(np.isnan(x.upper()), np.inf, x.upper()) for x in (a, b))
    return Ball.choose(first <= second, a, b)


def joined(balls: list[Ball], axis: int) -> Ball:
    return Ball(np.concatenate([b.mid for b in balls], axis), np.concatenate([b.rad for b in balls], axis))
