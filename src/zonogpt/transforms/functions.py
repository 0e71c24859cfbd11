"""The scalar functions that a transformer is made of, and linear bounds of each over an interval.

The operator-by-operator methods know a nonlinear function by three things, entry by entry over [low, high]:

    range   the interval of its values
    strip   one slope, and how far the function strays from it:  |f(t) - slope t - mid| <= half      (zonotopes)
    lines   two lines with slopes of their own:  a_low t + b_low <= f(t) <= a_high t + b_high        (CROWN)

Derivations: docs/math.md, Lemmas 12.4 to 12.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import LIBRARY, gamma, part
from zonogpt.transforms.gelu import affine_gelu, curvature_range, gelu, gelu_slope

ROUNDING = 16  # units of the largest number involved, outward, for f, for slope * t and for their difference


@dataclass(frozen=True)
class Strip:
    slope: Tensor
    mid: Tensor
    half: Tensor


@dataclass(frozen=True)
class Lines:
    a_low: Tensor
    b_low: Tensor
    a_high: Tensor
    b_high: Tensor

    def or_range(self, values: Interval) -> Lines:
        """The same lines; where one overflowed, an end of `values`, in which the function's values lie."""
        low, high = self.a_low.isfinite() & self.b_low.isfinite(), self.a_high.isfinite() & self.b_high.isfinite()
        return Lines(
            torch.where(low, self.a_low, 0.0),
            torch.where(low, self.b_low, values.lower),
            torch.where(high, self.a_high, 0.0),
            torch.where(high, self.b_high, values.upper),
        )


class Function(Protocol):
    def __call__(self, t: Tensor) -> Tensor: ...

    def range(self, box: Interval) -> Interval: ...

    def strip(self, box: Interval) -> Strip: ...

    def lines(self, box: Interval) -> Lines: ...


@dataclass(frozen=True)
class Curve:
    """A monotone function that is convex (sign 1) or concave (sign -1) on its whole domain.

    `positive` means that arguments are known to be positive (a variance, a sum of exponentials): an interval that
    reaches below 0 is cut there. At 0 the value of 1/t and the slopes of 1/t and sqrt(t) are infinite, and infinite
    numbers say nothing.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]  # its derivative
    where: Callable[[Tensor], Tensor]  # the t at which the derivative has this value
    sign: int
    touch: Callable[[Tensor, Tensor], Tensor]  # the point between low and high at which the tangent of `lines` touches
    positive: bool = False

    def __call__(self, t: Tensor) -> Tensor:
        return self.value(t)

    def range(self, box: Interval) -> Interval:
        box = self._inside(box)
        ends = self.value(box.lower), self.value(box.upper)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        # Relative to each end; all these functions are positive.
        least, most = (part(gamma(LIBRARY + 2, end.dtype), end) for end in (low, high))
        return Interval((low - least).clamp(min=0), high + most)

    def strip(self, box: Interval) -> Strip:
        """The strip with the chord's slope: of all strips around the function it is the narrowest."""
        box = self._inside(box)
        slope = self._chord(box)
        ends = self._residual(box.lower, slope), self._residual(box.upper, slope)
        # The residual is extreme where the derivative equals the slope, on the side opposite to its values at the ends.
        bend = self._residual(self.where(slope).clamp(box.lower, box.upper), slope)
        far = torch.maximum(*ends) if self.sign > 0 else torch.minimum(*ends)
        return Strip(slope, (far + bend) / 2, (far - bend).abs() / 2 + self._slack(box, slope))

    def lines(self, box: Interval) -> Lines:
        """The chord on one side, the tangent at `touch` on the other."""
        box = self._inside(box)
        slope = self._chord(box)
        slack = self._slack(box, slope)
        ends = self._residual(box.lower, slope), self._residual(box.upper, slope)
        at = self.touch(box.lower, box.upper).clamp(box.lower, box.upper)
        tangent = self.slope(at)
        offset, other_slack = self._residual(at, tangent), self._slack(box, tangent)
        if self.sign > 0:
            flat = tangent.abs() < torch.finfo(tangent.dtype).tiny  # a slope that underflowed is not the tangent's
            tangent, offset = tangent.masked_fill(flat, 0.0), torch.where(flat, self.range(box).lower, offset)
            return Lines(tangent, offset - other_slack, slope, torch.maximum(*ends) + slack)
        return Lines(slope, torch.minimum(*ends) - slack, tangent, offset + other_slack)

    def _inside(self, box: Interval) -> Interval:
        return Interval.known(box.lower.clamp(min=0), box.upper) if self.positive else box

    def _chord(self, box: Interval) -> Tensor:
        """The chord's slope, clamped between the derivatives at the ends: a short chord cancels. Any slope is sound."""
        width = box.upper - box.lower
        ends = torch.stack([self.slope(box.lower), self.slope(box.upper)])
        chord = (self.value(box.upper) - self.value(box.lower)) / torch.where(width > 0, width, torch.ones_like(width))
        return torch.where(width > 0, chord, ends[0]).clamp(ends.amin(0), ends.amax(0))

    def _residual(self, t: Tensor, slope: Tensor) -> Tensor:
        return self.value(t) - slope * t

    def _slack(self, box: Interval, slope: Tensor) -> Tensor:
        values = self.range(box)
        size = torch.maximum(values.lower.abs(), values.upper.abs())
        size = size + slope.abs() * torch.maximum(box.lower.abs(), box.upper.abs())
        return ROUNDING * torch.finfo(size.dtype).eps * size


