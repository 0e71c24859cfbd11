"""Affine bounds of the tanh form of GELU (paper, appendix "Affine GELU Transform").

    g(t) = t/2 (1 + tanh h(t)),   h(t) = sqrt(2/pi) (t + 0.044715 t^3)

On [low, high] the chord's slope a is kept and the residual g(t) - a t is enclosed in [mid - half, mid + half]:
piecewise linear interpolation with the curvature of each of 32 pieces, intersected with g = ReLU - (something in
[0, e_max]). Derivations: docs/math.md, section "GELU".
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

N_PIECES = 32
K0, K1 = math.sqrt(2 / math.pi), 0.044715


def gelu(t: Tensor) -> Tensor:
    return F.gelu(t, approximate="tanh")


def _h(t: Tensor) -> Tensor:
    return K0 * (t + K1 * t.pow(3))


def gelu_slope(t: Tensor) -> Tensor:
    """g'(t)."""
    tanh = torch.tanh(_h(t))
    return 0.5 * (1 + tanh) + 0.5 * t * (1 - tanh.square()) * K0 * (1 + 3 * K1 * t.square())


def curvature_range(t_low: Tensor, t_high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of g'' over [t_low, t_high], elementwise.

    g'' is even, g''(u) = sech(h)^2 (P(u) - N(u)) with P = h' + u h''/2 and N = u tanh(h) h'^2, where sech^2 falls and
    P and N grow with |u|. So the bracket lies in [P(near) - N(far), P(far) - N(near)] for the nearest and farthest |u|.
    """
    near = torch.where((t_low <= 0) & (t_high >= 0), torch.zeros_like(t_low), torch.minimum(t_low.abs(), t_high.abs()))
    far = torch.maximum(t_low.abs(), t_high.abs())
    (p_near, n_near, s_near), (p_far, n_far, s_far) = _curvature_parts(near), _curvature_parts(far)
    low, high = p_near - n_far, p_far - n_near
    # Outward for either sign: a positive bound is largest with sech^2 at the near end, a negative one with it too.
    return torch.where(low < 0, low * s_near, low * s_far), torch.where(high > 0, high * s_near, high * s_far)


def _curvature_parts(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h, slope = _h(u), K0 * (1 + 3 * K1 * u.square())
    half_bend = 3 * K0 * K1 * u.square()  # u h'' / 2
    return slope + half_bend, u * torch.tanh(h) * slope.square(), _sech2(h)


def _sech2(h: Tensor) -> Tensor:
    """sech(h)^2 for h >= 0 without the cancellation of 1 - tanh^2."""
    decay = torch.exp(-2 * h)
    return 4 * decay / (1 + decay).square()


@functools.cache
def relu_gap() -> float:
    """e_max with 0 <= ReLU(t) - g(t) <= e_max for every t, computed as the paper says, with an outward margin.

    |t| / (1 + exp(2 h(|t|))) is bounded on 8192 pieces of [0, 8] by (right end) / (1 + exp(2 h(left end))), and beyond
    8 by 8 exp(-2 h(8)). Relative margin 1e-12: thousands of roundings of float64.
    """
    t = torch.linspace(0, 8, 8193, dtype=torch.float64)
    pieces = t[1:] / (1 + torch.exp(2 * _h(t[:-1])))
    beyond = 8 * torch.exp(-2 * _h(t[-1]))
    return float(torch.maximum(pieces.max(), beyond)) * (1 + 1e-12)


def affine_gelu(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(slope, mid, half), elementwise, with |g(t) - slope t - mid| <= half for every t in [low, high]."""
    width = high - low
    wide = width > 0
    chord = (gelu(high) - gelu(low)) / torch.where(wide, width, torch.ones_like(width))
    slope = torch.where(wide, chord, gelu_slope(low))
    part_low, part_high = _interpolation_residual(low, high, slope)
    relu_low, relu_high = _relu_residual(low, high, slope)
    r_low, r_high = torch.maximum(part_low, relu_low), torch.minimum(part_high, relu_high)
    mid, half = (r_low + r_high) / 2, (r_high - r_low) / 2
    # Rounding of g, of slope * t and of the halving: 16 units of the largest number involved, outward.
    size = torch.maximum(low.abs(), high.abs()) * (1 + slope.abs())
    return slope, mid, half.clamp(min=0) + 16 * torch.finfo(low.dtype).eps * size


def _nodes(low: Tensor, high: Tensor) -> Tensor:
    """(33, ...): the ends of 32 pieces; neighbours share an end, so they leave no gap."""
    at = torch.arange(N_PIECES + 1, dtype=low.dtype, device=low.device) / N_PIECES
    nodes = low + at.reshape(-1, *[1] * low.dim()) * (high - low)
    nodes[-1] = high
    return nodes


def _interpolation_residual(low: Tensor, high: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of g(t) - slope t from its values at 33 nodes and the signed curvature between them."""
    nodes = _nodes(low, high)
    q = gelu(nodes) - slope * nodes
    bend_low, bend_high = curvature_range(nodes[:-1], nodes[1:])
    # A function with second derivative in [l, u] leaves its chord by [-u w^2/8, -l w^2/8].
    w2 = (nodes[1:] - nodes[:-1]).square() / 8
    r_low = torch.minimum(q[:-1], q[1:]) - bend_high.clamp(min=0) * w2
    r_high = torch.maximum(q[:-1], q[1:]) - bend_low.clamp(max=0) * w2
    return r_low.amin(0), r_high.amax(0)


def _relu_residual(low: Tensor, high: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of g(t) - slope t from g = ReLU - [0, e_max]; ReLU - slope t is convex: only its minimum may be at 0."""
    ends = torch.stack([low.clamp(min=0) - slope * low, high.clamp(min=0) - slope * high])
    r_low, r_high = ends.amin(0), ends.amax(0)
    r_low = torch.where((low < 0) & (high > 0), r_low.clamp(max=0), r_low)
    return r_low - relu_gap(), r_high


def curvature_bound(low: Tensor, high: Tensor) -> Tensor:
    """C_g with |g''(t)| <= C_g for every t in [low, high], elementwise, over 32 pieces."""
    nodes = _nodes(low, high)
    bend_low, bend_high = curvature_range(nodes[:-1], nodes[1:])
    return torch.maximum(bend_low.abs(), bend_high.abs()).amax(0)
