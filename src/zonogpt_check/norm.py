"""LayerNorm over a set: gamma xi + beta, xi = (x - mean x) / sqrt(a), a = tau + |x - mean x|^2 / d.

z0 is the centred centre in floats, v = x - c, D = x - mean x - z0 = (v - mean v) + zeta with |zeta| <= `miss`. With
rho = a0^(-1/2), a0 = tau + |z0|^2 / d, k = rho / (d a0) and the linear map J v = rho (v - mean v) - k (z0 . v) z0,

    xi = z0 rho + J v + (z0 + D) e - k (z0 . D) D + rho zeta - k (z0 . zeta) z0,     -A <= e <= B
       = z0 rho + J v + z0 e + D (1 / sqrt(a) - rho) + rho zeta - k (z0 . zeta) z0

with e = 1 / sqrt(a) - rho + k (z0 . D): both are the same identity. The centre is moved by z0 `shift`, the middle of e,
and by `bend` = -k Q z0 / 2: for D in E(Q), (z0 . D) D lies in Q z0 / 2 + E(Q z0^T Q z0 / 4). And |xi| < sqrt(d) always.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zonogpt_check.ball import Array, Ball, largest, smaller
from zonogpt_check.certificate import Lines
from zonogpt_check.model import NormWeights
from zonogpt_check.sets import Set, box_gram, cover, dual, lambda_max, sum_of, support


class Norm:
    """For every x of the set z:  LN(x) = n0 + (x - c) @ J + e,  e in E(gram),  and |LN(x) - n0| <= reach.

    Where not `sloped` (S,), J = 0 and only the range |xi| <= ball is used. `flat` (rows, S) says for which rows of the
    claim only the range is used on their way back.
    """

    def __init__(self, at: NormWeights, z: Set, lines: Lines, rows: int) -> None:
        S, d = z.c.shape
        self.z, self.gamma, middle = z, at.gamma, Ball(z.c).centred()
        self.z0, self.miss = z0, miss = Ball(middle.mid), Ball(middle.rad)  # (S, d)
        size, tangents = z0.length(), Ball(z.G).centred()
        a0 = at.tau + size.square() / d
        self.rho = rho = 1 / a0.sqrt()  # (S,), as all scalars
        self.k = k = rho / (a0 * d)
        Q = Ball(z.Q).centred().T.centred()
        # |z0 . D| <= met and |D| <= r
        met = dual((tangents * z0[:, None]).sum(-1), z.p, -1) + support(Q, z0[:, None])[:, 0] + size * miss.length()
        covered = cover(tangents, z.p, lines.round_("symbols", z.p, S))
        Q_D = sum_of([covered, Q, box_gram(miss)], lines.positive("t_deviation", 3, S))
        r = lambda_max(Q_D).sqrt()
        A, B, delta = scalars(size, a0, rho, met, r, d, at.tau)

        self.sloped, polar, self.flat = lines.flags("sloped", S), lines.flags("polar", S), lines.flags("flat", rows, S)
        shift, kept, nothing = Ball(lines.floats("shift", S)), self.sloped.astype(float), Ball(np.zeros((S, d)))
        self.half = lines.at_least("half", largest(A + shift, B - shift))  # |e - shift|
        self.largest = lines.at_least("largest", largest(A, B))  # |e|
        self.delta = lines.at_least("delta", delta)  # |1 / sqrt(a) - rho|
        self.bend = Ball.choose(polar[:, None], -(k / 2)[:, None] * (Q_D @ z0[..., None])[..., 0], nothing)
        factor = Ball.choose(polar, self.largest + k / 2 * support(Q_D, z0[:, None])[:, 0], self.delta)
        far = Ball((size + r).upper())
        self.ball = far / (at.tau + far.square() / d).sqrt()  # |xi|, which grows with far
        self.x_hat = Ball.choose(self.sloped[:, None], z0 * (rho + shift)[:, None] + self.bend, nothing)  # xi's centre
        n = self.x_hat * at.gamma + at.beta
        slack = rho[:, None] * miss + (k * (abs(z0) * miss).sum(-1))[:, None] * abs(z0)
        self.n0, self.off = n.mid, abs(slack * at.gamma) * kept[:, None] + Ball(n.rad)  # what n0 misses, and zeta

        mean_free, line = np.eye(d) - 1 / Ball(float(d)), z0 * self.half[:, None]
        along = k[:, None, None] * z0.centred()[:, :, None] * z0[:, None]
        self.J = (rho[:, None, None] * mean_free - along) * at.gamma * kept[:, None, None]  # (S, d, d), for rows v
        flat = self.ball.square()[:, None, None] * mean_free
        first = Ball.choose(self.sloped[:, None, None], line[:, :, None] * line[:, None], flat)
        copy = (factor.square() * kept)[:, None, None] * Q_D
        outer = at.gamma[:, None] * Ball(at.gamma)
        self.gram = sum_of([first * outer, copy * outer, box_gram(self.off)], lines.positive("t_error", 3, S))
        self.reach = (z.radius()[:, None] @ abs(self.J))[:, 0] + self.gram.diagonal().sqrt()

    def pull(self, functionals: Array, rows: NDArray[np.int64]) -> tuple[Ball, Ball]:
        """Functionals (K, S, d) of the output, for these rows of the claim, as functionals of the input; and the most
        that they fall below J's part."""
        before, error, _, range_ = self._enclosures(functionals)
        flat = self.flat[rows] | ~self.sloped
        kept = Ball.choose(flat[..., None], Ball(np.zeros(functionals.shape)), before)
        return kept, Ball.choose(flat, range_, error).sum(-1)

    def fall(self, functionals: Array) -> Ball:
        """(K,): the most that functionals can fall below their value at n0."""
        _, error, linear, range_ = self._enclosures(functionals)
        return Ball.choose(np.broadcast_to(self.sloped, error.shape), smaller(error + linear, range_), range_).sum(-1)

    def _enclosures(self, functionals: Array) -> tuple[Ball, Ball, Ball, Ball]:
        """The functional before LayerNorm, and per token: the error with slope, J's own part, all of it without."""
        z, raw = self.z, Ball(functionals) * self.gamma  # (K, S, d), of xi
        w, g, Q, G = raw.centred(), self.z0.centred(), Ball(z.Q), Ball(z.G)

        def extent(of_w: Ball, of_g: Ball) -> Ball:
            """The largest of_w (w . v) + of_g (z0 . v), (K, S)."""
            form = (of_w[..., None] * w + of_g[..., None] * g).swap(0, 1)  # (S, K, d)
            return (dual(form @ G.T, z.p, -1) + support(Q, form)).swap(0, 1)

        one, none = (Ball(np.full(w.shape[:-1], x)) for x in (1.0, 0.0))
        of_w = extent(one, none) + (abs(raw) * self.miss).sum(-1)
        of_g = extent(none, one).mid + 1e-30
        s = np.sqrt((of_w.mid + 1e-30) / of_g)  # any s > 0: (g.D)(w.D) <= ((s g + w / s).D)^2 / 4
        of_zeta = ((abs(raw) / s[..., None] + abs(self.z0) * s[..., None]) * self.miss).sum(-1)
        both = extent(1 / Ball(s), Ball(s)) + of_zeta
        along, lost = (raw * self.z0).sum(-1), (Ball(np.abs(functionals)) * self.off).sum(-1)
        product = smaller(self.k / 4 * both.square() + self.largest * of_w, self.delta * of_w)
        error = abs(along) * self.half + product + (raw * self.bend).sum(-1) + lost
        before = self.rho[:, None] * w - (self.k * along)[..., None] * g
        linear = self.rho * extent(one, -along * self.k / self.rho)
        return before, error, linear, self.ball * w.length() + (raw * self.x_hat).sum(-1) + lost


