"""LayerNorm over an ellipsoidal zonotope: its error is a line, a product and a small copy of the deviation, not a box.

With z0 the centred centre, D the centred deviation, a = tau + |z0 + D|^2 / d, rho(a) = 1 / sqrt(a), k = rho(a0)^3 / d,

    LN(x) = LN(c) + J (x - c) + gamma * ( (z0 + D) e_rho - k (z0 . D) D ),        e_rho in [-A, B]
          = LN(c) + J (x - c) + gamma * ( z0 e_rho + D d_rho ),                   |d_rho| <= delta

with e_rho and d_rho *scalars* per token. The middle of e_rho's interval moves the centre. The product of two linear
forms of one ellipsoid is at most half the product of their maxima, around a centre that moves too. Where all this is
larger than LayerNorm's own range (|xhat| < sqrt(d)), the slope is dropped and only the range is used.

z0, rho(a0) and k stand for the computed numbers, and J for the map that they define: their rounding error is part of
the step's error. Derivations: docs/math.md, section 8 and Lemma 13.7.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.choices import Choices, Note, unnoted
from zonogpt.domains.chunks import chunks, stream_limit
from zonogpt.domains.ellipsoidal import (
    EllipsoidalZonotope,
    coordinate_radius,
    dual_norm,
    image_rounding,
    lambda_max,
    minkowski,
    rounded_out,
    support,
    symmetrised,
    trace,
    weights,
    widened,
)
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, least, length, up
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.nodes import Norm
from zonogpt.transforms.ellipsoidal.layernorm_rounding import (
    ErrorScalars,
    centring_rounding,
    enclosure_rounding,
    output_rounding,
)
from zonogpt.transforms.execution import norm_error
from zonogpt.transforms.norm_point import norm_point, units
from zonogpt.transforms.queries import Queries


@dataclass(frozen=True)
class LayerNormStep:
    """For every x in Z:  LN(x) = centre + J (x - c) + e + s,  |s| <= rounding,  e + s in the ellipsoid of `error_gram`.

    J is LayerNorm's Jacobian at c where `sloped`, zero elsewhere. Both bounds of s include what applying J rounds off:
    `rounding` when J is applied to functionals, in the type of z.c, `error_gram` when it is applied to tangents, in the
    type of z.G.
    """

    norm: Norm
    z: EllipsoidalZonotope  # before the step; kept because e contains a scaled copy of its deviation
    centre: Tensor  # (B, n, d)
    x_hat: Tensor  # (B, n, d): (centre - beta) / gamma
    sloped: Tensor  # (B, n) booleans
    z0: Tensor  # (B, n, d)
    a0: Tensor  # (B, n)
    shift: Tensor  # (B, n): the middle of e_rho
    half: Tensor  # (B, n): half-width of e_rho
    largest: Tensor  # (B, n): bound of |e_rho|
    delta: Tensor  # (B, n): bound of |d_rho|
    polar: Tensor  # (B, n) booleans: the product's centre is part of x_hat
    bend: Tensor  # (B, n, d): what the product's centre adds to x_hat
    ball: Tensor  # (B, n): |(LN(x) - beta) / gamma|_2 <= ball
    rounding: Tensor  # (B, n, d)
    size: Tensor  # (B, n): bounds the length of e / gamma, and of each of its terms
    reach: Tensor  # (B, n, d): |LN(x) - centre| <= reach
    error_gram: Tensor  # (B, n, d, d)
    choices: Choices = dataclasses.field(default_factory=Choices)

    def jacobian(self, v: Tensor) -> Tensor:
        """J v for tangents (B, n, k, d)."""
        return self._times(self.norm.gamma, v)

    def jacobian_gram(self, Q: Tensor) -> Tensor:
        """J Q J^T and its rounding, (B, n, d, d)."""
        out = symmetrised(self.jacobian(self.jacobian(Q).mT))
        size = 9 * self.norm.gamma.square().sum() * self.sloped / self.a0  # at least |J|_F^2, also of each part of J
        return widened(out, image_rounding(Q, size))

    def with_skip(self, A: Tensor) -> Tensor:
        """The matrix (B, n, d, d) of v -> v + (J v) @ A, for A (B, n, d, d)."""
        through = A * (self.norm.gamma * self._rho)[..., None]
        ones, d = torch.ones_like(self.z0), A.shape[-1]
        seen = torch.stack([ones / d, self.z0 / (d * self.a0[..., None])], dim=-2) @ through  # (B, n, 2, d)
        taken = torch.stack([ones, self.z0], dim=-1)  # (B, n, d, 2)
        through.view(-1, d, d).baddbmm_(taken.flatten(0, 1), seen.flatten(0, 1), alpha=-1)
        through.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return through

    def at(self, queries: Queries) -> LayerNormStep:
        """The step at the queries' tokens; only its Jacobian is cut to them."""
        sloped, a0, z0 = (queries.of_moving(x, 1) for x in (self.sloped, self.a0, self.z0))
        return dataclasses.replace(self, sloped=sloped, a0=a0, z0=z0)

    @property
    def output_size(self) -> Tensor:
        """(B, n, d): bounds LayerNorm's output."""
        return up(self.centre.abs() + self.reach)

    def execution_error(self) -> Tensor:
        """(B, n, d): what an execution of LayerNorm in float32 may be off by, over the whole set."""
        radius = self.z.radius
        centred = up(self.z0.abs() + self.norm.centred_size(radius), 2 * radius.shape[-1])
        rho = up(self.a0.rsqrt() + self.delta, units(radius.shape[-1])).clamp(max=self.norm.tau**-0.5)
        return norm_error(self.norm, centred, up(self.z.c.abs() + radius), rho)

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
        rho, unit = self._rho, self.z0 * self.a0.rsqrt()[..., None]  # of size one: it overflows in no short type
        seen = v @ torch.stack([torch.full_like(unit, 1 / d), unit / d], dim=-1).to(v.dtype)  # (B, n, k, 2)
        taken = torch.stack([gamma * rho, gamma * rho * unit], dim=-2).to(v.dtype)  # (B, n, 2, d)
        out = (v * taken[..., :1, :]).flatten(0, 1)
        return out.baddbmm_(seen.flatten(0, 1), taken.flatten(0, 1), alpha=-1).unflatten(0, v.shape[:2])

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Functionals of LayerNorm's output (B, K, n, d) as functionals of its input, and the error's part (B, K).

        Each functional takes, at each token, the better enclosure of LN(x) - centre: slope and error, or the range.
        """
        raw, error, linear, range_ = self._enclosures(functionals, limit)
        flat = ~self.sloped[..., None] | ~(error + linear < range_)  # (B, n, K)
        self.choices.more("flat", flat)
        before = self._normalised(raw).masked_fill(flat[..., None], 0.0)
        return before.transpose(1, 2), _sum_up(torch.where(flat, range_, error))

    def loss(self, functionals: Tensor, limit: int) -> Tensor:
        """(B, K): the most that functionals (B, K, n, d) fall below their value at the centre; pulls nothing back."""
        _, error, linear, range_ = self._enclosures(functionals, limit)
        return _sum_up(torch.where(self.sloped[..., None], torch.fmin(error + linear, range_), range_))

    def _enclosures(self, functionals: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        raw = (functionals * self.norm.gamma).transpose(1, 2)  # (B, n, K, d)
        w = self.norm.centre(raw)
        bytes_each = 4 * w.shape[0] * w.shape[2] * self.z.m * w.element_size()
        parts = [self._losses(raw, w, part) for part in chunks(w.shape[1], bytes_each, limit)]
        error, linear = (torch.cat(piece, dim=1) for piece in zip(*parts, strict=True))
        # LN(x) - beta is mean-free before gamma is applied, but the centre's x_hat is so only up to rounding.
        range_ = self.ball[..., None] * length(w) + (raw @ self.x_hat[..., None]).squeeze(-1)
        rounded = enclosure_rounding(self, functionals, raw)
        return raw, error + rounded.error, linear + rounded.linear, range_ + rounded.range

    def _losses(self, raw: Tensor, w: Tensor, tokens: slice) -> tuple[Tensor, Tensor]:
        """(B, n, K) each: the most that -w . e can be with the slope, and the most that the slope's own part can be.

        `w` is `raw` without its mean, which the deviation does not see; z0 and the bend are mean-free but for rounding.
        """
        raw, w = raw[:, tokens], w[:, tokens]
        z0, a0, Q = self.z0[:, tokens], self.a0[:, tokens], self.z.Q[:, tokens]
        d = w.shape[-1]
        k = (a0.rsqrt() / (d * a0))[..., None]
        g = z0[..., None, :]
        G = self.z.G[:, tokens]
        of_w = _Form((w.to(G.dtype) @ G.mT).to(w.dtype), support(Q, w).square(), self.z.p)
        of_g = _Form((g.to(G.dtype) @ G.mT).to(w.dtype), support(Q, g).square(), self.z.p)
        cross = ((w @ Q) * g).sum(-1)
        along = (raw * g).sum(-1)
        # (g . D)(w . D) = 1/4 ((s g + w/s) . D)^2 - 1/4 ((s g - w/s) . D)^2 for any s.
        s = ((of_w.largest + 1e-30) / (of_g.largest + 1e-30)).sqrt()
        product = k / 4 * of_g.combined(s, of_w, 1 / s, cross).square() + self.largest[:, tokens, None] * of_w.largest
        product = torch.fmin(product, self.delta[:, tokens, None] * of_w.largest)
        error = along.abs() * self.half[:, tokens, None] + product + (raw * self.bend[:, tokens, None]).sum(-1)
        linear = a0.rsqrt()[..., None] * of_w.combined(torch.ones_like(s), of_g, -along / (d * a0[..., None]), cross)
        return error, linear


@dataclass(frozen=True)
class _Form:
    """Linear forms of the deviation: their values on the symbols (..., K, m), and the squares (..., K) of their extents
    in the ellipsoid."""

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


def _sum_up(x: Tensor) -> Tensor:
    """(B, n, K) -> (B, K): at least the sum over the tokens, for numbers of either sign."""
    return x.sum(1) + gamma(x.shape[1] + 2, x.dtype) * x.abs().sum(1)


def layernorm_step(norm: Norm, z: EllipsoidalZonotope, limit: int) -> LayerNormStep:
    """The step over z, with the contract of LayerNormStep. Memory O(B n d^2) and `limit` bytes of centred tangents."""
    d, wide, choices = z.c.shape[-1], z.c.dtype, Choices()
    at = norm_point(norm, z.c)
    z0, a0, rho, k = at.z0, at.a0, at.rho, at.k
    # D is the centred deviation and what z0 misses; below, |z0 . D| and |D| are over symbols and ellipsoid together.
    along, spread = _centred_sums(norm, z, z0, limit)
    centring = centring_rounding(norm, at, z)
    Q = centred_gram(norm, z.Q)
    z0_dot = up(along.radius[..., 0] + support(Q, z0[..., None, :])[..., 0] + centring.dot)
    symbols = spread.noted_cover(choices.at("symbols_round"), centring.checker)
    Q_D = minkowski(symbols, Q, box=centring.box, note=choices.at("t_deviation"))
    r = up(lambda_max(Q_D, squarings=2).sqrt())  # |D| <= r
    require_finite("LayerNorm input", z0, z0_dot, r)

    A, B, delta = scalar_remainders(at.norm2, a0, norm.tau, d, z0_dot, r)
    largest, half, shift = torch.maximum(A, B), up((A + B) / 2), (B - A) / 2
    # -k (z0 . D) D over the ellipsoid of D: half of the product of the two extents, around -k/2 Q_D z0.
    bent = (Q_D @ z0[..., None]).squeeze(-1)
    halved = up(largest + k / 2 * support(Q_D, z0[..., None, :])[..., 0], units(d))
    polar = halved < delta
    bend = torch.where(polar[..., None], -0.5 * k[..., None] * bent, torch.zeros_like(bent))
    factor = torch.where(polar, halved, delta)
    # |xhat|^2 = d (a - tau) / a grows with a, and sqrt(d (a - tau)) <= |z0| + r.
    reach = up(at.size + r)
    floor = torch.full_like(reach, math.sqrt(norm.tau))
    ball = up(reach / torch.hypot(floor, reach / math.sqrt(d)), 12)  # no square that could overflow
    t_line, t_copy = at.size * half, trace(Q_D).sqrt() * factor
    # Any slope is sound, zero too: where zero leaves the smaller error, there is nothing to gain from the Jacobian.
    sloped = t_line + t_copy < ball * norm.largest  # NaN or inf: not sloped
    x_hat = torch.where(sloped[..., None], z0 * (rho + shift)[..., None] + bend, torch.zeros_like(z0))

    scalars = ErrorScalars(shift, bend, delta)
    rounding = {
        dtype: output_rounding(at, z, sloped, scalars, coordinate_radius(Q_D), dtype) for dtype in {wide, z.G.dtype}
    }
    parts = ErrorParts(z0, half, factor, ball, sloped, t_line, t_copy)
    image = norm.gamma.abs() * sloped[..., None] * at.image(z.radius)
    error_gram = _error_gram(norm.gamma, Q_D, parts, rounding[z.G.dtype], choices.at("t_error"))
    far = length(z.radius)
    return LayerNormStep(
        norm=norm,
        z=z,
        centre=norm.shifted(norm.gamma * x_hat),
        x_hat=x_hat,
        sloped=sloped,
        z0=z0,
        a0=a0,
        shift=shift,
        half=half,
        largest=largest,
        delta=delta,
        polar=polar,
        bend=bend,
        ball=ball,
        rounding=rounding[wide],
        size=up(at.size * largest + far * (largest + delta + k * at.size * far) + length(bend)),
        reach=up(image + coordinate_radius(error_gram)),
        error_gram=error_gram,
        choices=choices,
    )


def _centred_sums(norm: Norm, z: EllipsoidalZonotope, z0: Tensor, limit: int) -> tuple[SymbolSums, SymbolSums]:
    """Sums over the symbols: of z0 . (centred tangents), and of the centred tangents themselves."""
    along, spread = SymbolSums(z.p, z.c.dtype, with_cover=False), SymbolSums(z.p, z.c.dtype, with_radius=False)
    for part in chunks(z.m, 3 * z.c.numel() * z.c.element_size(), stream_limit(limit, z.c.device)):
        T = norm.centre(z.G[:, :, part])
        along.add(T @ z0[..., None].to(T.dtype))
        spread.add(T)
    return along, spread


@dataclass(frozen=True)
class ErrorParts:
    """LayerNorm's error before gamma: the line z0 half and `factor` times D's ellipsoid, or the range's `ball`."""

    z0: Tensor  # (B, n, d)
    half: Tensor  # (B, n)
    factor: Tensor
    ball: Tensor
    sloped: Tensor
    t_line: Tensor  # weights of the two in their sum
    t_copy: Tensor


