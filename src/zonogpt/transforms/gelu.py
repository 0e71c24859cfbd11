"""Affine bounds of the tanh form of GELU (paper, appendix "Affine GELU Transform").

    g(t) = t/2 (1 + tanh h(t)),   h(t) = sqrt(2/pi) (t + 0.044715 t^3)

On [low, high] the chord's slope a is kept and the residual g(t) - a t is enclosed in [mid - half, mid + half]:
piecewise linear interpolation with the curvature of each piece, intersected with g = ReLU - (something in
[0, e_max]). Derivations: docs/math.md, section 3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from zonogpt.domains.chunks import chunks
from zonogpt.domains.rounding import gamma, up

N_PIECES = 32
# Bytes of temporaries over some pieces: a GPU wants few calls, a CPU wants arrays that fit its caches.
PIECES_BYTES = {"cpu": 1 << 23, "cuda": 1 << 29}
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
    """Bounds of g'' over [t_low, t_high], elementwise."""
    return _CurvatureParts.at(t_low).range_to(_CurvatureParts.at(t_high))


@dataclass(frozen=True)
class _CurvatureParts:
    """g''(t) = sech(h)^2 (P - N) at |t|, with P = h' + |t| h''/2 and N = |t| tanh(h) h'^2."""

    t: Tensor
    h: Tensor
    P: Tensor
    N: Tensor
    sech2: Tensor

    @classmethod
    def at(cls, t: Tensor) -> _CurvatureParts:
        u, u2 = t.abs(), t.square()
        h, slope = K0 * u * (1 + K1 * u2), K0 * (1 + 3 * K1 * u2)
        decay = torch.exp(-2 * h)  # sech^2 without the cancellation of 1 - tanh^2
        return cls(t, h, K0 * (1 + 6 * K1 * u2), u * torch.tanh(h) * slope.square(), 4 * decay / (1 + decay).square())

    def __getitem__(self, part: slice) -> _CurvatureParts:
        return _CurvatureParts(*(x[part] for x in (self.t, self.h, self.P, self.N, self.sech2)))

    def range_to(self, other: _CurvatureParts) -> tuple[Tensor, Tensor]:
        """Bounds of g'' between the two points.

        g'' is even; sech^2 falls and P and N grow with |t|. So P - N lies in [P(near) - N(far), P(far) - N(near)] for
        the nearest and farthest |t|.
        """
        straddles = self.t * other.t <= 0
        s_near = torch.maximum(self.sech2, other.sech2).masked_fill(straddles, 1.0)
        s_far = torch.minimum(self.sech2, other.sech2)
        p_near = torch.minimum(self.P, other.P).masked_fill(straddles, K0)
        n_near = torch.minimum(self.N, other.N).masked_fill(straddles, 0.0)
        p_far, n_far = torch.maximum(self.P, other.P), torch.maximum(self.N, other.N)
        low, high = p_near - n_far, p_far - n_near
        # Every part has a relative error of some units, sech^2 one of 2 h times the units of h.
        rounding = gamma(48, low.dtype) * (p_far + n_far) * (1 + torch.minimum(self.h, other.h)) * s_near
        # Outward: low < 0 and high > 0 take sech^2 at the near end, where it is largest; other bounds at the far end.
        low, high = torch.where(low < 0, low * s_near, low * s_far), torch.where(high > 0, high * s_near, high * s_far)
        return low - rounding, high + rounding


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


def affine_gelu(low: Tensor, high: Tensor, pieces: int = N_PIECES) -> tuple[Tensor, Tensor, Tensor]:
    """(slope, mid, half), elementwise, with |g(t) - slope t - mid| <= half for every t in [low, high].

    Any number of pieces is sound; half is larger than need be by a share of about 1 / pieces^2.
    """
    width = high - low
    wide = width > 0
    chord = (gelu(high) - gelu(low)) / torch.where(wide, width, torch.ones_like(width))
    slope = torch.where(wide, chord, gelu_slope(low))
    part_low, part_high = _interpolation_residual(low, high, slope, pieces)
    relu_low, relu_high = _relu_residual(low, high, slope)
    r_low, r_high = torch.maximum(part_low, relu_low), torch.minimum(part_high, relu_high)
    mid, half = (r_low + r_high) / 2, (r_high - r_low) / 2
    # Rounding of g (6 units of t: docs/math.md, Lemma 13.4), of slope * t and of the halving, outward.
    size = torch.maximum(low.abs(), high.abs()) * (1 + slope.abs())
    return slope, mid, up(half.clamp(min=0) + gamma(16, low.dtype) * size)


def _pieces(low: Tensor, high: Tensor, count: int) -> Iterator[tuple[_CurvatureParts, _CurvatureParts]]:
    """Left and right ends (pieces, ...), some pieces at a time; neighbours share an end, so they leave no gap."""
    limit = PIECES_BYTES.get(low.device.type, PIECES_BYTES["cpu"])
    share = torch.arange(count + 1, dtype=low.dtype, device=low.device).view(-1, *[1] * low.dim()) / count
    for part in chunks(count, 8 * low.numel() * low.element_size(), limit):
        t = low + share[part.start : part.stop + 1] * (high - low)
        if part.start == 0:
            t[0] = low
        if part.stop == count:
            t[-1] = high
        ends = _CurvatureParts.at(t)
        yield ends[:-1], ends[1:]


def _interpolation_residual(low: Tensor, high: Tensor, slope: Tensor, pieces: int = N_PIECES) -> tuple[Tensor, Tensor]:
    """Bounds of g(t) - slope t from its values at the pieces' ends and the signed curvature between them."""
    r_low, r_high = torch.full_like(low, math.inf), torch.full_like(low, -math.inf)
    for left, right in _pieces(low, high, pieces):
        q_left, q_right = (gelu(end.t) - slope * end.t for end in (left, right))
        bend_low, bend_high = left.range_to(right)
        # A function with second derivative in [l, u] leaves its chord by [-u w^2/8, -l w^2/8].
        w2 = (right.t - left.t).square() / 8
        lowest = torch.minimum(q_left, q_right) - bend_high.clamp(min=0) * w2
        highest = torch.maximum(q_left, q_right) - bend_low.clamp(max=0) * w2
        r_low, r_high = torch.minimum(r_low, lowest.amin(0)), torch.maximum(r_high, highest.amax(0))
    return r_low, r_high


def _relu_residual(low: Tensor, high: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of g(t) - slope t from g = ReLU - [0, e_max]; ReLU - slope t is convex: only its minimum may be at 0."""
    ends = torch.stack([low.clamp(min=0) - slope * low, high.clamp(min=0) - slope * high])
    r_low, r_high = ends.amin(0), ends.amax(0)
    r_low = torch.where((low < 0) & (high > 0), r_low.clamp(max=0), r_low)
    return r_low - relu_gap(), r_high


def curvature_bound(low: Tensor, high: Tensor) -> Tensor:
    """C_g with |g''(t)| <= C_g for every t in [low, high], elementwise, over 32 pieces."""
    bound = torch.zeros_like(low)
    for left, right in _pieces(low, high, N_PIECES):
        bend_low, bend_high = left.range_to(right)
        bound = torch.maximum(bound, torch.maximum(bend_low.abs(), bend_high.abs()).amax(0))
    return bound
