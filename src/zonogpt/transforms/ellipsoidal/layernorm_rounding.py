"""The rounding of LayerNorm over an ellipsoidal zonotope; its formulas are in layernorm.py beside this.

Derivations: docs/math.md, Lemma 13.7. Letters as in layernorm.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.rounding import gamma, length, room, up
from zonogpt.model.nodes import Norm, size_of
from zonogpt.transforms.norm_point import NormPoint

if TYPE_CHECKING:
    from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep


@dataclass(frozen=True)
class CentringRounding:
    """Rounding of the deviation D: the error of z0, and that of centring the tangents and of z0 times them."""

    dot: Tensor  # (B, n): of |z0 . D|
    box: Tensor  # (B, n, d): of D
    checker: Tensor | None  # (B, n, d): how far the checker's centred tangents may be from ours; None: no certificate


def centring_rounding(norm: Norm, at: NormPoint, z: EllipsoidalZonotope) -> CentringRounding:
    d = z.c.shape[-1]
    part = gamma(d + 4, z.G.dtype)
    rounded = part * length(z.symbol_radius)
    box = ((at.missed + 2 * rounded) / math.sqrt(d))[..., None].expand(at.z0.shape)
    checker = part * norm.centred_size(z.symbol_radius) if room() else None
    return CentringRounding(at.size * (at.missed + 4 * rounded), box, checker)


@dataclass(frozen=True)
class ErrorScalars:
    """The scalars of the error z0 e_rho + D d_rho: the middle of e_rho, the bend, and the bound of d_rho."""

    shift: Tensor  # (B, n)
    bend: Tensor  # (B, n, d)
    delta: Tensor  # (B, n)


def output_rounding(
    at: NormPoint, z: EllipsoidalZonotope, sloped: Tensor, scalars: ErrorScalars, of_D: Tensor, dtype: torch.dtype
) -> Tensor:
    """(B, n, d): the `rounding` of LayerNormStep, for tangents of type `dtype`; |D| <= of_D by coordinate."""
    norm, d, wide = at.norm, z.c.shape[-1], z.c.dtype
    z0, k = at.z0.abs(), at.k[..., None]
    weight = norm.gamma.abs() * sloped[..., None]
    bending = gamma(d + 8, wide) * k * of_D * (of_D * z0).sum(-1, keepdim=True)
    forming = gamma(8, wide) * (z0 * (at.rho + scalars.shift.abs())[..., None] + scalars.bend.abs())
    scaling = at.missing * scalars.delta[..., None]  # the adjoint's forms lack the part of D that z0 misses
    slack = weight * (at.slack(z.radius) + bending + forming + scaling) + gamma(4, wide) * size_of(norm.beta)
    image = weight * at.image(z.radius)
    return up(up(slack, 2 * d) + gamma(2 * d + 24, dtype) * image + z.m * d * torch.finfo(dtype).tiny)


@dataclass(frozen=True)
class EnclosureRounding:
    """Rounding of the backward pass's enclosures, (B, n, K) each."""

    error: Tensor
    linear: Tensor
    range: Tensor


def enclosure_rounding(step: LayerNormStep, functionals: Tensor, raw: Tensor) -> EnclosureRounding:
    """Rounding relative to the sizes of the enclosures' summands. `raw` (B, n, K, d) is the functionals times gamma."""
    d, wide, narrow = raw.shape[-1], raw.dtype, step.z.G.dtype
    rounded = torch.einsum("bknd,bnd->bnk", functionals.abs(), step.rounding)
    lost = gamma(6 * d + step.z.m + 32, narrow) * length(raw)
    return EnclosureRounding(
        error=lost * step.size[..., None] + rounded,
        linear=8 * lost * (step.a0.rsqrt() * length(step.z.radius))[..., None],
        range=gamma(3 * d + 12, wide) * length(raw) * (step.ball + length(step.x_hat))[..., None] + rounded,
    )