def scalars(size: Ball, a0: Ball, rho: Ball, met: Ball, r: Ball, d: int, tau: float) -> tuple[Ball, Ball, Ball]:
    """(A, B, delta): -A <= e <= B and |1 / sqrt(a) - rho| <= delta, for |z0 . D| <= met and |D| <= r.

    a is at least a_min, where D points against z0 and shortens it by `fall`. No subtraction here cancels.
    """
    lin, quad, least = 2 * met / d, r.square() / d, size.lower()
    fall = Ball.choose(least > 0, smaller(met / Ball(np.where(least > 0, least, 1.0)), size), size)
    left = largest(size - fall, Ball(np.zeros(size.shape)))
    s = ((tau + Ball(np.maximum(left.lower(), 0.0)).square() / d) / a0).sqrt()  # all bounds fall with s: low, not 0
    x, y = fall * (size + left) / (a0 * d), (lin + quad) / a0
    t = (1 + y).sqrt()

    def above_tangent(x: Ball, s: Ball) -> Ball:
        """1 / s - 1 - x / 2 for s^2 = 1 - x, 1 / s - 1 + x / 2 for s^2 = 1 + x."""
        return x.square() * (2 + s) / (2 * s * (1 + s).square())

    A = rho * quad / (2 * a0)
    B = rho * largest(above_tangent(x, s), above_tangent(lin / a0, (1 + lin / a0).sqrt()))
    return A, B, rho * largest(x / (s * (1 + s)), y / (t * (1 + t)))
