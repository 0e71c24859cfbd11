"""The rounding of an MLP block over an ellipsoidal zonotope; its formulas are in mlp.py beside this.

Rounding is relative to the sizes of the summands. Derivations: docs/math.md, Lemma 13.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.rounding import gamma, up
from zonogpt.model.nodes import Mlp, size_of
from zonogpt.transforms.ellipsoidal.norm import NormStep
from zonogpt.transforms.execution import mlp_error


@dataclass(frozen=True)
class HiddenRounding:
    """Rounding of the hidden units' input, (B, n, f)."""

    off: Tensor  # how far the centre is off
    moving: Tensor  # |W_1||LN(x) - norm.centre|: the rounding of tangents is relative to it
    narrow: torch.dtype  # of the tangents
    symbols: int

    def all_told(self, centre: Tensor, d: int) -> Tensor:
        """The rounding to add to a bound of |t - centre|, that of tangents included."""
        rounded = self.off + gamma(d + 4, self.narrow) * self.moving + gamma(2, centre.dtype) * centre.abs()
        return rounded + self.underflow(d)

    def underflow(self, d: int) -> float:
        """What all tangents together may lose to underflow."""
        return self.symbols * d * torch.finfo(self.narrow).tiny


def hidden_rounding(mlp: Mlp, norm: NormStep, z: EllipsoidalZonotope) -> HiddenRounding:
    d = mlp.w_1.shape[0]
    at_centre, moving = (torch.cat([norm.centre.abs(), norm.reach], dim=1) @ mlp.w_1.abs()).chunk(2, dim=1)
    off = up(gamma(d + 2, z.c.dtype) * (at_centre + size_of(mlp.b_1)), d)
    return HiddenRounding(off, moving, z.G.dtype, z.m)


@dataclass(frozen=True)
class StripSizes:
    """The line slope t + mid +- half that stands for the activation: its value at the centre, its parts, (B, n, f)."""

    value: Tensor
    slope: Tensor
    mid: Tensor
    half: Tensor


def output_rounding(mlp: Mlp, z: EllipsoidalZonotope, hidden: HiddenRounding, strip: StripSizes) -> Tensor:
    """(B, n, d): |w| . rounding bounds what the step rounds off a functional w of its output."""
    (d, f), wide = mlp.w_1.shape, z.c.dtype
    value, slope = strip.value.abs(), strip.slope.abs()
    doubt = slope * hidden.off + gamma(4, wide) * (value + strip.mid.abs()) + gamma(d + 4, wide) * strip.half
    behind = torch.cat([value, doubt, slope * hidden.moving], dim=1) @ mlp.w_2.abs()
    at_centre, doubt, moving = behind.chunk(3, dim=1)
    rounding = gamma(f + 3, wide) * (z.c.abs() + at_centre + size_of(mlp.b_2)) + doubt
    return up(rounding + gamma(2 * d + f + 16, wide) * (z.radius + moving), 2 * f)


def executed(mlp: Mlp, z: EllipsoidalZonotope, norm: NormStep, hidden: Tensor) -> Tensor:
    """(B, n, d): how far an execution in float32 may be off; `hidden` bounds the activation's input."""
    return mlp_error(mlp, hidden, norm.output_size, norm.execution_error(), up(z.c.abs() + z.radius))


def rounding_of_tangents(rounding: Tensor, z: EllipsoidalZonotope, chain: Tensor, hidden: HiddenRounding) -> Tensor:
    """`rounding` plus that of the symbols' product with `chain` (B, n, d, d), in their own type."""
    if z.G.dtype == z.c.dtype:
        return rounding
    d = z.c.shape[-1]
    product = (z.symbol_radius[..., None, :] @ chain.abs().to(z.c.dtype)).squeeze(-2)
    return up(rounding + gamma(d + 4, z.G.dtype) * product + hidden.underflow(d), d)
