"""LayerNorm over an ellipsoidal zonotope: its error is a line, a product and a small copy of the deviation, not a box.

With z0 the centred centre, D the centred deviation, a = tau + |z0 + D|^2 / d, rho(a) = 1 / sqrt(a), k = rho(a0)^3 / d,

    LN(x) = LN(c) + J (x - c) + gamma * ( (z0 + D) e_rho - k (z0 . D) D ),        e_rho in [-A, B]
          = LN(c) + J (x - c) + gamma * ( z0 e_rho + D d_rho ),                   |d_rho| <= delta

with e_rho and d_rho *scalars* per token. The middle of e_rho's interval moves the centre. Two linear forms of one
ellipsoid multiply to at most half of what their maxima do, around a centre that moves too. Where all this is larger
than LayerNorm's own range (|xhat| < sqrt(d)), the slope is dropped and the range is all that is said.
Derivations: docs/math.md, section "Method E: LayerNorm".
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, stream_limit
from zonogpt.domains.ellipsoidal import (
    EllipsoidalZonotope,
    image_rounding,
    lambda_max,
    minkowski,
    rounded_out,
    support,
    symmetrised,
    trace,
    weights,
)
from zonogpt.domains.finite import require_finite
from zonogpt.domains.symbols import SymbolSums, dual_norm
from zonogpt.model.ir import LayerNorm


@dataclass(frozen=True)
class LayerNormStep:
    """For every x in Z:  LN(x) = centre + J (x - c) + e, and e lies in the ellipsoid of `error_gram`.

    J is LayerNorm's Jacobian at c where `sloped`, zero elsewhere.
    """

    norm: LayerNorm
    z: EllipsoidalZonotope  # before the step; kept because e contains a scaled copy of its deviation
    centre: Tensor  # (B, n, d)
    x_hat: Tensor  # (B, n, d): (centre - beta) / gamma
    sloped: Tensor  # (B, n) booleans
    z0: Tensor  # (B, n, d)
    a0: Tensor  # (B, n)
    half: Tensor  # (B, n): half-width of e_rho
    largest: Tensor  # (B, n): bound of |e_rho|
    delta: Tensor  # (B, n): bound of |d_rho|
    bend: Tensor  # (B, n, d): what the product's centre adds to x_hat
    ball: Tensor  # (B, n): |(LN(x) - beta) / gamma|_2 <= ball
    error_gram: Tensor  # (B, n, d, d)

    def jacobian(self, v: Tensor) -> Tensor:
        """J v for tangents (B, n, k, d)."""
        return self._times(self.norm.gamma, v)

    def jacobian_gram(self, Q: Tensor) -> Tensor:
        """J Q J^T and its rounding, (B, n, d, d)."""
        out = symmetrised(self.jacobian(self.jacobian(Q).mT))
        size = self.norm.gamma.square().sum() * self.sloped / self.a0  # at least |J|_F^2
        out.diagonal(dim1=-2, dim2=-1).add_(image_rounding(Q, size)[..., None])
        return out

    def with_skip(self, A: Tensor) -> Tensor:
        """The matrix (B, n, d, d) of v -> v + (J v) @ A, for A (B, n, d, d)."""
        through = A * (self.norm.gamma * self._rho)[..., None]
        ones, d = torch.ones_like(self.z0), A.shape[-1]
        seen = torch.stack([ones / d, self.z0 / (d * self.a0[..., None])], dim=-2) @ through  # (B, n, 2, d)
        taken = torch.stack([ones, self.z0], dim=-1)  # (B, n, d, 2)
        through.view(-1, d, d).baddbmm_(taken.flatten(0, 1), seen.flatten(0, 1), alpha=-1)
        through.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return through

    def last(self, count: int) -> LayerNormStep:
        """The step at the last tokens, as far as the Jacobian is concerned."""
        return dataclasses.replace(self, sloped=self.sloped[:, -count:], a0=self.a0[:, -count:], z0=self.z0[:, -count:])

    def for_the_tape(self) -> LayerNormStep:
        """Without the error's Gram: the backward pass meets the error itself, and the Gram is as large as Q."""
        return dataclasses.replace(self, error_gram=self.error_gram[..., :0, :0].clone())

    @property
    def _rho(self) -> Tensor:
        """(B, n, 1): 1 / sqrt(a0), or 0 where not sloped."""
        return (self.sloped * self.a0.rsqrt())[..., None]

    def _normalised(self, v: Tensor) -> Tensor:
        """J v / gamma, for v (B, n, k, d)."""
        return self._times(torch.ones_like(self.norm.gamma), v)

    def _times(self, gamma: Tensor, v: Tensor) -> Tensor:
        """gamma (rho (v - mean v) - rho^3 / d (z0 . v) z0).

        Both corrections are one product of inner length 2: v, the largest array there is, is read few times. z0 is
        mean-free, so z0 . v needs no centring.
        """
        d = v.shape[-1]
        rho = self._rho
        seen = v @ torch.stack([torch.full_like(self.z0, 1 / d), self.z0], dim=-1)  # (B, n, k, 2)
        taken = torch.stack([gamma * rho, gamma * self.z0 * rho / (d * self.a0[..., None])], dim=-2)  # (B, n, 2, d)
        out = (v * (gamma * rho)[..., None, :]).flatten(0, 1)
        return out.baddbmm_(seen.flatten(0, 1), taken.flatten(0, 1), alpha=-1).unflatten(0, v.shape[:2])

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Functionals of LayerNorm's output (B, K, n, d) as functionals of its input, and the error's part (B, K).

        For each functional and token the better of two enclosures of LN(x) - centre: slope and error, or the range.
        """
        w, error, linear, range_ = self._enclosures(functionals, limit)
        flat = ~self.sloped[..., None] | ~(error + linear < range_)  # (B, n, K)
        before = self._normalised(w).masked_fill(flat[..., None], 0.0)
        return before.transpose(1, 2), torch.where(flat, range_, error).sum(1)

    def loss(self, functionals: Tensor, limit: int) -> Tensor:
        """(B, K): the most that functionals (B, K, n, d) can fall below their value at the centre; no going back."""
        _, error, linear, range_ = self._enclosures(functionals, limit)
        return torch.where(self.sloped[..., None], torch.fmin(error + linear, range_), range_).sum(1)

    def _enclosures(self, functionals: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w = (functionals * self.norm.gamma).transpose(1, 2)  # (B, n, K, d)
        w = w - w.mean(-1, keepdim=True)
        bytes_each = 4 * w.shape[0] * w.shape[2] * self.z.m * w.element_size()
        parts = [self._losses(w, part) for part in chunks(w.shape[1], bytes_each, limit)]
        error, linear = (torch.cat(piece, dim=1) for piece in zip(*parts, strict=True))
        range_ = self.ball[..., None] * torch.linalg.vector_norm(w, dim=-1) + (w @ self.x_hat[..., None]).squeeze(-1)
        return w, error, linear, range_

    def _losses(self, w: Tensor, tokens: slice) -> tuple[Tensor, Tensor]:
        """(B, n, K) each: the most that -w . e can be with the slope, and the most that the slope's own part can be."""
        w, z0, a0, Q = w[:, tokens], self.z0[:, tokens], self.a0[:, tokens], self.z.Q[:, tokens]
        d = w.shape[-1]
        k = (a0.rsqrt() / (d * a0))[..., None]
        g = z0[..., None, :]
        of_w = _Form(w @ self.z.G[:, tokens].mT, support(Q, w).square(), self.z.p)
        of_g = _Form(g @ self.z.G[:, tokens].mT, support(Q, g).square(), self.z.p)
        cross = ((w @ Q) * g).sum(-1)
        along = (w * g).sum(-1)
        # (g . D)(w . D) = 1/4 ((s g + w/s) . D)^2 - 1/4 ((s g - w/s) . D)^2 for any s.
        s = ((of_w.largest + 1e-30) / (of_g.largest + 1e-30)).sqrt()
        product = k / 4 * of_g.combined(s, of_w, 1 / s, cross).square() + self.largest[:, tokens, None] * of_w.largest
        product = torch.fmin(product, self.delta[:, tokens, None] * of_w.largest)
        error = along.abs() * self.half[:, tokens, None] + product + (w * self.bend[:, tokens, None]).sum(-1)
        linear = a0.rsqrt()[..., None] * of_w.combined(torch.ones_like(s), of_g, -along / (d * a0[..., None]), cross)
        return error, linear


