"""What attention rounds off, at the centre and in everything that moves. Derivations: docs/math.md, "Rounding".

Rounding is relative to the sizes of what is added up. So the sizes go through the block once, as a token would, with
absolute values of all weights: of the centre, and of how far LayerNorm's output may be from it. Whatever the scores
lose joins the products of score changes; whatever the heads lose joins the output's error, coordinate by coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.rounding import gamma, up
from zonogpt.transforms.ellipsoidal.attention_point import AttentionPoint, Still
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep
from zonogpt.transforms.ellipsoidal.softmax import SoftmaxStep


@dataclass(frozen=True)
class AttentionRounding:
    """Axes as in attention_point.py. `narrow` is the type of the tangents."""

    Q: Tensor  # (B, H, I, e): queries are off by this much at the centre
    K: Tensor  # (B, H, S, e)
    V: Tensor  # (B, H, S, e)
    Q_moving: Tensor  # (B, H, I, e): bounds how far a query is from the centre's, and each term of that
    K_moving: Tensor  # (B, H, n, e)
    V_moving: Tensor  # (B, H, n, e)
    U_moving: Tensor  # (B, H, I, S): the same of the scores, in first order
    scores: Tensor  # (B, H, I, S): what the scores and their tangents are off by
    narrow: torch.dtype

    def of_tangents(self, moving: Tensor, dtype: torch.dtype) -> Tensor:
        """What the tangents of a query, key or value lose, all symbols together."""
        return gamma(self.Q.shape[1] * self.Q.shape[-1] + 4, dtype) * moving

    @property
    def query(self) -> Tensor:
        """(B, H, I, e): what a query's linear part, error included, leaves out."""
        return self.Q + self.of_tangents(self.Q_moving, self.narrow)

    @property
    def key(self) -> Tensor:
        return _at_last(self.K, self.of_tangents(self.K_moving, self.narrow))

    def value(self, dtype: torch.dtype) -> Tensor:
        return _at_last(self.V, self.of_tangents(self.V_moving, dtype))


def _at_last(all_keys: Tensor, moving: Tensor) -> Tensor:
    """`moving` (B, H, n, e) added to the last keys."""
    out = all_keys.clone()
    out[:, :, all_keys.shape[2] - moving.shape[2] :] += moving
    return out


def attention_rounding(point: AttentionPoint, norm: LayerNormStep, still: Still) -> AttentionRounding:
    block, S, n_queries = point.block, point.K.shape[2], point.n_queries
    e, d = point.Q.shape[-1], block.w_o.shape[0]
    wide, narrow = point.Q.dtype, norm.z.G.dtype
    sizes = torch.cat([still.n.abs(), norm.centre.abs(), norm.reach], dim=1) @ block.w_qkv.abs()
    off = up(gamma(d + 2, wide) * (sizes[:, :S] + block.b_qkv.abs()), d)
    Q, K, V = map(block.split_heads, off.chunk(3, dim=-1))
    Q_moving, K_moving, V_moving = map(block.split_heads, up(sizes[:, S:], d).chunk(3, dim=-1))
    Q, Q_moving = Q[:, :, S - n_queries :], Q_moving[:, :, -n_queries:]
    first = point.first
    K, V = (torch.cat([x[:, :, :first] + y, x[:, :, first:]], dim=2) for x, y in ((K, still.K), (V, still.V)))

    Q_size, K_size = point.Q.abs(), point.K.abs()
    pairs = Q_size @ K_size.mT
    at_centre = Q_size @ K.mT + Q @ K_size.mT + gamma(e + 4, wide) * pairs
    moving = Q_moving @ K_size.mT
    moving[..., first:] += Q_size @ K_moving.mT
    moving, at_centre, pairs = ((x * block.scale).masked_fill(point.hidden, 0.0) for x in (moving, at_centre, pairs))
    moving = up(moving, 2 * e)
    # Tangents are centred with P as computed; the mean that is left is `doubt` of that of the sizes.
    mean = (point.P * moving).sum(-1, keepdim=True)
    tangents = gamma(d + e + 2 * S + 16, narrow) * (moving + mean) + 2 * point.doubt[..., None] * mean
    # log_softmax subtracts the row's maximum and a logarithm: what all keys lose alike does not matter.
    logarithms = gamma(8, wide) * (pairs.amax(-1, keepdim=True) + math.log(S) + 1)
    scores = up(at_centre + tangents + logarithms, 2 * e + S).masked_fill(point.hidden, 0.0)
    return AttentionRounding(Q, K, V, Q_moving, K_moving, V_moving, moving, scores, narrow)


def output_rounding(
    point: AttentionPoint,
    r: AttentionRounding,
    s: SoftmaxStep,
    linear: Tensor,
    shifted: Tensor,
    score_values: Tensor,
    c: Tensor,
    radius: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """(B, I, d): what the block's output is off by; `dtype` is the type that the linear part is computed in.

    `linear` (B, H, I, S) bounds the linear part of the centred score change, `shifted` (B, H, I, e) is the heads'
    output at the centre, `c` and `radius` (B, I, d) the skip's centre and deviation.
    """
    block, P, wide = point.block, point.P, c.dtype
    d, e, S = c.shape[-1], point.Q.shape[-1], P.shape[-1]
    V_size, O_size = point.V.abs(), point.O.abs()
    slope = s.slope.abs()
    # All that v'_j = V_j - O is multiplied with, P for the centre's own output and for rows without a slope.
    coefficients = P * (1 + slope * linear) + s.shift.abs() + s.common.abs() + s.error + s.scores + s.total
    apart = coefficients @ V_size + coefficients.sum(-1, keepdim=True) * O_size
    heads = (gamma(d + e + S + 16, wide) + 2 * point.doubt)[..., None] * apart
    heads = heads + (P + s.total) @ r.value(dtype)
    heads = heads + gamma(d + e + 8, wide) * (s.total[..., point.first :] @ r.V_moving)
    # The slopes' mean value is taken off score_values, which is free for scores whose mean is exactly zero.
    mean = (P * (r.U_moving + linear)).sum(-1, keepdim=True)
    mean_value = (P * slope) @ V_size + (P * slope).sum(-1, keepdim=True) * O_size
    heads = heads + (gamma(2 * S + 8, wide) + 2 * point.doubt)[..., None] * mean * mean_value

    moved = P * (r.U_moving + (P * r.U_moving).sum(-1, keepdim=True))
    moved = (moved[..., None, :] @ score_values.abs()).squeeze(-2) + P[..., point.first :] @ r.V_moving
    parts = [block.join_heads(x) for x in (shifted.abs(), heads, moved)]
    at_centre, heads, moved = (torch.cat(parts, dim=1) @ block.w_o.abs()).chunk(3, dim=1)
    out = gamma(d + 4, wide) * (c.abs() + at_centre + block.b_o.abs()) + heads
    return up(out + gamma(4 * d + e + 3 * S + 24, dtype) * (radius + moved), 2 * (d + S + e))
