"""LayerNorm over a set: gamma xi + beta, xi = (x - mean x) / sqrt(a), a = tau + |x - mean x|^2 / d.

z0 is the centred centre in floats, v = x - c, D = x - mean x - z0 = (v - mean v) + zeta with |zeta| <= `miss`. With
rho = a0^(-1/2), a0 = tau + |z0|^2 / d, k = rho / (d a0) and the linear map J v = rho (v - mean v) - k (z0 . v) z0,

    xi = z0 rho + J v + (z0 + D) e - k (z0 . D) D + rho zeta - k (z0 . zeta) z0,     -A <= e <= B
       = z0 rho + J v + z0 e + D (1 / sqrt(a) - rho) + rho zeta - k (z0 . zeta) z0

with e = 1 / sqrt(a) - rho + k (z0 . D): both are the same identity. The centre is moved by z0 `shift`, the middle of e,
and by `bend` = -k Q z0 / 2: for D in E(Q), (z0 . D) D lies in Q z0 / 2 + E(Q z0^T Q z0 / 4). And |xi| < sqrt(d) always.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zonogpt_check.ball import Array, Ball, largest
from zonogpt_check.certificate import Lines
from zonogpt_check.model import NormWeights
from zonogpt_check.sets import (
    Set,
    box_gram,
    centred,
    cover,
    diagonal,
    dual,
    largest_eigenvalue,
    length,
    size_of,
    smaller,
    sum_of,
    support,
    weights,
)


@dataclass(frozen=True)
class Norm:
    """For every x of the set:  LN(x) = n0 + v @ J + e,  e in E(gram),  and |LN(x) - n0| <= reach."""

    z: Set
    weights: NormWeights
    z0: Ball  # (S, d), exact
    rho: Ball  # (S,)
    k: Ball
    sloped: NDArray[np.bool_]  # (S,): elsewhere J = 0 and nothing is used but the range
    miss: Ball  # (S, d)
    half: Ball  # (S,): |e - shift|
    largest: Ball  # |e|
    delta: Ball  # |1 / sqrt(a) - rho|
    bend: Ball  # (S, d)
    ball: Ball  # (S,): |xi|
    x_hat: Ball  # (S, d): xi's centre
    n0: Array
    off: Ball  # (S, d): what n0 misses, and zeta
    gram: Ball

    @cached_property
    def J(self) -> Ball:
        """(S, d, d), for rows v."""
        d = self.z0.shape[-1]
        mean_free = self.rho[:, None, None] * (np.eye(d) - 1 / Ball(float(d)))
        along = self.k[:, None, None] * centred(self.z0)[:, :, None] * self.z0[:, None]
        kept = self.sloped[:, None, None].astype(float)
        return (mean_free - along) * self.weights.gamma * kept

    @cached_property
    def reach(self) -> Ball:
        return (self.z.radius()[:, None] @ abs(self.J))[:, 0] + diagonal(self.gram).sqrt()

    def pull(self, functionals: Array) -> tuple[Ball, Ball]:
        """Functionals (K, S, d) of the output as ones of the input, and the most that they fall below J's part."""
        before, error, linear, range_ = self._enclosures(functionals)
        flat = ~self.sloped | ~((error + linear).upper() < range_.upper())
        kept = Ball.choose(flat[..., None], Ball(np.zeros(functionals.shape)), before)
        return kept, Ball.choose(flat, range_, error).sum(-1)

    def fall(self, functionals: Array) -> Ball:
        """(K,): the most that functionals can fall below their value at n0."""
        _, error, linear, range_ = self._enclosures(functionals)
        return Ball.choose(np.broadcast_to(self.sloped, error.shape), smaller(error + linear, range_), range_).sum(-1)

    def _enclosures(self, functionals: Array) -> tuple[Ball, Ball, Ball, Ball]:
        """The functional before LayerNorm, and per token: the error with slope, J's own part, all of it without."""
        z = self.z
        raw = Ball(functionals) * self.weights.gamma  # (K, S, d), of xi
        w, g, Q, G = centred(raw), centred(self.z0), Ball(z.Q), Ball(z.G)

        def extent(of_w: Ball, of_g: Ball) -> Ball:
            """The largest of_w (w . v) + of_g (z0 . v), (K, S)."""
            form = of_w[..., None] * w + of_g[..., None] * g
            by_token = form.swap(0, 1)  # (S, K, d)
            return (dual(by_token @ G.T, z.p, -1) + support(Q, by_token)).swap(0, 1)

        one, none = (Ball(np.full(w.shape[:-1], x)) for x in (1.0, 0.0))
        of_w = extent(one, none) + (abs(raw) * self.miss).sum(-1)
        of_g = extent(none, one).mid + 1e-30
        s = np.sqrt((of_w.mid + 1e-30) / of_g)  # any s > 0: (g.D)(w.D) <= ((s g + w / s).D)^2 / 4
        of_zeta = ((abs(raw) / s[..., None] + abs(self.z0) * s[..., None]) * self.miss).sum(-1)
        both = extent(1 / Ball(s), Ball(s)) + of_zeta
        along = (raw * self.z0).sum(-1)
        product = smaller(self.k / 4 * both.square() + self.largest * of_w, self.delta * of_w)
        lost = (Ball(np.abs(functionals)) * self.off).sum(-1)
        error = abs(along) * self.half + product + (raw * self.bend).sum(-1) + lost
        before = self.rho[:, None] * w - (self.k * along)[..., None] * g
        linear = self.rho * extent(one, -along * self.k / self.rho)
        range_ = self.ball * length(w) + (raw * self.x_hat).sum(-1) + lost
        return before, error, linear, range_