@dataclass(frozen=True)
class _Form:
    """Linear forms of the deviation: their values on the symbols (..., K, m) and in the ellipsoid's square (..., K)."""

    symbols: Tensor
    square: Tensor
    p: float

    @property
    def largest(self) -> Tensor:
        return dual_norm(self.symbols, self.p, -1) + self.square.clamp(min=0).sqrt()

    def combined(self, s: Tensor, other: _Form, t: Tensor, cross: Tensor) -> Tensor:
        """The largest value of s (this form) + t (the other one)."""
        square = s.square() * self.square + 2 * s * t * cross + t.square() * other.square
        return _Form(s[..., None] * self.symbols + t[..., None] * other.symbols, square, self.p).largest


def layernorm_step(norm: LayerNorm, z: EllipsoidalZonotope, limit: int) -> LayerNormStep:
    """The contract of LayerNormStep over z. Memory O(B n d^2) and `limit` bytes of centred tangents."""
    d = z.c.shape[-1]
    z0 = z.c - z.c.mean(-1, keepdim=True)
    norm2 = z0.square().sum(-1)
    a0 = norm.tau + norm2 / d
    along, spread = SymbolSums(z.p, with_cover=False), SymbolSums(z.p, with_radius=False)
    for part in chunks(z.m, 3 * z.c.numel() * z.c.element_size(), stream_limit(limit, z.c.device)):
        T = z.G[:, :, part] - z.G[:, :, part].mean(-1, keepdim=True)
        along.add(T @ z0[..., None])
        spread.add(T)
    Q = centred_gram(z.Q)
    # Everything below is about |z0 . Dbar| and |Dbar|, symbols and ellipsoid together.
    z0_dot = along.radius[..., 0] + support(Q, z0[..., None, :])[..., 0]
    Q_D = minkowski(spread.cover, Q)
    r = lambda_max(Q_D, squarings=2).sqrt()  # |D| <= r
    require_finite("LayerNorm input", z0, z0_dot, r)

    A, B, delta = scalar_remainders(norm2, a0, norm.tau, d, z0_dot, r)
    largest, half, shift = torch.maximum(A, B), (A + B) / 2, (B - A) / 2
    # -k (z0 . D) D over the ellipsoid of D: half of the product of the two extents, around -k/2 Q_D z0.
    k = a0.rsqrt() / (d * a0)
    bent = (Q_D @ z0[..., None]).squeeze(-1)
    halved = largest + k / 2 * support(Q_D, z0[..., None, :])[..., 0]
    polar = halved < delta
    bend = torch.where(polar[..., None], -0.5 * k[..., None] * bent, torch.zeros_like(bent))
    factor = torch.where(polar, halved, delta)
    # |xhat|^2 = d (a - tau) / a grows with a, and sqrt(d (a - tau)) <= |z0| + r.
    reach = norm2.sqrt() + r
    floor = torch.full_like(reach, math.sqrt(norm.tau))
    ball = reach / torch.hypot(floor, reach / math.sqrt(d))  # no square that could overflow
    # The Minkowski sum of the line z0 half and of factor times D's ellipsoid: line line^T + copy Q_D.
    t = weights(torch.stack([norm2.sqrt() * half, trace(Q_D).sqrt() * factor]), dim=0)
    line = z0 * (half * (t.sum(0) / t[0]).sqrt())[..., None]
    copy = t.sum(0) / t[1] * factor.square()
    # Any slope is sound, zero too: where it leaves the smaller error there is nothing to gain from the Jacobian.
    sloped = line.square().sum(-1) + copy * trace(Q_D) < ball.square() * (d - 1)  # NaN or inf: not sloped
    x_hat = torch.where(sloped[..., None], z0 * (a0.rsqrt() + shift)[..., None] + bend, torch.zeros_like(z0))
    gamma = norm.gamma
    return LayerNormStep(
        norm=norm,
        z=z,
        centre=gamma * x_hat + norm.beta,
        x_hat=x_hat,
        sloped=sloped,
        z0=z0,
        a0=a0,
        half=half,
        largest=largest,
        delta=delta,
        bend=bend,
        ball=ball,
        error_gram=_error_gram(
            gamma,
            Q_D,
            line=torch.where(sloped[..., None], line, 0.0),
            copy=torch.where(sloped, copy, 0.0),
            sphere=torch.where(sloped, 0.0, ball.square()),
        ),
    )