def _middle(low: Tensor, high: Tensor) -> Tensor:
    return (low + high) / 2


SQRT = Curve(torch.sqrt, lambda t: 0.5 * t.rsqrt(), lambda a: (0.5 / a).square(), -1, _middle, True)
RECIPROCAL = Curve(torch.reciprocal, lambda t: -t.reciprocal().square(), lambda a: (-a).rsqrt(), 1, _middle, True)
# A tangent of exp that touches beyond low + 1 is negative at `low`, and would make a softmax weight negative.
EXP = Curve(torch.exp, torch.exp, torch.log, 1, lambda low, high: torch.minimum(_middle(low, high), low + 1))


@dataclass(frozen=True)
class ShiftedExp:
    """exp(t - shift) where `visible`, 0 elsewhere: the numerators of a masked softmax, which no shift changes."""

    shift: Tensor
    visible: Tensor

    def __call__(self, t: Tensor) -> Tensor:
        return self._masked(torch.exp(t - self.shift))

    def range(self, box: Interval) -> Interval:
        values, slack = EXP.range(self._moved(box)), self._slack(box)
        return Interval(self._masked((values.lower - slack).clamp(min=0)), self._masked(values.upper + slack))

    def strip(self, box: Interval) -> Strip:
        s = EXP.strip(self._moved(box))
        half = s.half + self._slack(box)
        return Strip(self._masked(s.slope), self._masked(s.mid - s.slope * self.shift), self._masked(half))

    def lines(self, box: Interval) -> Lines:
        s, slack = EXP.lines(self._moved(box)), self._slack(box)
        b_low, b_high = s.b_low - s.a_low * self.shift - slack, s.b_high - s.a_high * self.shift + slack
        return Lines(*map(self._masked, (s.a_low, b_low, s.a_high, b_high)))

    def _moved(self, box: Interval) -> Interval:
        return Interval(box.lower - self.shift, box.upper - self.shift)

    def _masked(self, t: Tensor) -> Tensor:
        return t.masked_fill(~self.visible, 0.0)

    def _slack(self, box: Interval) -> Tensor:
        """Room for the rounding of t - shift, which exp multiplies by at most its largest value."""
        size = torch.maximum(box.lower.abs(), box.upper.abs()) + self.shift.abs()
        return ROUNDING * torch.finfo(size.dtype).eps * size * torch.exp(box.upper - self.shift)


@dataclass(frozen=True)
class Square:
    """t^2: convex, but not monotone."""

    def __call__(self, t: Tensor) -> Tensor:
        return t.square()

    def range(self, box: Interval) -> Interval:
        ends = box.lower.square(), box.upper.square()
        inside = (box.lower <= 0) & (box.upper >= 0)
        low, high = torch.minimum(*ends).masked_fill(inside, 0.0), torch.maximum(*ends)
        least, most = (part(gamma(2, end.dtype), end) for end in (low, high))
        return Interval((low - least).clamp(min=0), high + most)

    def strip(self, box: Interval) -> Strip:
        """t^2 - (low + high) t is extreme at the ends, - low high, and in the middle, a quarter of width^2 below."""
        slope, gap = box.lower + box.upper, (box.upper - box.lower).square() / 8
        return Strip(slope, -box.lower * box.upper - gap, gap + self._slack(box))

    def lines(self, box: Interval) -> Lines:
        slope, slack = box.lower + box.upper, self._slack(box)
        return Lines(slope, -(slope / 2).square() - slack, slope, -box.lower * box.upper + slack)

    def _slack(self, box: Interval) -> Tensor:
        return 4 * ROUNDING * torch.finfo(box.lower.dtype).eps * self.range(box).upper


@dataclass(frozen=True)
class Gelu:
    """The tanh form of GELU. Lines are those of its strip, but for a tangent where the curvature has one sign."""

    def __call__(self, t: Tensor) -> Tensor:
        return gelu(t)

    def range(self, box: Interval) -> Interval:
        """From the values at the ends; the lower end is LOWEST where g's one minimum lies between them."""
        ends = gelu(box.lower), gelu(box.upper)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        # g falls to the left of TURN and rises to the right of it.
        turns = (box.lower < TURN) & (box.upper > TURN)
        # Values are off by 6 units of t (docs/math.md, Lemma 13.4).
        rounding = part(gamma(8, low.dtype), box.finite_size)
        return Interval(torch.where(turns, low.clamp(max=LOWEST), low) - rounding, high + rounding)

    def strip(self, box: Interval) -> Strip:
        return Strip(*affine_gelu(box.lower, box.upper))

    def lines(self, box: Interval) -> Lines:
        strip = self.strip(box)
        b_low, b_high = strip.mid - strip.half, strip.mid + strip.half
        middle = box.centre
        tangent = gelu_slope(middle)
        slack = ROUNDING * torch.finfo(middle.dtype).eps * torch.maximum(box.lower.abs(), box.upper.abs())
        touching = gelu(middle) - tangent * middle
        bend_low, bend_high = curvature_range(box.lower, box.upper)
        convex, concave = bend_low >= 0, bend_high <= 0
        return Lines(
            torch.where(convex, tangent, strip.slope),
            torch.where(convex, touching - 2 * slack, b_low),
            torch.where(concave, tangent, strip.slope),
            torch.where(concave, touching + 2 * slack, b_high),
        )


# g has one minimum, at TURN (to nine digits), and is above LOWEST everywhere (tests/test_functions.py).
TURN, LOWEST = -0.7524614220710162, -0.1700407506
SQUARE, GELU = Square(), Gelu()
