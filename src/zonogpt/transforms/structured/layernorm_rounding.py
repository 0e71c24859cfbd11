"""The rounding of LayerNorm over a structured zonotope; its formulas are in layernorm.py.

Derivations: docs/math.md, Lemma 13.7. Letters as in norm_point.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.model.nodes import size_of
from zonogpt.transforms.norm_point import NormPoint


@dataclass(frozen=True)
class Radii:
    """Bounds of how far x is from the centre c, over the set."""

    centred: Tensor  # (S, d): of x - mean(x)
    normalised: Tensor  # (S, d): of Jhat (x - c)
    z0_dot: Tensor  # (S,): of |z0 . (x - c)|


def outward(at: NormPoint, z: StructuredZonotope, sums: Radii) -> Radii:
    """`sums` over z's generators, widened by their rounding, by what z0 misses, and by z's interval."""
    d, narrow, count = z.c.shape[1], z.G.dtype, z.m + z.q
    spread = gamma(2 * d + 8, narrow) * at.norm.centred_size(z.radius)  # what centring rounds, twice
    boxed = at.norm.centred_size(z.b)
    along = (at.z0.abs() * (at.missing + 2 * spread + boxed)).sum(-1)
    image = gamma(4 * d + 16, narrow) * at.image(z.radius) + at.image(z.b)
    return Radii(
        centred=up(up(sums.centred, count) + at.missing + spread + boxed, d),
        normalised=up(up(sums.normalised, count + 2) + image),
        z0_dot=up(up(sums.z0_dot, count) + along, d),
    )


@dataclass(frozen=True)
class Output:
    """LayerNorm's output before gamma, (S, d)."""

    sloped: Tensor  # (S,) booleans
    middle: Tensor  # of its range
    centre: Tensor
    R_hat: Tensor  # the error


def output_rounding(at: NormPoint, z: StructuredZonotope, z0_dot: Tensor, output: Output) -> Tensor:
    """(S, d): the `rounding` of LayerNormBounds."""
    norm, d, wide, narrow = at.norm, z.c.shape[1], z.c.dtype, z.G.dtype
    slope = output.sloped[:, None].to(wide)
    # The mean of the error, which Lemma 2.8 takes as 0: it comes from z0 where sloped, from the middle elsewhere.
    unbalanced = slope * (at.missing.mean(-1) * (at.rho + at.k * z0_dot))[:, None]
    unbalanced = unbalanced + (1 - slope) * gamma(d + 4, wide) * output.middle.abs().mean(-1, keepdim=True)
    forming = gamma(8, wide) * output.centre.abs() + gamma(8, narrow) * norm.centred_size(output.R_hat)
    linear = at.slack(z.radius) + gamma(4 * d + 24, narrow) * at.image(z.radius) + at.image(z.b)
    underflow = (z.m + z.q) * d * torch.finfo(narrow).tiny
    rounding = slope * (linear + underflow) + unbalanced + forming
    return up(norm.gamma.abs() * rounding + gamma(4, wide) * size_of(norm.beta), 2 * d)