def _error_gram(gamma: Tensor, Q_D: Tensor, line: Tensor, copy: Tensor, sphere: Tensor) -> Tensor:
    """gamma (line line^T + copy Q_D + sphere (1 - 1 1^T / d)) gamma: a vector, two numbers per token. Q_D is lost."""
    ones, d = torch.ones_like(line), line.shape[-1]
    left = torch.stack([line, ones * (-sphere / d)[..., None]], dim=-1)  # (B, n, d, 2)
    out = Q_D.mul_(copy[..., None, None])
    out.view(-1, d, d).baddbmm_(left.flatten(0, 1), torch.stack([line, ones], dim=-2).flatten(0, 1))
    out.diagonal(dim1=-2, dim2=-1).add_(sphere[..., None])
    return rounded_out(out.mul_(gamma[:, None] * gamma))


def centred_gram(Q: Tensor) -> Tensor:
    """The Gram of y - mean(y), and its rounding: Q - m 1^T - 1 (m - mean m)^T, m the means of the rows."""
    m = Q.mean(-1)
    ones = torch.ones_like(m)
    left = torch.stack([m, ones], dim=-1).flatten(0, 1)
    right = torch.stack([ones, m - m.mean(-1, keepdim=True)], dim=-2).flatten(0, 1)
    out = symmetrised(torch.baddbmm(Q.flatten(0, 1), left, right, alpha=-1)).view_as(Q)
    out.diagonal(dim1=-2, dim2=-1).add_(image_rounding(Q, Q.new_ones(()))[..., None])
    return out


