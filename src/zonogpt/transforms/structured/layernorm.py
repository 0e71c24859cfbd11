"""Fused LayerNorm (paper, appendix "Fused LayerNorm Transform"), with the range of LayerNorm as a cap.

Write LN(x) = gamma * xhat + beta with xhat = z / sqrt(tau + |z|^2 / d), z = x - mean(x). For one token with centre c
and generators H_j, expansion at c gives xhat(c) + Jhat (x - c) + ehat, and since xhat and Jhat (x - c) both have mean
zero, so has ehat. That is why its generators are `R_hat_k (e_k - 1/d)`, not `R_hat_k e_k`: after a dense map they
are a little smaller, and for d = 2 they are exact. Derivations: docs/math.md, section 2 and Lemma 13.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, temporary_bytes
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.model.nodes import Norm
from zonogpt.transforms.execution import norm_error
from zonogpt.transforms.norm_point import NormPoint, norm_point, units
from zonogpt.transforms.structured.layernorm_rounding import Output, Radii, output_rounding, outward


@dataclass(frozen=True)
class LayerNormBounds:
    """For every x in Z:  LN(x) = centre + J (x - c) + e_N + s,  |J (x - c)| <= r_N,  |e_N| <= R_N,  |s| <= rounding.

    More sharply, e_N = gamma * ehat with mean(ehat) = 0 and |ehat| <= R_hat. J is LayerNorm's Jacobian at c where
    `sloped`; at the other tokens J = 0 and the centre is the middle of LayerNorm's range. `rounding` also bounds what
    applying J to all generators takes away.
    """

    at: NormPoint
    centre: Tensor  # (S, d)
    sloped: Tensor  # (S,) booleans
    r_N: Tensor  # (S, d)
    R_hat: Tensor  # (S, d)
    rounding: Tensor  # (S, d)
    rho: Tensor  # (S,): 1 / sqrt(tau + variance) <= rho

    @property
    def norm(self) -> Norm:
        return self.at.norm

    @property
    def R_N(self) -> Tensor:
        return up(self.norm.gamma.abs() * self.R_hat)

    @property
    def reach(self) -> Tensor:
        """(S, d): |LN(x) - centre| <= reach."""
        return up(self.r_N + self.R_N + self.rounding)

    def jacobian(self, v: Tensor) -> Tensor:
        """J v for tangents stacked per token, (S, n, d) -> (S, n, d), in their own dtype."""
        slope = self.norm.gamma * (self.sloped * self.at.rho)[:, None]  # (S, d)
        return slope[:, None].to(v.dtype) * _tangent(v, self.at)

    @property
    def size(self) -> Tensor:
        """(S, d): bounds LayerNorm's output."""
        return up(self.centre.abs() + self.reach)

    def execution_error(self, z: StructuredZonotope) -> Tensor:
        """(S, d): what an execution of LayerNorm in float32 may be off by, over all of z."""
        centred = up(self.at.z0.abs() + self.norm.centred_size(z.radius), 2 * z.c.shape[-1])
        return norm_error(self.norm, centred, up(z.c.abs() + z.radius), self.rho)

    def error_generators(self) -> Tensor:
        """(S, d, d): e_N is a combination of these rows with coefficients in [-1, 1], but for rounding."""
        d = self.R_hat.shape[1]
        centred = torch.diag_embed(self.R_hat) - self.R_hat[:, :, None] / d
        return centred * self.norm.gamma


def _tangent(v: Tensor, at: NormPoint) -> Tensor:
    """sqrt(a0) Jhat v = vbar - z0 (z0 . vbar) / (d a0), (S, n, d)."""
    vbar = at.norm.centre(v)
    along = (at.z0 / (v.shape[-1] * at.a0[:, None]))[:, None, :].to(v.dtype)
    return vbar - (vbar @ at.z0[:, :, None].to(v.dtype)) * along


def layernorm_bounds(norm: Norm, z: StructuredZonotope) -> LayerNormBounds:
    """The bounds over z, with the contract of LayerNormBounds. J is applied to z's generators only; its image of z's
    interval is part of `rounding`."""
    at = norm_point(norm, z.c)
    r = outward(at, z, _radii(at, z))
    require_finite("LayerNorm input", at.z0, at.a0, r.centred, r.normalised)

    taylor, a_min, a_max = taylor_remainder(at.z0, at.norm2, at.a0, norm.tau, r.centred, r.z0_dot)
    low, high = layernorm_range(at.z0 - r.centred, at.z0 + r.centred, a_min, a_max, norm.tau)
    # The middle of the range, made mean-free so that the error keeps mean zero; the half-widths are measured from it.
    middle = norm.centre((low + high) / 2)
    half = torch.maximum(high - middle, middle - low).clamp(min=0)  # at radius 0: rounding of either sign
    x_hat = at.z0 * at.rho[:, None]
    cap = torch.maximum(high - x_hat, x_hat - low) + r.normalised
    ends = gamma(4, z.c.dtype) * (low.abs() + high.abs() + x_hat.abs() + middle.abs())
    # fmin, not minimum: where Taylor overflowed to NaN, the cap remains, which is a bound on its own.
    sloped_R, half = up(torch.fmin(taylor, cap + ends).clamp(min=0)), up(half + ends)
    # Any slope is sound, zero too: where zero leaves the smaller error, there is nothing to gain from the Jacobian.
    sloped = sloped_R.sum(-1) <= half.sum(-1)
    centre = torch.where(sloped[:, None], x_hat, middle)
    R_hat = torch.where(sloped[:, None], sloped_R, half)
    return LayerNormBounds(
        at=at,
        centre=norm.shifted(norm.gamma * centre),
        sloped=sloped,
        r_N=up(norm.gamma.abs() * r.normalised * sloped[:, None]),
        R_hat=R_hat,
        rounding=output_rounding(at, z, r.z0_dot, Output(sloped, middle, centre, R_hat)),
        rho=up(a_min.rsqrt()),
    )