def _error_gram(scale: Tensor, Q_D: Tensor, parts: ErrorParts, box: Tensor, note: Note = unnoted) -> Tensor:
    """A Gram of the Minkowski sum of the error's parts, times `scale`, and of `box`, not scaled. Q_D is lost."""
    z0, ball, sloped = parts.z0, parts.ball, parts.sloped
    d, none = z0.shape[-1], torch.zeros_like(ball)
    boxed = up(box.sum(-1), d)
    t_first = torch.where(sloped, parts.t_line, ball * math.sqrt(d))
    t_copy = torch.where(sloped, parts.t_copy, none)
    t = weights(torch.stack([t_first, t_copy, boxed / (scale.square().mean().sqrt() + least(box.dtype))]), 0)
    note(t)
    factors = t.sum(0) / t
    line = torch.where(sloped[..., None], z0 * (parts.half * factors[0].sqrt())[..., None], 0.0)
    copy = torch.where(sloped, factors[1] * parts.factor.square(), none)
    sphere = torch.where(sloped, none, factors[0] * ball.square())
    # line line^T + copy Q_D + sphere (1 - 1 1^T / d)
    ones = torch.ones_like(line)
    left = torch.stack([line, ones * (-sphere / d)[..., None]], dim=-1)  # (B, n, d, 2)
    out = Q_D.mul_(copy[..., None, None])
    out.view(-1, d, d).baddbmm_(left.flatten(0, 1), torch.stack([line, ones], dim=-2).flatten(0, 1))
    out.diagonal(dim1=-2, dim2=-1).add_(sphere[..., None])
    out = rounded_out(out).mul_(scale[:, None] * scale)  # before scaling: rounding is relative to that trace
    out.diagonal(dim1=-2, dim2=-1).add_(up(box * (factors[2] * boxed)[..., None]))
    return widened(out, up(gamma(4, out.dtype) * trace(out)))