def scalar_remainders(
    norm2: Tensor, a0: Tensor, tau: float, d: int, z0_dot: Tensor, r: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(A, B, delta): rho(a) - rho(a0) - rho'(a0) lin is in [-A, B] and |rho(a) - rho(a0)| <= delta, rho(a) = 1/sqrt(a).

    a = a0 + lin + quad with lin = 2 z0.Dbar / d and quad = |Dbar|^2 / d, over all Dbar with |z0 . Dbar| <= z0_dot and
    |Dbar| <= r. No Taylor remainder is involved, and the forms do not cancel.
    """
    length = norm2.sqrt()
    r_lin, r_quad = 2 * z0_dot / d, r.square() / d
    r_par = torch.where(length > 0, z0_dot / length, torch.zeros_like(length))
    # a is least when Dbar points against z0: a_min = tau + (|z0| - r_par)^2 / d, x = 1 - a_min / a0.
    inside = r_par < length
    a_min = tau + (length - r_par).clamp(min=0).square() / d
    x = torch.where(inside, r_lin - r_par.square() / d, norm2 / d) / a0
    s = (a_min / a0).sqrt()
    y = (r_lin + r_quad) / a0
    t = (1 + y).sqrt()
    unit = a0.rsqrt()
    A = 0.5 * (r_quad / a0) * unit
    B = unit * torch.maximum(_above_tangent(x, s), _above_tangent(r_lin / a0, (1 + r_lin / a0).sqrt()))
    return A, B, unit * torch.maximum(x / (s * (1 + s)), y / (t * (1 + t)))


def _above_tangent(x: Tensor, s: Tensor) -> Tensor:
    """How far 1 / s lies above the tangent of 1 / sqrt at 1, for s^2 = 1 - x or s^2 = 1 + x: nothing is subtracted."""
    return x.square() * (2 + s) / (2 * s * (1 + s).square())
