"""The MLP block over a set: x + g(W_1 LN(x) + b_1) W_2 + b_2, with g replaced by slope t + mid +- half."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from zonogpt_check.ball import Array, Ball, joined, largest, smallest
from zonogpt_check.certificate import Lines
from zonogpt_check.model import Block
from zonogpt_check.norm import Norm, norm_step
from zonogpt_check.sets import Set, box_gram, covers, dual, image, sum_of, support

PIECES = 16
# Wide enough for the constants as reals and as floats.
K0, K1 = Ball(math.sqrt(2 / math.pi), 4e-16), Ball(0.044715, 1e-17)


@dataclass(frozen=True)
class MlpStep:
    block: Block
    norm: Norm
    slope: Array  # (S, f)
    half: Ball
    box: Ball  # (S, d)

    TAKEN = ("layernorm", "gelu", "rounding")

    def pull(self, functionals: Array) -> tuple[Ball, list[Ball]]:
        """As in AttentionStep."""
        hidden = Ball(functionals) @ self.block.outer.T  # (R, S, f)
        gelu = (abs(hidden) * self.half).sum(-1).sum(-1)
        branch = (hidden * self.slope) @ self.block.inner.T
        settled = (Ball(branch.rad) * self.norm.reach).sum(-1).sum(-1)
        before, norm = self.norm.pull(branch.mid)
        rounding = (Ball(np.abs(functionals)) * self.box).sum(-1).sum(-1) + settled
        return before + functionals, [norm, gelu, rounding]


def mlp_step(block: Block, z: Set, lines: Lines) -> tuple[Set, MlpStep]:
    (S, d), f = z.c.shape, block.inner.shape[1]
    norm = norm_step(block.norm, z, lines.of("norm"))
    merged = sum_of([image(Ball(z.Q), norm.J), norm.gram])
    t0 = Ball(norm.n0) @ block.inner + block.inner_bias
    moved = joined([dual(Ball(z.G[s]) @ norm.J[s] @ block.inner, z.p, 0)[None] for s in range(S)], 0)
    radius = lines.at_least("radius", moved + support(merged, Ball(block.inner.T)) + Ball(t0.rad))
    slope, mid = lines.floats("slope", S, f), lines.floats("mid", S, f)
    half = lines.at_least("half", strays(Ball(t0.mid) - radius, Ball(t0.mid) + radius, slope, mid))

    c = z.c + (slope * Ball(t0.mid) + mid) @ block.outer + block.outer_bias
    claimed, Q = lines.floats("c", S, d), lines.gram("Q", S, d)
    off = (np.abs(slope) * Ball(t0.rad)) @ np.abs(block.outer)
    t, t_box = lines.positive("t", 4, S), lines.positive("t_box", S, f)
    G, boxes, held = np.empty_like(z.G), [], []
    for s in range(S):
        chain = (Ball(block.inner) * slope[s]) @ block.outer
        whole = norm.J[s] @ chain + np.eye(d)
        moved_G = Ball(z.G[s]) @ whole
        G[s] = moved_G.mid
        box = abs(c[s] - claimed[s]) + off[s] + dual(Ball(moved_G.rad), z.p, 0)
        fresh = Ball(t_box[s]).sum(0) * (block.outer.T @ ((half[s].square() / t_box[s])[:, None] * block.outer))
        parts = [image(Ball(z.Q[s]), whole), image(norm.gram[s], chain), fresh, box_gram(box)]
        held.append(covers(Q[s], sum_of(parts, t[:, s])))
        boxes.append(box[None])
    lines.require("Q", np.array(held), "does not contain what it should")
    return Set(claimed, G, Q, z.p), MlpStep(block, norm, slope, half, joined(boxes, 0))


def strays(low: Ball, high: Ball, slope: Array, mid: Array) -> Ball:
    """Bounds |g(t) - slope t - mid| over [low, high]: by chords of pieces and g's curvature, and by g's gap to ReLU."""
    a, b = low.lower(), high.upper()
    residual_low, residual_high = Ball(np.full(a.shape, np.inf)), Ball(np.full(a.shape, -np.inf))
    ends = [a + (b - a) * (k / PIECES) for k in range(PIECES)] + [b]
    q = [gelu(Ball(t)) - slope * Ball(t) - mid for t in ends]
    for k in range(PIECES):
        left, right = ends[k], ends[k + 1]
        bend_low, bend_high = curvature(left, right)
        w2 = (Ball(right) - left).square() / 8  # a function with g'' in [l, u] leaves its chord by [-u w2, -l w2]
        down = smallest(q[k], q[k + 1]) - np.maximum(bend_high.upper(), 0) * w2
        up = largest(q[k], q[k + 1]) - np.minimum(bend_low.lower(), 0) * w2
        residual_low = down if k == 0 else smallest(residual_low, down)
        residual_high = up if k == 0 else largest(residual_high, up)
    at_ends = [
        np.maximum(t, 0) - slope * Ball(t) - mid for t in (a, b)
    ]  # ReLU - slope t is convex: least at 0, or there
    at_zero = Ball.choose((a < 0) & (b > 0), Ball(-mid), at_ends[0])
    residual_low = largest(residual_low, smallest(*at_ends, at_zero) - gelu_gap())
    residual_high = smallest(residual_high, largest(*at_ends))
    return largest(residual_high, -residual_low, Ball(np.zeros(a.shape)))


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
