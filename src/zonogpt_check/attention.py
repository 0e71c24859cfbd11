"""The attention block over a set: x + concat_h(sum_j p_j v_j) W_o + b_o, linearised at LayerNorm's centre n0.

Axes: H heads, i queries, j or s keys, m symbols, e features of a head. From LayerNorm's output on, everything is linear
but scores, softmax and the products of probabilities with values. Queries, keys, values and scores at n0 are plain
floats; their error is part of their change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zonogpt_check.ball import Array, Ball, smaller
from zonogpt_check.certificate import Lines
from zonogpt_check.model import Block, Model
from zonogpt_check.norm import Norm
from zonogpt_check.sets import Set, box_gram, cover, covers, dual, image, lambda_max, longest, over, sum_of, support
from zonogpt_check.softmax import Softmax, error_scores


class Attention:
    """`after` contains the block's output for every x of z."""

    LOSSES = ("layernorm", "scores", "softmax", "product", "rounding")

    def __init__(self, model: Model, block: Block, z: Set, lines: Lines, rows: int) -> None:
        (S, d), heads = z.c.shape, model.heads
        e, self.block = d // heads, block
        self.norm = norm = Norm(block.norm, z, lines.of("norm"), rows)
        self.scale = scale = 1 / Ball(float(e)).sqrt()
        self.hidden = hidden = ~np.tril(np.ones((S, S), bool))
        seen = 1.0 - hidden
        self.qkv = np.split(block.inner, 3, axis=1)
        w_q, w_k, w_v = w = [Ball(part).reshape(d, heads, e).swap(0, 1) for part in self.qkv]  # (H, d, e)
        centre = Ball(norm.n0) @ block.inner + block.inner_bias
        at = [split(centre[:, first : first + d], heads) for first in (0, d, 2 * d)]
        (Q, K, V), (off_Q, off_K, off_V) = (Ball(x.mid) for x in at), (Ball(x.rad) for x in at)
        U = Q @ K.T * scale
        U, off_U = Ball(U.mid), Ball(U.rad)
        top = np.where(hidden, -np.inf, U.mid).max(-1)[..., None]
        U = Ball.choose(hidden, Ball(top + np.zeros(U.shape)), U)  # masked: any number that overflows nothing
        log_P = U - top - ((U - top).exp() * seen).sum(-1).log()[..., None]
        P = log_P.exp() * seen
        self.Q, self.K, self.V, self.P, self.O = Q, K, V, P, P @ V  # (H, S, e), P (H, i, j), O (H, i, e)

        # The images of symbols and errors in queries, keys, values and centred scores.
        T = Ball(z.G) @ norm.J  # (S, m, d)
        T_Q, T_K, T_V = (T @ part[:, None] for part in w)  # (H, S, m, e)
        T_U = (T_Q @ K[:, None].T + (T_K @ Q[:, None].T).transpose(0, 3, 2, 1)) * scale  # (H, i, m, j)
        T_U = (T_U - T_U @ P[..., None]) * seen[:, None]
        merged = sum_of(
            [image(Ball(z.Q), norm.J), norm.gram], lines.positive("t_merged", 2, S)
        )  # at LayerNorm's output, every token's error
        QQ, KK, VV = (image(merged, part[:, None]) for part in w)  # (H, S, e, e)
        keys = Q @ w_k.T  # (H, i, d): Q_i . (change of key s) = keys_i . (change of token s)
        by_errors, score_gram = error_scores(P, seen, keys, K, w_q, merged, scale, lines)
        nothing = Ball(np.zeros(P.shape))
        linear = Ball.choose(hidden, nothing, dual(T_U, z.p, -2) + by_errors)
        moving = (T_Q, QQ, off_Q), (T_K, KK, off_K)
        change = [dual(t, z.p, -2) + g.diagonal().sqrt() + off for t, g, off in moving]
        length = [longest(t, z.p) + lambda_max(g).sqrt() + off.length() for t, g, off in moving]
        products = smaller(change[0] @ change[1].T, length[0][..., None] * length[1][..., None, :])
        products = (products + abs(Q) @ off_K.T + off_Q @ abs(K).T) * scale + off_U
        R_U = lines.at_least("R_U", Ball.choose(hidden, nothing, products))
        covered = cover(T_U, z.p, lines.round_("scores", z.p, heads, S))
        score_gram = sum_of([covered, score_gram], lines.positive("t_scores", 2, heads, S))
        self.softmax = s = Softmax(log_P, P, seen, linear, R_U, score_gram, lines)

        # The output: centre, symbols, and all errors.
        values = V[:, None] - self.O[:, :, None]  # v'_j, (H, i, j, e)
        bent = s.slope[..., None] * values
        bent = bent - P[..., None, :] @ bent
        c = z.c + join(self.O + (s.shift[..., None, :] @ values)[..., 0, :]) @ block.outer + block.outer_bias
        heads_G = T_U @ (P[..., None] * bent) + (P @ T_V.transpose(0, 2, 1, 3).swap(0, 1)).transpose(1, 2, 0, 3)
        G = z.G + heads_G.transpose(1, 2, 0, 3).reshape(S, -1, d) @ block.outer
        covered = cover(T_V, z.p, lines.round_("values", z.p, heads, S))
        self.value_gram = sum_of(
            [covered, VV], lines.positive("t_values", 2, heads, S)
        )  # (H, j, e, e): contains the change of value j
        self.product_gram = s.products(score_gram, self.value_gram)  # (H, i, e, e)
        local = sum_of([s.cover(values), self.product_gram], lines.positive("t_fresh", 2, heads, S))
        claimed = lines.floats("c", S, d)
        off = join((P + s.total) @ off_V) @ np.abs(block.outer)
        self.box = abs(c - claimed) + dual(Ball(G.rad), z.p, 1) + off  # (S, d): what else the output misses
        self.after = Set(claimed, G.mid, lines.gram("Q", S, d), z.p)
        t_own, t_local = lines.positive("t_own", 3, S), lines.positive("t_local", heads, S)
        t_crossed = lines.positive("t_crossed", S, S)

        def error_of(i: int) -> Ball:
            """The Minkowski sum of all errors that reach token i: its own, old and new, and those of tokens before."""
            b = bent[:, i] * (P[:, i] * scale)[..., None]  # (H, s, e)
            maps = [spread(P[:, i, token], b[:, token], keys[:, i], w_v) for token in range(i + 1)]
            by_query = w_q @ ((K * (P[:, i] * scale)[..., None]).T @ bent[:, i])  # (H, d, e): through its own query
            mine = (maps[i] + join(by_query)) @ block.outer
            inner = block_diagonal(local[:, i] / t_local[:, i, None, None])  # before W_o
            for token in range(i):
                inner = inner + image(merged[token], maps[token]) / t_crossed[i, token]
            out = image(inner, Ball(block.outer)) + image(Ball(z.Q[i]), norm.J[i] @ mine + np.eye(d)) / t_own[0, i]
            out = out + image(norm.gram[i], mine) / t_own[1, i] + box_gram(self.box[i]) / t_own[2, i]
            return out * Ball(np.concatenate([t_own[:, i], t_local[:, i], t_crossed[i, :i]])).sum(0)

        held = [covers(self.after.Q[i], error_of(i)) for i in range(S)]
        lines.require("Q", np.array(held), "does not contain what it should")

    def pull(self, functionals: Array, rows: NDArray[np.int64]) -> tuple[Ball, list[Ball]]:
        """Functionals (R, S, d) of the output, for these rows of the claim, as functionals of the input; and what they
        lose, as in LOSSES."""
        s, P = self.softmax, self.P
        w = split(Ball(functionals) @ self.block.outer.T, len(P.mid))  # (R, H, i, e)
        along = w @ self.V.T - (w * self.O).sum(-1)[..., None]  # w . v'_j, (R, H, i, j)
        row = (s.error * abs(along)).sum(-1) + abs((s.common * along).sum(-1))
        falls = Ball(np.where(self.hidden, 0.0, np.maximum((-along).upper(), 0.0)).max(-1))
        row = Ball.choose(np.broadcast_to(s.sloped, row.shape), row, smaller(row, falls))
        by_head = w.transpose(1, 2, 0, 3)  # (H, i, R, e)
        apart = (support(self.value_gram[:, None], by_head[:, :, None]) * s.total[..., None]).sum(2)  # (H, i, R)
        product = smaller(apart, support(self.product_gram, by_head)).transpose(2, 0, 1)
        scores = (s.scores * abs(along)).sum(-1)

        sloped = s.slope * along
        by_score = P * (sloped - (P * sloped).sum(-1)[..., None]) * self.scale
        to_Q, to_K, to_V = (join(x) for x in (by_score @ self.K, by_score.T @ self.Q, P.T @ w))
        branch = to_Q @ self.qkv[0].T + to_K @ self.qkv[1].T + to_V @ self.qkv[2].T
        before, norm = self.norm.pull(branch.mid, rows)
        rounding = over(Ball(functionals), self.box) + over(Ball(branch.rad), self.norm.reach)
        return before + functionals, [norm, *(x.sum(-1).sum(-1) for x in (scores, row, product)), rounding]


def split(x: Ball, heads: int) -> Ball:
    """(..., S, H e) -> (..., H, S, e)."""
    return x.reshape(*x.shape[:-1], heads, -1).swap(-2, -3)


def join(x: Ball) -> Ball:
    x = x.swap(-2, -3)
    return x.reshape(*x.shape[:-2], -1)


def spread(P: Ball, b: Ball, keys: Ball, w_v: Ball) -> Ball:
    """(d, H e): a token's change moves head h of a query by P^h W_v^h, and by its key through b^h."""
    return join(w_v * P[:, None, None] + keys[..., None] * b[:, None])


def block_diagonal(blocks: Ball) -> Ball:
    """(H, e, e) -> (H e, H e)."""
    H, e, _ = blocks.shape
    return (np.eye(H)[:, None, :, None] * blocks[:, :, None]).reshape(H * e, H * e)
