"""The attention block over a set: x + concat_h(sum_j p_j v_j) W_o + b_o, linearised at LayerNorm's centre n0.

Axes: H heads, i queries, j or s keys, m symbols, e features of a head. Everything from LayerNorm's output on is linear
but scores, softmax and the products of probabilities with values. Queries, keys and values at n0 are plain floats; how
far they are off is part of their change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zonogpt_check.ball import Array, Ball
from zonogpt_check.certificate import Lines
from zonogpt_check.model import Block
from zonogpt_check.norm import Norm, norm_step
from zonogpt_check.sets import (
    Set,
    box_gram,
    cover,
    covers,
    diagonal,
    dual,
    image,
    largest_eigenvalue,
    length,
    longest,
    size_of,
    smaller,
    sum_of,
    support,
    weights,
)
from zonogpt_check.softmax import Softmax, softmax_step


@dataclass(frozen=True)
class AttentionStep:
    block: Block
    norm: Norm
    K: Array  # (H, S, e)
    Q: Array
    V: Array
    P: Ball  # (H, i, j)
    O: Ball  # noqa: E741  (H, i, e)
    scale: Ball
    hidden: NDArray[np.bool_]
    softmax: Softmax
    value_gram: Ball  # (H, j, e, e): contains the change of value j
    product_gram: Ball  # (H, i, e, e): contains sum_j (p_j - P_j) (change of value j)
    box: Ball  # (S, d): what the output misses besides

    TAKEN = ("layernorm", "scores", "softmax", "product", "rounding")

    def pull(self, functionals: Array) -> tuple[Ball, list[Ball]]:
        """Functionals (R, S, d) of the output as ones of the input, and what they lose, as in TAKEN."""
        s = self.softmax
        w = split(Ball(functionals) @ self.block.outer.T, len(self.V))  # (R, H, i, e)
        along = w @ Ball(self.V).T - (w * self.O).sum(-1)[..., None]  # w . v'_j, (R, H, i, j)
        row = (s.error * abs(along)).sum(-1) + abs((s.common * along).sum(-1))
        falls = Ball(np.where(self.hidden, 0.0, np.maximum((-along).upper(), 0.0)).max(-1))
        row = Ball.choose(np.broadcast_to(s.sloped, row.shape), row, smaller(row, falls))
        scores = (s.scores * abs(along)).sum(-1)
        by_head = w.transpose(1, 2, 0, 3)  # (H, i, R, e)
        apart = support(self.value_gram[:, None], by_head[:, :, None])  # (H, i, j, R)
        apart = (apart * s.total[..., None]).sum(2)  # (H, i, R)
        product = smaller(apart, support(self.product_gram, by_head)).transpose(2, 0, 1)

        sloped = s.slope * along
        by_score = self.P * (sloped - (self.P * sloped).sum(-1)[..., None]) * self.scale
        parts = [by_score @ Ball(self.K), by_score.T @ Ball(self.Q), self.P.T @ w]
        qkv = np.split(self.block.inner, 3, axis=1)
        branch = sum((join(x) @ m.T for x, m in zip(parts[1:], qkv[1:], strict=True)), start=join(parts[0]) @ qkv[0].T)
        settled = (Ball(branch.rad) * self.norm.reach).sum(-1).sum(-1)
        before, norm = self.norm.pull(branch.mid)
        rounding = (Ball(np.abs(functionals)) * self.box).sum(-1).sum(-1) + settled
        losses = [norm, *(x.sum(-1).sum(-1) for x in (scores, row, product)), rounding]
        return before + functionals, losses


def split(x: Ball, heads: int) -> Ball:
    """(..., S, H e) -> (..., H, S, e)."""
    return x.reshape(*x.shape[:-1], heads, -1).swap(-2, -3)


def join(x: Ball) -> Ball:
    x = x.swap(-2, -3)
    return x.reshape(*x.shape[:-2], -1)


def attention_step(block: Block, heads: int, z: Set, lines: Lines) -> tuple[Set, AttentionStep]:
    S, d = z.c.shape
    e = d // heads
    norm = norm_step(block.norm, z, lines.of("norm"))
    scale = 1 / Ball(float(e)).sqrt()
    hidden = ~np.tril(np.ones((S, S), bool))
    seen = 1.0 - hidden
    w_q, w_k, w_v = (Ball(w).reshape(d, heads, e).swap(0, 1) for w in np.split(block.inner, 3, axis=1))  # (H, d, e)
    centre = Ball(norm.n0) @ block.inner + block.inner_bias
    at = [split(part, heads) for part in (centre[:, :d], centre[:, d : 2 * d], centre[:, 2 * d :])]
    (Q, K, V), (off_Q, off_K, off_V) = (Ball(x.mid) for x in at), (Ball(x.rad) for x in at)
    U = Q @ K.T * scale
    top = np.where(hidden, -np.inf, U.mid).max(-1)[..., None]
    U = Ball.choose(hidden, Ball(top + np.zeros(U.shape)), U)  # masked: any number that overflows nothing
    log_P = U - top - ((U - top).exp() * seen).sum(-1).log()[..., None]
    P = log_P.exp() * seen
    O = P @ V  # noqa: E741

    # What symbols and errors do to queries, keys, values and centred scores.
    T = Ball(z.G) @ norm.J  # (S, m, d)
    T_Q, T_K, T_V = (T @ w[:, None] for w in (w_q, w_k, w_v))  # (H, S, m, e)
    T_U = T_Q @ K[:, None].T + (T_K @ Q[:, None].T).transpose(0, 3, 2, 1)  # (H, i, m, j)
    T_U = T_U * scale
    T_U = (T_U - T_U @ P[..., None]) * seen[:, None]
    old = image(Ball(z.Q), norm.J)
    merged = sum_of([old, norm.gram])  # at LayerNorm's output, every token's error
    QQ, KK, VV = (image(merged, w[:, None]) for w in (w_q, w_k, w_v))  # (H, S, e, e)
    keys = Q @ w_k.T  # (H, i, d): Q_i . (change of key s) = keys_i . (change of token s)
    own_radius, u, score_gram = error_scores(P, seen, keys, K, w_q, merged, scale)
    mean = (P * u).sum(-1)[..., None]
    others = u - P * u + mean - P * u  # (1 - P_j) u_j + sum_k!=j P_k u_k
    nothing = Ball(np.zeros(P.shape))
    linear = Ball.choose(hidden, nothing, dual(T_U, z.p, -2) + own_radius + others)
    changes = [dual(t, z.p, -2) + diagonal(g).sqrt() + off for t, g, off in ((T_Q, QQ, off_Q), (T_K, KK, off_K))]
    lengths = [
        longest(t, z.p) + largest_eigenvalue(g).sqrt() + length(off)
        for t, g, off in ((T_Q, QQ, off_Q), (T_K, KK, off_K))
    ]
    products = smaller(changes[0] @ changes[1].T, lengths[0][..., None] * lengths[1][..., None, :])
    products = (products + abs(Q) @ off_K.T + off_Q @ abs(K).T) * scale
    R_U = lines.at_least("R_U", Ball.choose(hidden, nothing, products))
    score_gram = row_sum(P, cover(T_U, z.p), score_gram)
    s = softmax_step(log_P, P, seen, linear, R_U, score_gram, lines)

    # The output: centre, symbols, and all errors.
    values = V[:, None] - O[:, :, None]  # v'_j, (H, i, j, e)
    bent = s.slope[..., None] * values
    bent = bent - P[..., None, :] @ bent
    c = z.c + join(O + (s.shift[..., None, :] @ values)[..., 0, :]) @ block.outer + block.outer_bias
    heads_G = T_U @ (P[..., None] * bent) + (P @ T_V.transpose(0, 2, 1, 3).swap(0, 1)).transpose(1, 2, 0, 3)
    G = z.G + heads_G.transpose(1, 2, 0, 3).reshape(S, -1, d) @ block.outer
    value_gram = sum_of([cover(T_V, z.p), VV])
    product = value_products(P, s, score_gram, value_gram)
    local = sum_of([softmax_cover(P, s, values), product])
    claimed = lines.floats("c", S, d)
    box = abs(c - claimed) + dual(Ball(G.rad), z.p, 1) + join((P + s.total) @ off_V) @ np.abs(block.outer)
    new = Set(claimed, G.mid, lines.gram("Q", S, d), z.p)
    own, t_local = lines.positive("t_own", 3, S), lines.positive("t_local", heads, S)
    t_crossed = lines.positive("t_crossed", S, S)
    VV_all = image(merged, Ball(np.split(block.inner, 3, axis=1)[2]))
    held = []
    for i in range(S):
        b = bent[:, i] * (P[:, i] * scale)[..., None]  # (H, s, e)
        mine = spread(P[:, i, i], b[:, i], keys[:, i], block) + by_query(P[:, i], K, bent[:, i], w_q, scale)
        mine = mine @ block.outer
        inner = block_diagonal(local[:, i] / t_local[:, i, None, None])
        for token in range(i):
            gram = crossed(P[:, i, token], b[:, token], keys[:, i], merged[token], VV_all[token], block)
            inner = inner + gram / t_crossed[i, token]
        with_skip = norm.J[i] @ mine + np.eye(d)
        out = image(inner, Ball(block.outer)) + image(Ball(z.Q[i]), with_skip) / own[0, i]
        out = out + image(norm.gram[i], mine) / own[1, i] + box_gram(box[i]) / own[2, i]
        total = Ball(np.concatenate([own[:, i], t_local[:, i], t_crossed[i, :i]])).sum(0)
        held.append(covers(new.Q[i], out * total))
    lines.require("Q", np.array(held), "does not contain what it should")
    return new, AttentionStep(block, norm, K.mid, Q.mid, V.mid, P, O, scale, hidden, s, value_gram, product, box)


def error_scores(
    P: Ball, seen: Array, keys: Ball, K: Ball, w_q: Ball, merged: Ball, scale: Ball
) -> tuple[Ball, Ball, Ball]:
    """Of the centred scores: the extent of the query's own token's error (H, i, j), that of every other key's (H, i, s)
    at its own score, and a Gram over the keys of a row for all of them together."""
    H, S, d = keys.shape
    extent = support(merged, keys.reshape(H * S, d)).T.reshape(H, S, S) * scale * seen  # Q_i . (key s) / sqrt(e)
    own = np.eye(S)
    u = extent * (1 - own)
    # The own token moves all scores through its query, and its own through its key.
    toward = (K[:, None] - (P @ K)[:, :, None]) @ w_q.T[:, None]  # (H, i, j, d)
    kept = own - (P * own).sum(-1)[..., None]  # (H, i, j)
    maps = (toward + kept[..., None] * keys[:, :, None]) * scale
    own_gram = maps @ merged @ maps.T * seen[:, None] * seen[..., None]
    # Any other moves its own by u_s (1 - P_s), the others by -P_s u_s.
    t = weights((P * u.square()).sqrt().mid, -1)
    arrow = (np.eye(S) - P[..., :, None]) * seen[:, None]  # (H, i, s, j)
    r = u.square() / t
    cross_gram = Ball(t).sum(-1)[..., None, None] * (arrow.T @ (r[..., None] * arrow))
    return diagonal(own_gram).sqrt(), u, row_sum(P, own_gram, cross_gram)


def row_sum(P: Ball, *grams: Ball) -> Ball:
    """The Minkowski sum of Grams over the keys of a row, weighted by P."""
    sizes = [np.sqrt(np.maximum((diagonal(Q) * P).sum(-1).mid, 0.0)) for Q in grams]
    return sum_of(list(grams), weights(np.stack(sizes), 0))


def softmax_cover(P: Ball, s: Softmax, values: Ball) -> Ball:
    """(H, i, e, e): contains sum_j (xi common_j + xi_j (error_j + scores_j)) v'_j; without a slope, sum_j p_j v'_j."""
    common = s.common[..., None, :] @ values
    size = s.error + s.scores
    t = weights(np.concatenate([(size * length(values)).mid, length(common).mid], -1), -1)
    scaled = values * (size / t[..., :-1])[..., None]
    box = (scaled * size[..., None]).T @ values + common.T @ common / t[..., -1:, None]
    box = Ball(t).sum(-1)[..., None, None] * box
    hull = (values * (P + s.total)[..., None]).T @ values
    return Ball.choose((~s.sloped & (size_of(hull) < size_of(box)))[..., None, None], hull, box)


def value_products(P: Ball, s: Softmax, score_gram: Ball, value_gram: Ball) -> Ball:
    """(H, i, e, e): (sum_j dp_j (w.dv_j))^2 <= (sum_j dp_j^2 / t_j) w^T (sum_j t_j Gram_j) w, for any t."""
    t = weights(s.total.mid, -1) / weights(size_of(value_gram), -1)[:, None]
    root = P / Ball(t).sqrt()
    linear = largest_eigenvalue(root[..., None] * score_gram * root[..., None, :]).sqrt()
    together = (linear + (s.residual.square() / t).sum(-1).sqrt()).square()
    factor = smaller((s.total.square() / t).sum(-1), together)
    H, S, e, _ = value_gram.shape
    return factor[..., None, None] * (t @ value_gram.reshape(H, S, e * e)).reshape(H, S, e, e)


def spread(P: Ball, b: Ball, keys: Ball, block: Block) -> Ball:
    """(d, H e): a token's change moves head h by P^h W_v^h, and by its key through b^h; for one query and token."""
    H, e = b.shape
    w_v = Ball(np.split(block.inner, 3, axis=1)[2]).reshape(-1, H, e)
    return (w_v * P[:, None] + keys.T[..., None] * b).reshape(-1, H * e)


