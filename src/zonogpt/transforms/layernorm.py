"""Fused LayerNorm (paper, appendix "Fused LayerNorm Transform"), with the range of LayerNorm as a cap.

Write LN(x) = gamma * xhat + beta with xhat = z / sqrt(tau + |z|^2 / d), z = x - mean(x). For one token with centre c
and generators H_j, expansion at c gives xhat(c) + Jhat (x - c) + ehat, and since xhat and Jhat (x - c) both have mean
zero, so has ehat. That is why its generators are `R_hat_k (e_k - 1/d)`, not `R_hat_k e_k`: after a dense map they
are a little smaller, and for d = 2 they are exact. Derivations: docs/math.md, section "LayerNorm".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, temporary_bytes
from zonogpt.domains.finite import require_finite
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.model.ir import LayerNorm


@dataclass(frozen=True)
class LayerNormBounds:
    """For every x in Z:  LN(x) = centre + J (x - c) + e_N  with  |J (x - c)| <= r_N  and  |e_N| <= R_N.

    More sharply, e_N = gamma * ehat with mean(ehat) = 0 and |ehat| <= R_hat. J is LayerNorm's Jacobian at c where
    `sloped`; at the other tokens J = 0 and the centre is the middle of LayerNorm's range.
    """

    norm: LayerNorm
    centre: Tensor  # (S, d)
    sloped: Tensor  # (S,) booleans
    z0: Tensor  # (S, d)
    a0: Tensor  # (S,)
    r_N: Tensor  # (S, d)
    R_hat: Tensor  # (S, d)

    @property
    def R_N(self) -> Tensor:
        return self.norm.gamma.abs() * self.R_hat

    def jacobian(self, v: Tensor) -> Tensor:
        """J v for tangents stacked per token, (S, n, d) -> (S, n, d)."""
        slope = self.sloped.to(v.dtype) * self.a0.rsqrt()  # (S,)
        return self.norm.gamma * (slope[:, None, None] * _tangent(v, self.z0, self.a0))

    def error_generators(self) -> Tensor:
        """(S, d, d): e_N is a combination of these rows with coefficients in [-1, 1]."""
        d = self.R_hat.shape[1]
        centred = torch.diag_embed(self.R_hat) - self.R_hat[:, :, None] / d
        return centred * self.norm.gamma


def _tangent(v: Tensor, z0: Tensor, a0: Tensor) -> Tensor:
    """sqrt(a0) Jhat v = vbar - z0 (z0 . vbar) / (d a0), (S, n, d)."""
    vbar = v - v.mean(-1, keepdim=True)
    return vbar - (vbar @ z0[:, :, None]) * (z0 / (v.shape[-1] * a0[:, None]))[:, None, :]


def layernorm_bounds(norm: LayerNorm, z: StructuredZonotope) -> LayerNormBounds:
    """The contract of LayerNormBounds over z, whose interval must be zero (convert first)."""
    assert not bool(z.b.any()), "LayerNorm needs b = 0: convert the interval to generators first"
    d = z.c.shape[1]
    z0 = z.c - z.c.mean(-1, keepdim=True)
    norm2 = z0.square().sum(-1)  # (S,)
    a0 = norm.tau + norm2 / d

    r_cen, r_hat, z0_dot = torch.zeros_like(z0), torch.zeros_like(z0), torch.zeros_like(a0)
    for stack in z.generator_stacks():
        each = stack.shape[0] * d * z0.element_size()
        for part in chunks(stack.shape[1], each, temporary_bytes(z0.device.type)):
            vbar = stack[:, part] - stack[:, part].mean(-1, keepdim=True)
            r_cen += vbar.abs().sum(1)
            z0_dot += (vbar @ z0[:, :, None]).abs().sum((1, 2))
            r_hat += _tangent(vbar, z0, a0).abs().sum(1)
    r_hat = r_hat * a0.rsqrt()[:, None]  # |Jhat (x - c)| <= r_hat
    require_finite("LayerNorm input", z0, a0, r_cen, r_hat)

    taylor, a_min, a_max = taylor_remainder(z0, norm2, a0, norm.tau, r_cen, z0_dot)
    low, high = layernorm_range(z0 - r_cen, z0 + r_cen, a_min, a_max, norm.tau)
    # The middle of the range, made mean-free so that the error keeps mean zero; the half-widths are measured from it.
    middle = (low + high) / 2
    middle = middle - middle.mean(-1, keepdim=True)
    half = torch.maximum(high - middle, middle - low).clamp(min=0)  # at radius 0: rounding of either sign
    x_hat = z0 * a0.rsqrt()[:, None]
    cap = torch.maximum(high - x_hat, x_hat - low) + r_hat
    # fmin, not minimum: where Taylor overflowed to NaN the cap, a bound on its own, is what remains.
    sloped_R = torch.fmin(taylor, cap).clamp(min=0)
    # Any slope is sound, zero too: where zero leaves the smaller error there is nothing to gain from the Jacobian.
    sloped = sloped_R.sum(-1) <= half.sum(-1)
    centre = torch.where(sloped[:, None], x_hat, middle)
    return LayerNormBounds(
        norm=norm,
        centre=norm.gamma * centre + norm.beta,
        sloped=sloped,
        z0=z0,
        a0=a0,
        r_N=norm.gamma.abs() * r_hat * sloped[:, None],
        R_hat=torch.where(sloped[:, None], sloped_R, half),
    )


def taylor_remainder(
    z0: Tensor, norm2: Tensor, a0: Tensor, tau: float, r_cen: Tensor, z0_dot: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """R_hat with |xhat(x) - xhat(c) - Jhat (x - c)| <= R_hat, and bounds a_min, a_max of tau + |z|^2 / d on the way.

    `r_cen` bounds the centred deviation Dbar coordinate by coordinate, `z0_dot` bounds |z0 . Dbar|. May be inf or NaN
    when the arithmetic overflows.
    """
    d = z0.shape[-1]
    length = norm2.sqrt()
    r_lin = 2 * z0_dot / d
    r_quad = r_cen.square().sum(-1) / d
    r_a = r_lin + r_quad
    r_par = torch.where(length > 0, z0_dot / length, torch.zeros_like(length))
    a_min = tau + torch.maximum((norm2 / d - r_lin).clamp(min=0), (length - r_par).clamp(min=0).square() / d)
    a_max = a0 + r_a
    e_rho, d_rho = rho_remainders(a0, a_min, r_lin, r_quad)
    return z0.abs() * e_rho[:, None] + r_cen * d_rho[:, None], a_min, a_max


def rho_remainders(a0: Tensor, a_min: Tensor, r_lin: Tensor, r_quad: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of |rho(a) - rho(a0) - rho'(a0) lin| and |rho(a) - rho(a0)| for rho(a) = 1/sqrt(a), a = a0 + lin + quad.

    Over |lin| <= r_lin, 0 <= quad <= r_quad with a >= a_min.
    """
    r_a = r_lin + r_quad
    # The first lies in [-A, B]: rho'(a0) quad only lowers it, the curvature of rho only lifts it. Ratios first: powers
    # such as a^(-5/2) underflow to 0 for large activations, and the bound with them.
    A = 0.5 * (r_quad / a0) * a0.rsqrt()
    B = 0.375 * (r_a / a_min).square() * a_min.rsqrt()
    return torch.maximum(A, B), (0.5 * (r_a / a_min)).clamp(max=1) * a_min.rsqrt()


def layernorm_range(z_low: Tensor, z_high: Tensor, a_min: Tensor, a_max: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Bounds of xhat = z / sqrt(a), a = tau + |z|^2 / d, for mean-free z in [z_low, z_high] with a in [a_min, a_max].

    A mean-free z has |z|^2 >= z_i^2 d / (d - 1), so |xhat_i| <= |z_i| / sqrt(tau + z_i^2 / (d - 1)), which grows with
    |z_i| and stays below sqrt(d - 1).
    """
    high = _upper(z_high, a_min, a_max, tau)
    low = -_upper(-z_low, a_min, a_max, tau)
    return low, high


def _upper(z_high: Tensor, a_min: Tensor, a_max: Tensor, tau: float) -> Tensor:
    room = max(1, z_high.shape[-1] - 1)
    # z / sqrt(tau + z^2 / room) without squaring z, which could overflow
    saturated = z_high / torch.hypot(torch.full_like(z_high, math.sqrt(tau)), z_high / math.sqrt(room))
    positive = torch.minimum(saturated, z_high * a_min.rsqrt()[:, None])
    return torch.where(z_high >= 0, positive, z_high * a_max.rsqrt()[:, None])
