"""The MLP block over a set: x + g(W_1 LN(x) + b_1) W_2 + b_2, with g replaced by slope t + mid +- half."""

from __future__ import annotations

import functools
import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from zonogpt_check.ball import Array, Ball, joined, largest, smallest
from zonogpt_check.certificate import Lines
from zonogpt_check.model import Block, Model
from zonogpt_check.norm import Norm
from zonogpt_check.sets import Set, box_gram, covers, dual, image, over, sum_of, support

PIECES = 16
# Wide enough for the constants as reals and as floats.
K0, K1 = Ball(math.sqrt(2 / math.pi), 4e-16), Ball(0.044715, 1e-17)


class Mlp:
    """`after` contains the block's output for every x of z."""

    LOSSES = ("layernorm", "gelu", "rounding")

    def __init__(self, model: Model, block: Block, z: Set, lines: Lines, rows: int) -> None:
        (S, d), f = z.c.shape, block.inner.shape[1]
        self.block = block
        self.norm = norm = Norm(block.norm, z, lines.of("norm"), rows)
        merged = sum_of([image(Ball(z.Q), norm.J), norm.gram], lines.positive("t_merged", 2, S))
        centre = Ball(norm.n0) @ block.inner + block.inner_bias
        t0, off = Ball(centre.mid), Ball(centre.rad)
        moved = joined([dual(Ball(z.G[s]) @ norm.J[s] @ block.inner, z.p, 0)[None] for s in range(S)], 0)
        radius = lines.at_least("radius", moved + support(merged, Ball(block.inner.T)) + off)
        slope, mid = lines.floats("slope", S, f), lines.floats("mid", S, f)
        self.slope, self.half = slope, lines.at_least("half", strays(t0 - radius, t0 + radius, slope, mid))

        c = z.c + (slope * t0 + mid) @ block.outer + block.outer_bias
        claimed, Q, G = lines.floats("c", S, d), lines.gram("Q", S, d), np.empty_like(z.G)
        missed = abs(c - claimed) + (np.abs(slope) * off) @ np.abs(block.outer)
        t, t_box = lines.positive("t", 4, S), lines.positive("t_box", S, f)
        boxes, held = [], []
        for s in range(S):
            chain = (Ball(block.inner) * slope[s]) @ block.outer
            whole = norm.J[s] @ chain + np.eye(d)
            symbols = Ball(z.G[s]) @ whole
            G[s], box = symbols.mid, missed[s] + dual(Ball(symbols.rad), z.p, 0)
            scaled = (self.half[s].square() / t_box[s])[:, None] * block.outer
            fresh = Ball(t_box[s]).sum(0) * (block.outer.T @ scaled)
            parts = [image(Ball(z.Q[s]), whole), image(norm.gram[s], chain), fresh, box_gram(box)]
            held.append(covers(Q[s], sum_of(parts, t[:, s])))
            boxes.append(box[None])
        lines.require("Q", np.array(held), "does not contain what it should")
        self.after, self.box = Set(claimed, G, Q, z.p), joined(boxes, 0)

    def pull(self, functionals: Array, rows: NDArray[np.int64]) -> tuple[Ball, list[Ball]]:
        """As Attention.pull."""
        hidden = Ball(functionals) @ self.block.outer.T  # (R, S, f)
        branch = (hidden * self.slope) @ self.block.inner.T
        before, norm = self.norm.pull(branch.mid, rows)
        rounding = over(Ball(functionals), self.box) + over(Ball(branch.rad), self.norm.reach)
        return before + functionals, [norm, over(hidden, self.half), rounding]


def strays(low: Ball, high: Ball, slope: Array, mid: Array) -> Ball:
    """Bounds |g(t) - slope t - mid| over [low, high]: by chords of pieces and g's curvature, and by g's gap to ReLU."""
    a, b = low.lower(), high.upper()
    ends = [a + (b - a) * (k / PIECES) for k in range(PIECES)] + [b]
    q = [gelu(Ball(t)) - slope * Ball(t) - mid for t in ends]
    lows, highs = [], []
    for k, (left, right) in enumerate(pairwise(ends)):
        bend_low, bend_high = curvature(left, right)
        w2 = (Ball(right) - left).square() / 8  # a function with g'' in [l, u] leaves its chord by [-u w2, -l w2]
        lows.append(smallest(q[k], q[k + 1]) - np.maximum(bend_high.upper(), 0) * w2)
        highs.append(largest(q[k], q[k + 1]) - np.minimum(bend_low.lower(), 0) * w2)
    # ReLU - slope t is convex: largest at an end, least there or at 0.
    at_ends = [np.maximum(t, 0) - slope * Ball(t) - mid for t in (a, b)]
    at_zero = Ball.choose((a < 0) & (b > 0), Ball(-mid), at_ends[0])
    low = largest(smallest(*lows), smallest(*at_ends, at_zero) - gelu_gap())
    return largest(smallest(largest(*highs), largest(*at_ends)), -low, Ball(np.zeros(a.shape)))


def _h(t: Ball) -> Ball:
    return K0 * t * (1 + K1 * t.square())


def gelu(t: Ball) -> Ball:
    return t / 2 * (1 + _h(t).tanh())


def curvature(left: Array, right: Array) -> tuple[Ball, Ball]:
    """Bounds of g'' between the two: g'' = sech(h)^2 (P - N) is even; sech falls, P and N grow with |t|."""
    near = np.where(left * right <= 0, 0.0, np.minimum(np.abs(left), np.abs(right)))
    (s_near, P_near, N_near), (s_far, P_far, N_far) = (
        _parts(Ball(u)) for u in (near, np.maximum(np.abs(left), np.abs(right)))
    )
    low, high = P_near - N_far, P_far - N_near
    return smallest(low * s_near, low * s_far), largest(high * s_near, high * s_far)


def _parts(u: Ball) -> tuple[Ball, Ball, Ball]:
    h, square = _h(u), u.square()
    decay = (-2 * h).exp()
    N = u * h.tanh() * (K0 * (1 + 3 * K1 * square)).square()
    return 4 * decay / (1 + decay).square(), K0 * (1 + 6 * K1 * square), N


@functools.cache
def gelu_gap() -> float:
    """At least ReLU(t) - g(t) = |t| / (1 + e^(2 h(|t|))), everywhere: on pieces up to 8, and falling from there on."""
    t = np.linspace(0, 8, 8193)
    pieces = t[1:] / (1 + (2 * _h(Ball(t[:-1]))).exp())
    beyond = 8 * (-2 * _h(Ball(8.0))).exp()
    return float(max(pieces.upper().max(), beyond.upper()))