def norm_step(at: NormWeights, z: Set, lines: Lines) -> Norm:
    S, d = z.c.shape
    middle = centred(Ball(z.c))
    z0, miss = Ball(middle.mid), Ball(middle.rad)
    size, tangents = length(z0), centred(Ball(z.G))
    a0 = at.tau + size.square() / d
    rho = 1 / a0.sqrt()
    k = rho / (a0 * d)
    Q = centred(centred(Ball(z.Q)).T)
    # |z0 . D| <= met and |D| <= r
    met = dual((tangents * z0[:, None]).sum(-1), z.p, -1) + support(Q, z0[:, None])[:, 0] + size * length(miss)
    Q_D = sum_of([cover(tangents, z.p), Q, box_gram(miss)])
    r = largest_eigenvalue(Q_D).sqrt()
    A, B, delta = scalars(size, a0, rho, met, r, d, at.tau)

    sloped, polar, shift = lines.flags("sloped", S), lines.flags("polar", S), Ball(lines.floats("shift", S))
    half = lines.at_least("half", largest(A + shift, B - shift))
    most = lines.at_least("largest", largest(A, B))
    delta = lines.at_least("delta", delta)
    bend = Ball.choose(polar[:, None], -(k / 2)[:, None] * (Q_D @ z0[..., None])[..., 0], Ball(np.zeros((S, d))))
    factor = Ball.choose(polar, most + k / 2 * support(Q_D, z0[:, None])[:, 0], delta)
    far = Ball((size + r).upper())
    ball = far / (at.tau + far.square() / d).sqrt()  # grows with far
    x_hat = Ball.choose(sloped[:, None], z0 * (rho + shift)[:, None] + bend, Ball(np.zeros((S, d))))
    n = x_hat * at.gamma + at.beta
    slack = rho[:, None] * miss + (k * (abs(z0) * miss).sum(-1))[:, None] * abs(z0)
    off = abs(slack * at.gamma) * sloped[:, None].astype(float) + Ball(n.rad)

    line = z0 * half[:, None]
    first = Ball.choose(
        sloped[:, None, None],
        line[:, :, None] * line[:, None],
        ball.square()[:, None, None] * (np.eye(d) - 1 / Ball(float(d))),
    )
    copy = (factor.square() * sloped.astype(float))[:, None, None] * Q_D
    boxed = off.sum(-1).mid / (np.sqrt(np.mean(at.gamma**2)) + 1e-300)
    t = weights(np.stack([size_of(first), size_of(copy), boxed]), 0)
    outer = at.gamma[:, None] * Ball(at.gamma)
    gram = sum_of([first * outer, copy * outer, box_gram(off)], t)
    return Norm(z, at, z0, rho, k, sloped, miss, half, most, delta, bend, ball, x_hat, n.mid, off, gram)


def scalars(size: Ball, a0: Ball, rho: Ball, met: Ball, r: Ball, d: int, tau: float) -> tuple[Ball, Ball, Ball]:
    """(A, B, delta): -A <= e <= B and |1 / sqrt(a) - rho| <= delta, for |z0 . D| <= met and |D| <= r.

    a is at least a_min, where D points against z0 and takes `fall` off its length. Nothing is subtracted that cancels.
    """
    lin, quad = 2 * met / d, r.square() / d
    least = size.lower()
    fall = Ball.choose(least > 0, smaller(met / Ball(np.where(least > 0, least, 1.0)), size), size)
    left = (size - fall).clamp_below(0.0)
    s = ((tau + left.square() / d) / a0).sqrt()
    x = fall * (size + left) / (a0 * d)
    y = (lin + quad) / a0
    t = (1 + y).sqrt()

    def above_tangent(x: Ball, s: Ball) -> Ball:
        """1 / s - 1 - x / 2 for s^2 = 1 - x, 1 / s - 1 + x / 2 for s^2 = 1 + x."""
        return x.square() * (2 + s) / (2 * s * (1 + s).square())

    A = rho * quad / (2 * a0)
    B = rho * largest(above_tangent(x, s), above_tangent(lin / a0, (1 + lin / a0).sqrt()))
    return A, B, rho * largest(x / (s * (1 + s)), y / (t * (1 + t)))
