"""A softmax row whose scores move, exactly: with delta the change minus its P-mean and psi(t) = e^t - 1 - t,

    p_j = P_j e^(delta_j) / Z,   Z = 1 + sum_j P_j psi(delta_j),   zeta = 1 - 1 / Z in [0, 1)
    sum_j p_j v_j - y = sum_j P_j (delta_j + (1 - zeta) psi(delta_j) - zeta delta_j) (v_j - y),   y = sum_j P_j v_j

On |t| <= W, psi is replaced by chord t + middle, and zeta by half its bound. Arrays are (H, i, j): head, query, key.
"""

from __future__ import annotations

import numpy as np

from zonogpt_check.ball import Array, Ball, largest, smaller, smallest
from zonogpt_check.certificate import Lines
from zonogpt_check.sets import lambda_max, sum_of, support


class Softmax:
    """sum_j (p_j - P_j) v_j = sum_j (P_j slope_j delta_j + shift_j + xi common_j + xi_j (error_j + scores_j)) v'_j

    for |xi|, |xi_j| <= 1 and delta the part of the centred change that is linear. |p - P| <= total and
    |p - P - P delta| <= residual. Rows that are not `sloped` (H, i) have nothing but `error`.
    """

    def __init__(self, log_P: Ball, P: Ball, seen: Array, linear: Ball, R_U: Ball, gram: Ball, lines: Lines) -> None:
        """`linear` bounds the linear centred change, key by key, `gram` covers it for all keys of a row, `R_U` bounds
        the rest of the score change. `seen` is 1 for visible keys and 0 for masked ones, where everything is 0."""
        mean = (P * R_U).sum(-1)[..., None]
        visible, none = np.broadcast_to(seen > 0, P.shape), Ball(np.zeros(P.shape))
        rest = Ball.choose(visible, R_U + mean, none)
        W = lines.at_least("W", Ball.choose(visible, linear + rest, none))
        # Z - 1 = sum P psi(delta) <= sum (P phi(W) / 2) delta^2: key by key, and for all keys together.
        weight = (log_P + log_phi(W)).exp() / 2 * seen
        root = weight.sqrt()
        together = lambda_max(root[..., None] * gram * root[..., None, :]).sqrt() + (root * rest).length()
        excess = smaller((weight * W.square()).sum(-1), together.square())
        claim = lines.floats("zeta", *P.shape[:-1])
        excess = Ball.choose(claim == 1, Ball(np.zeros(claim.shape)), excess)  # 1 needs no proof
        found = (excess / (1 + excess)).upper()
        lines.require("zeta", (claim <= 1) & (claim >= found), "is too small", claim, found)
        half_zeta = Ball(claim / 2)[..., None]

        chord, middle, half = chord_of_psi(W)
        slope = 1 + (1 - half_zeta) * chord - half_zeta
        error = P * (half + half_zeta * (1 + chord) * W)
        scores = P * (abs(slope) * R_U + abs(slope - 1) * mean)
        range_ = deviation(log_P, P, W, seen)
        total = P * largest(W.expm1(), 2 * half_zeta * (-W).exp() - (-W).expm1())
        self.total = smaller(total, range_)
        self.residual = P * (largest(psi(W), 2 * half_zeta * (1 + W)) + rest)
        self.sloped, self.hull = lines.flags("rows", *P.shape[:-1]), lines.flags("hull", *P.shape[:-1])
        self.t_box = lines.positive("t_softmax", *P.shape[:-1], P.shape[-1] + 1)
        self.t_products = lines.positive("t_products", *P.shape)
        keep = np.broadcast_to(self.sloped[..., None], P.shape)
        self.slope, self.scores = Ball.choose(keep, slope, none), Ball.choose(keep, scores, none)
        self.shift = Ball.choose(keep, P * (1 - half_zeta) * middle, none)
        self.common = Ball.choose(keep, P * half_zeta * middle, none)
        self.error = Ball.choose(keep, error, range_)
        self.P, self.seen = P, seen

    def cover(self, values: Ball) -> Ball:
        """(H, i, e, e): contains sum_j (xi common_j + xi_j (error_j + scores_j)) v'_j; unsloped, sum_j p_j v'_j."""
        common, size, t = self.common[..., None, :] @ values, self.error + self.scores, self.t_box
        scaled = values * (size / t[..., :-1])[..., None]
        box = (scaled * size[..., None]).T @ values + common.T @ common / t[..., -1:, None]
        box = (Ball(t[..., :-1] * self.seen).sum(-1) + t[..., -1])[..., None, None] * box
        hull = (values * (self.P + self.total)[..., None]).T @ values
        return Ball.choose((self.hull & ~self.sloped)[..., None, None], hull, box)

    def products(self, score_gram: Ball, value_gram: Ball) -> Ball:
        """(H, i, e, e): contains sum_j dp_j dv_j, with dp_j = p_j - P_j and dv_j the change of value j:

        (sum_j dp_j (w.dv_j))^2 <= (sum_j dp_j^2 / t_j) w^T (sum_j t_j Gram_j) w, for any t.
        """
        t = self.t_products
        root = self.P / Ball(t).sqrt()
        linear = lambda_max(root[..., None] * score_gram * root[..., None, :]).sqrt()
        together = (linear + (self.residual.square() / t).sum(-1).sqrt()).square()
        factor = smaller((self.total.square() / t).sum(-1), together)
        H, S, e, _ = value_gram.shape
        return factor[..., None, None] * ((t * self.seen) @ value_gram.reshape(H, S, e * e)).reshape(H, S, e, e)