def by_query(P: Ball, K: Ball, bent: Ball, w_q: Ball, scale: Ball) -> Ball:
    """(d, H e): what the query's own token does through the query; P (H, j), bent (H, j, e)."""
    maps = w_q @ ((K * (P * scale)[..., None]).T @ bent)  # (H, d, e)
    return maps.swap(0, 1).reshape(maps.shape[1], -1)


def crossed(P: Ball, b: Ball, keys: Ball, merged: Ball, VV: Ball, block: Block) -> Ball:
    """The image of another token's error under `spread`, from W_v^T merged W_v: O(H d^2) instead of O(d^3)."""
    H, e = b.shape
    repeated = (P[:, None] + np.zeros((1, e))).reshape(-1)  # (H e,)
    rows = (np.eye(H)[..., None] * b).reshape(H, H * e)  # b^h in block h of row h
    met = keys @ merged  # (H, d)
    mixed = (met @ np.split(block.inner, 3, axis=1)[2] * repeated).T @ rows
    return VV * repeated[:, None] * repeated + mixed + mixed.T + rows.T @ (met @ keys.T) @ rows


def block_diagonal(blocks: Ball) -> Ball:
    """(H, e, e) -> (H e, H e)."""
    H, e, _ = blocks.shape
    return (np.eye(H)[:, None, :, None] * blocks[:, :, None]).reshape(H * e, H * e)