def _radii(at: NormPoint, z: StructuredZonotope) -> Radii:
    """The radii over z's generators; `outward` adds what is rounded."""
    centred, normalised, z0_dot = torch.zeros_like(at.z0), torch.zeros_like(at.z0), torch.zeros_like(at.a0)
    for stack in z.generator_stacks():
        each = stack.shape[0] * at.z0.shape[-1] * at.z0.element_size()
        for part in chunks(stack.shape[1], each, temporary_bytes(at.z0.device.type)):
            vbar = at.norm.centre(stack[:, part])
            n = vbar.shape[1]
            centred += up(vbar.abs().sum(1), n)
            z0_dot += up((vbar @ at.z0[:, :, None].to(vbar.dtype)).abs().sum((1, 2)), n)
            normalised += up(_tangent(vbar, at).abs().sum(1), n)
    return Radii(centred, normalised * at.rho[:, None], z0_dot)


def taylor_remainder(
    z0: Tensor, norm2: Tensor, a0: Tensor, tau: float, r_cen: Tensor, z0_dot: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """R_hat with |xhat(x) - xhat(c) - Jhat (x - c)| <= R_hat, and bounds a_min, a_max of tau + |z|^2 / d on the way.

    `r_cen` bounds the centred deviation Dbar coordinate by coordinate, `z0_dot` bounds |z0 . Dbar|. May be inf or NaN
    when the arithmetic overflows.
    """
    d = z0.shape[-1]
    g = gamma(units(d), a0.dtype)
    length = norm2.sqrt()
    r_lin = up(2 * z0_dot / d)
    r_quad = up(r_cen.square().sum(-1) / d, d)
    r_a = up(r_lin + r_quad)
    r_par = up(torch.where(length > 0, z0_dot / length, torch.zeros_like(length)), d + 4)
    least = (norm2 / d * (1 - g) - r_lin).clamp(min=0), (length * (1 - g) - r_par).clamp(min=0).square() / d
    a_min = (tau + torch.maximum(*least)) * (1 - g)
    a_max = up(a0 * (1 + g) + r_a)
    e_rho, d_rho = rho_remainders(a0, a_min, r_lin, r_quad)
    # rho(a0) and rho'(a0) are rounded themselves.
    own = g * a0.rsqrt() * (1 + r_lin / a0)
    e_rho, d_rho = up((e_rho + own) * (1 + g)), up((d_rho + own) * (1 + g))
    return up(z0.abs() * e_rho[:, None] + r_cen * d_rho[:, None]), a_min, a_max


def rho_remainders(a0: Tensor, a_min: Tensor, r_lin: Tensor, r_quad: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of |rho(a) - rho(a0) - rho'(a0) lin| and |rho(a) - rho(a0)| for rho(a) = 1/sqrt(a), a = a0 + lin + quad.

    They hold for |lin| <= r_lin and 0 <= quad <= r_quad with a >= a_min.
    """
    r_a = r_lin + r_quad
    # The first lies in [-A, B]: rho'(a0) quad only lowers it, the curvature of rho only lifts it. Ratios first: powers
    # such as a^(-5/2) underflow to 0 for large activations, and the bound with them.
    A = 0.5 * (r_quad / a0) * a0.rsqrt()
    B = 0.375 * (r_a / a_min).square() * a_min.rsqrt()
    return up(torch.maximum(A, B), 12), up((0.5 * (r_a / a_min)).clamp(max=1) * a_min.rsqrt(), 8)


def layernorm_range(z_low: Tensor, z_high: Tensor, a_min: Tensor, a_max: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Bounds of xhat = z / sqrt(a), a = tau + |z|^2 / d, for mean-free z in [z_low, z_high] with a in [a_min, a_max].

    A mean-free z has |z|^2 >= z_i^2 d / (d - 1), so |xhat_i| <= |z_i| / sqrt(tau + z_i^2 / (d - 1)), which grows with
    |z_i| and stays below sqrt(d - 1).
    """
    z_low, z_high = (z - sign * gamma(4, z.dtype) * z.abs() for z, sign in ((z_low, 1), (z_high, -1)))
    high = _upper(z_high, a_min, a_max, tau)
    low = -_upper(-z_low, a_min, a_max, tau)
    return low - gamma(16, low.dtype) * low.abs(), high + gamma(16, high.dtype) * high.abs()


def _upper(z_high: Tensor, a_min: Tensor, a_max: Tensor, tau: float) -> Tensor:
    room = max(1, z_high.shape[-1] - 1)
    # z / sqrt(tau + z^2 / room) without squaring z, which could overflow
    saturated = z_high / torch.hypot(torch.full_like(z_high, math.sqrt(tau)), z_high / math.sqrt(room))
    positive = torch.minimum(saturated, z_high * a_min.rsqrt()[:, None])
    return torch.where(z_high >= 0, positive, z_high * a_max.rsqrt()[:, None])
