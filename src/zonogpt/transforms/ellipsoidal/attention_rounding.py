"""The rounding of an attention block over an ellipsoidal zonotope; its formulas are in attention.py beside this.

Derivations: docs/math.md, Lemma 13.8. Axes as in attention_point.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.rounding import gamma, gammas, length, up
from zonogpt.transforms.attention_rounding import AttentionRounding, Skip, head_rounding, output_rounding
from zonogpt.transforms.ellipsoidal.attention_point import BranchPoint
from zonogpt.transforms.ellipsoidal.norm import NormStep
from zonogpt.transforms.ellipsoidal.softmax import SoftmaxStep
from zonogpt.transforms.ellipsoidal.sources import Sources
from zonogpt.transforms.execution import AttentionSizes, attention_error


@dataclass(frozen=True)
class Linearised:
    """The branch's linear part, head by head."""

    scores: Tensor  # (B, H, I, S): bounds the linear part of the centred score change
    values: Tensor  # (B, H, I, S, e): as in ScoreImages
    output: Tensor  # (B, H, I, e): the heads' output at the centre


@dataclass(frozen=True)
class CheckerSlack:
    """How far the certificate checker's numbers may be from those computed here, because both round: numbers at the
    centre, and all symbols' tangents together. None: no certificate is written."""

    values: Tensor | None = None  # (B, H, I, S): the length of V_j - O_i
    score_tangents: Tensor | None = None  # (B, H, I, S)
    value_tangents: Tensor | None = None  # (B, H, n, e)


def checker_slack(point: BranchPoint, norm: NormStep, r: AttentionRounding) -> CheckerSlack:
    (S, e), P, wide = point.K.shape[-2:], point.P, point.P.dtype
    d = point.attention.longest
    lost = norm.rounding @ point.attention.w_v.abs()  # how far LayerNorm's output at the centre may be off
    V = r.V + point.attention.split_heads(lost)
    size = gamma(S + 4, wide) * point.V.abs() + V
    # O = P V, where P is off, relatively, by twice what the scores are off by.
    moved = (P * r.scores) @ point.V.abs()
    centre = P @ size + 2 * moved + point.doubt[..., None] * (P @ point.V.abs())
    mean = (P * r.U_moving).sum(-1, keepdim=True)
    return CheckerSlack(
        values=up(length(size)[..., None, :] + length(centre)[..., None], S),
        score_tangents=up(gamma(d + e + 2 * S + 16, wide) * (r.U_moving + mean), S).masked_fill(point.hidden, 0.0),
        value_tangents=r.of_tangents(r.V_moving, wide),
    )


def checker_score_values(point: BranchPoint, s: SoftmaxStep, values: Tensor, off: Tensor) -> Tensor:
    """(B, H, I, S): how far from ours, in length, the checker's centred slope_j v'_j may be; `off`: its v'_j."""
    bent = s.slope.abs() * (off + gamma(point.P.shape[-1] + 16, off.dtype) * length(values))
    return up(bent + (point.P * bent).sum(-1, keepdim=True), point.P.shape[-1])


def branch_rounding(
    point: BranchPoint,
    r: AttentionRounding,
    s: SoftmaxStep,
    at: Linearised,
    skip: Skip,
    dtype: torch.dtype,
) -> Tensor:
    """(B, I, d): what the block's output is off by; `dtype` is the type that the linear part is computed in."""
    P, slope, S = point.P, s.slope.abs(), point.P.shape[-1]
    # Everything that multiplies v'_j = V_j - O; P is there for the centre's own output and for rows without a slope.
    coefficients = P * (1 + slope * at.scores) + s.shift.abs() + s.common.abs() + s.error + s.scores + s.total
    heads = head_rounding(point, r, coefficients, s.total, dtype)
    # The mean of score_values is subtracted from them, which changes nothing for scores whose mean is exactly zero.
    mean = (P * (r.U_moving + at.scores)).sum(-1, keepdim=True)
    mean_value = (P * slope) @ point.V.abs() + (P * slope).sum(-1, keepdim=True) * point.O.abs()
    heads = heads + up(
        (gammas(2 * point.n_keys + 8, P.dtype, P) + 2 * point.doubt)[..., None] * mean * mean_value, 2 * S
    )
    moved = P * (r.U_moving + (P * r.U_moving).sum(-1, keepdim=True))
    moved = (moved[..., None, :] @ at.values.abs()).squeeze(-2) + P[..., point.first :] @ r.V_moving
    rounding = output_rounding(point, heads, moved, at.output, skip, dtype)
    return rounding + r.underflow(skip.centre.shape[-1], dtype)


def execution_error(
    point: BranchPoint, source: Sources, r: AttentionRounding, s: SoftmaxStep, executed: Tensor, skip: Skip
) -> Tensor:
    """(B, I, d): how far an execution of the block in float32 may be off, over the whole set; `executed` (B, n, d) is
    the same for LayerNorm, at the moving tokens."""
    prefix, first = source.prefix, point.first
    K, V = (
        up(torch.cat([x[..., :first, :] + known, x[..., first:, :] + moving], dim=-2))
        for x, known, moving in ((point.K.abs(), prefix.K, r.K_moving), (point.V.abs(), prefix.V, r.V_moving))
    )
    sizes = AttentionSizes(
        Q=up(point.Q.abs() + r.Q_moving),
        K=K,
        V=V,
        P=up(point.P + s.total).clamp(max=1).masked_fill(point.hidden, 0.0),
        n=torch.cat([prefix.size, source.norm.output_size], dim=1),
        n_error=torch.cat([prefix.executed, executed], dim=1),
        skip=up(skip.centre.abs() + skip.radius),
    )
    return attention_error(point.attention, point.queries, sizes)