def error_scores(
    P: Ball, seen: Array, keys: Ball, K: Ball, w_q: Ball, merged: Ball, scale: Ball, lines: Lines
) -> tuple[Ball, Ball]:
    """The centred scores' change by all error ellipsoids: a bound for each (H, i, j), and a Gram over a row's keys."""
    H, S, d = keys.shape
    own = np.eye(S)
    extent = support(merged, keys.reshape(H * S, d)).T.reshape(H, S, S) * scale * seen  # Q_i . (key s) / sqrt(e)
    u = extent * (1 - own)
    # The own token moves all scores through its query, and its own through its key.
    toward = (K[:, None] - (P @ K)[:, :, None]) @ w_q.T[:, None]  # (H, i, j, d)
    kept = own - (P * own).sum(-1)[..., None]  # (H, i, j)
    maps = (toward + kept[..., None] * keys[:, :, None]) * scale
    own_gram = maps @ merged @ maps.T * seen[:, None] * seen[..., None]
    # Any other token s moves its own score by u_s (1 - P_s), the others by -P_s u_s.
    t = lines.positive("t_keys", H, S, S)
    arrow = (np.eye(S) - P[..., :, None]) * seen[:, None]  # (H, i, s, j)
    cross_gram = Ball(t * seen).sum(-1)[..., None, None] * (arrow.T @ ((u.square() / t)[..., None] * arrow))
    others = u - P * u + (P * u).sum(-1)[..., None] - P * u  # (1 - P_j) u_j + sum_k!=j P_k u_k
    return own_gram.diagonal().sqrt() + others, sum_of([own_gram, cross_gram], lines.positive("t_errors", 2, H, S))


def _series(t: Ball) -> Ball:
    """2 psi(t) / t^2 for |t| < 1/2: the first 14 terms of its series, of which the rest is below 1e-16."""
    out = Ball(np.ones(t.shape))
    for k in range(15, 2, -1):
        out = 1 + t / k * out
    return out * Ball(1.0, 1e-16)


def psi(t: Ball) -> Ball:
    near = np.abs(t.mid) + t.rad < 0.5
    small = Ball.choose(near, t, Ball(np.zeros(t.shape)))
    return Ball.choose(near, small.square() / 2 * _series(small), t.expm1() - t)


def chord_of_psi(W: Ball) -> tuple[Ball, Ball, Ball]:
    """(chord, middle, half): |psi(t) - chord t - middle| <= half for |t| <= W. chord and middle are plain floats.

    psi - chord t is convex: largest at an end, least where e^t = 1 + chord.
    """
    w = W.mid
    small = np.minimum(w, 0.5) ** 2
    series = small * (1 / 6 + small * (1 / 120 + small * (1 / 5040 + small / 362880)))
    chord = np.where(w < 0.5, series, np.sinh(w) / np.maximum(w, 0.5) - 1)
    high = largest(psi(W) - chord * W, psi(-W) + chord * W)
    low = chord - (1 + Ball(chord)) * Ball(chord).log1p()
    middle = Ball(((high + low) / 2).mid)
    return Ball(chord), middle, largest(high - middle, middle - low)


def log_phi(W: Ball) -> Ball:
    """log of 2 psi(W) / W^2, W >= 0; at most W, so that no exponential overflows."""
    near = W.upper() < 0.5
    small, big = Ball.choose(near, W, Ball(np.zeros(W.shape))), Ball.choose(near, Ball(np.ones(W.shape)), W)
    large = big + (1 - (1 + big) * (-big).exp()).log() + Ball(2.0).log() - 2 * big.log()
    return Ball.choose(near, _series(small).log(), large)


def deviation(log_P: Ball, P: Ball, W: Ball, seen: Array) -> Ball:
    """The exact range: p_j is largest where its own score rises by W_j and all others fall by theirs."""

    def fraction(own: Ball, others: Ball) -> Ball:
        """e^own_j / (e^own_j + sum_k!=j e^others_k), for the exponents of every key j."""
        theirs = others[..., None, :] + np.zeros((seen.shape[-1], 1))  # (H, i, j, k)
        top = np.maximum(own.mid, np.where(counted, theirs.mid, -np.inf).max(-1))
        theirs = Ball.choose(counted, theirs, Ball(top[..., None] + np.zeros(theirs.shape)))
        mine, rest = (own - top).exp(), ((theirs - top[..., None]).exp() * counted.astype(float)).sum(-1)
        return mine / (mine + rest)

    counted = np.broadcast_to((seen[:, None] > 0) & ~np.eye(seen.shape[-1], dtype=bool), (*P.shape, seen.shape[-1]))
    high, low = fraction(log_P + W, log_P - W), fraction(log_P - W, log_P + W)
    return smallest(largest(high - P, P - low), Ball(np.ones(P.shape))) * seen