def centred_gram(norm: Norm, Q: Tensor) -> Tensor:
    """`norm.centre_gram` of Q, widened by its rounding."""
    return widened(symmetrised(norm.centre_gram(Q)), image_rounding(Q, Q.new_ones(())))


def scalar_remainders(
    norm2: Tensor, a0: Tensor, tau: float, d: int, z0_dot: Tensor, r: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(A, B, delta): rho(a) - rho(a0) - rho'(a0) lin is in [-A, B] and |rho(a) - rho(a0)| <= delta, rho(a) = 1/sqrt(a).

    a = a0 + lin + quad with lin = 2 z0.D / d and quad = |D|^2 / d, over all D with |z0 . D| <= z0_dot and |D| <= r.
    No Taylor remainder is involved, and the forms do not cancel. rho(a0) and rho'(a0) may be off by gamma of `units`.
    """
    g = gamma(units(d), a0.dtype)
    size = norm2.sqrt()
    r_lin, r_quad = 2 * z0_dot / d, r.square() / d
    # a is least when D points against z0, from |z0| down to |z0| - fall: x = 1 - a_min / a0, s <= sqrt(a_min / a0).
    fall = torch.minimum(torch.where(size > 0, z0_dot / size * (1 + g), torch.zeros_like(size)) + g * size, size)
    left = size - fall
    s = ((tau + left.square() / d) / a0).sqrt() * (1 - g)
    x = fall * (size + left) / (d * a0) * (1 + g)
    y = (r_lin + r_quad) / a0 * (1 + g)
    t = (1 + y).sqrt()
    unit = a0.rsqrt() * (1 + g)
    own = g * unit * (1 + r_lin / a0)
    A = 0.5 * (r_quad / a0) * unit + own
    B = unit * torch.maximum(_above_tangent(x, s), _above_tangent(r_lin / a0, (1 + r_lin / a0).sqrt())) + own
    return up(A, 8), up(B, 16), up(unit * torch.maximum(x / (s * (1 + s)), y / (t * (1 + t))) + own, 12)


def _above_tangent(x: Tensor, s: Tensor) -> Tensor:
    """How far 1 / s lies above the tangent of 1 / sqrt at 1, for s^2 = 1 - x or s^2 = 1 + x: nothing is subtracted."""
    return x.square() * (2 + s) / (2 * s * (1 + s).square())
