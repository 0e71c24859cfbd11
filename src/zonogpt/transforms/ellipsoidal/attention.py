"""The attention block over an ellipsoidal zonotope, and its adjoint. Derivations: docs/math.md, "Method E: attention".

    A(x) = x + B(LN(x)),    B(n) = concat_h( sum_j p_j v_j ) W_o + b_o

B is linearised at the (moved) centre of LayerNorm's output, with softmax's best slopes. What is left: LayerNorm's error
(linear from there on), softmax's error, products of score changes, products of probability and value changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zonogpt.domains.choices import Choices, Note, unnoted
from zonogpt.domains.chunks import chunks
from zonogpt.domains.ellipsoidal import (
    EllipsoidalZonotope,
    box_cover,
    coordinate_radius,
    lambda_max,
    minkowski,
    rounded_out,
    support,
    symmetric_product,
    trace,
    weights,
    widened,
)
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, gammas, length, room, up
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import AttentionBlock
from zonogpt.transforms.attention_rounding import (
    AttentionRounding,
    Still,
    attention_rounding,
    head_rounding,
    output_rounding,
)
from zonogpt.transforms.ellipsoidal.attention_errors import (
    ImageWeights,
    Projections,
    error_images,
    error_scores,
    project,
    row_minkowski,
)
from zonogpt.transforms.ellipsoidal.attention_point import (
    AttentionPoint,
    Tangents,
    TangentSums,
    attention_point,
    branch_images,
    symbol_bytes,
    tangent_bytes,
    tangents,
)
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep, layernorm_step, rounded_off
from zonogpt.transforms.ellipsoidal.softmax import SoftmaxStep, softmax_step
from zonogpt.transforms.execution import attention_error
from zonogpt.transforms.softmax import masked

KEPT_CHUNKS = 4  # tangents are kept for their second use if they take no more than this many chunks


@dataclass(frozen=True)
class AttentionStep:
    point: AttentionPoint
    norm: LayerNormStep
    softmax: SoftmaxStep
    value_gram: Tensor  # (B, H, n, e, e): cover of the values' change, rounding apart
    product_gram: Tensor  # (B, H, I, e, e): cover of sum_j dP_ij dV_j
    key_radius: Tensor  # (B, H, n, e): how far a key is from the centre's, all told
    value_radius: Tensor  # (B, H, n, e)
    R_U: Tensor  # (B, H, I, S): bounds what is not linear in the scores
    t: ImageWeights
    executed: Tensor  # (B, n, d): what an execution of LayerNorm may be off by; 0 for real arithmetic
    rounding: Tensor  # (B, I, d): as in MlpStep
    choices: Choices = field(default_factory=Choices)

    kind = "attention"

    @property
    def still(self) -> Still:
        """The moving tokens of this step as later tokens see them: exact but for what the step bounds."""
        size = up(self.norm.centre.abs() + self.norm.reach)
        return Still(self.norm.centre, self.key_radius, self.value_radius, size, self.executed)

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Functionals (B, K, I, d) of the block's output as functionals (B, K, n, d) of its input, and the losses."""
        point, s, block = self.point, self.softmax, self.point.block
        first, I = point.first, point.n_queries  # noqa: E741
        w = block.split_heads(functionals @ block.w_o.T)  # (B, K, H, I, e)
        along = w @ point.V[:, None].mT - (w * point.O[:, None]).sum(-1, keepdim=True)  # w . v'_ij, (B, K, H, I, S)
        size = along.abs()
        softmax = (s.error[:, None] * size).sum(-1) + (s.common[:, None] * along).sum(-1).abs()  # (B, K, H, I)
        # Without a slope the row moves to sum_j p_j v'_j, between the smallest and the largest of the w . v'_j.
        fall = (-along).masked_fill(point.hidden[:, None], -math.inf).amax(-1).clamp(min=0)
        softmax = torch.where(s.sloped[:, None], softmax, torch.minimum(softmax, fall)).sum((-1, -2))
        scores = (s.scores[:, None] * size).sum((-1, -2, -3))
        summands = size[0, 0].numel()
        by_head = w.permute(0, 2, 3, 1, 4)  # (B, H, I, K, e)
        apart = support(self.value_gram, by_head.flatten(2, 3)[:, :, None]).unflatten(-1, (I, -1))  # (B, H, n, I, K)
        apart = torch.einsum("bhin,bhnik->bhik", s.total[..., first:], apart)
        product = torch.minimum(apart, support(self.product_gram, by_head)).sum((1, 2))

        P = point.P[:, None]
        sloped = s.slope[:, None] * along
        by_score = P * (sloped - (P * sloped).sum(-1, keepdim=True)) * block.scale  # (B, K, H, I, S)
        to_V = P[..., first:].mT @ w  # (B, K, H, n, e)
        to_K = by_score[..., first:].mT @ point.Q[:, None]
        to_Q = torch.zeros_like(to_V)
        to_Q[..., -I:, :] = by_score @ point.K[:, None]
        branch = torch.cat([block.join_heads(x) for x in (to_Q, to_K, to_V)], dim=-1) @ block.w_qkv.T
        before, norm = self.norm.pull(branch, limit)
        before[:, :, -I:] += functionals
        return before, {
            "layernorm": norm,
            "scores": up(scores, summands),
            "softmax": up(softmax, summands),
            "product": up(product, summands),
            "rounding": rounded_off(functionals, self.rounding),
        }


def attention_step(
    block: AttentionBlock,
    z: EllipsoidalZonotope,
    still: Still,
    n_queries: int,
    limit: int,
    padding: Tensor | None = None,
    arithmetic: Arithmetic = "real",
) -> tuple[EllipsoidalZonotope, AttentionStep]:
    """Z' with A(x) in Z' at the last `n_queries` tokens, for x in z behind the tokens `still`.

    `padding` as in AttentionBlock.visible. With float32, every execution of A(x) is in Z'.

    The symbols of z are kept. Memory O(B (n m d + n d^2 + H n S (S + e))) and some `limit` bytes of tangents; products
    O(n m d^2 + n d^3 + n S d^2).
    """
    norm = layernorm_step(block.norm, z, limit)
    point = attention_point(block, still.n, norm.centre, n_queries, padding)
    choices = Choices()
    pr = project(point, minkowski(norm.jacobian_gram(z.Q), norm.error_gram, note=choices.at("t_merged")))
    rounding = attention_rounding(point, still, norm.centre, norm.reach, z.G.dtype, z.m)

    def moved(part: slice) -> Tangents:
        return tangents(point, norm.jacobian(z.G[:, :, part]))

    parts = list(chunks(z.m, symbol_bytes(point), limit))
    keep = z.m * tangent_bytes(point) <= KEPT_CHUNKS * limit  # or they are computed twice
    sums, kept = TangentSums(z.p, z.c.dtype), []
    for part in parts:
        t = moved(part)
        sums.add(t)
        kept.append(t if keep else None)
    spare = spare_room(point, norm, rounding) if room() else Spare()
    errors = error_scores(point, pr, choices)
    by_symbols = sums.W.noted_cover(choices.at("scores_round"), spare.score_tangents)
    score_gram = row_minkowski(point.P, by_symbols, errors.gram, note=choices.at("t_scores"))
    values = point.values()
    linear = up(sums.W.radius + errors.radius)
    if spare.score_tangents is not None:
        linear = linear + spare.score_tangents
    change = changes(point, sums, pr, rounding)
    R_U = up(change.score_products(point) + rounding.scores)
    s = softmax_step(
        log_P=point.log_P,
        linear=linear,
        R_U=R_U,
        score_gram=score_gram,
        length=torch.linalg.vector_norm(values, dim=-1),
        doubt=point.doubt,
    )
    require_finite("attention softmax", s.slope, s.error, s.total)
    score_values = s.slope[..., None] * values
    score_values = score_values - point.P[..., None, :] @ score_values
    bent = None if spare.values is None else spare_score_values(point, s, values, spare.values)

    G = z.G[:, -n_queries:].clone()
    for part, images in zip(parts, kept, strict=True):
        G[:, :, part] += branch_images(point, images or moved(part), score_values)
    del kept, images
    by_symbols = sums.V.noted_cover(choices.at("values_round"), spare.value_tangents)
    value_gram = minkowski(by_symbols, pr.VV_heads, note=choices.at("t_values"))
    product = value_products(point, s, score_gram, value_gram, choices.at("t_products"))
    local = minkowski(softmax_cover(s, point.log_P, values, choices, spare.values), product, note=choices.at("t_fresh"))
    shifted = point.O + (s.shift[..., None, :] @ values).squeeze(-2)  # (B, H, I, e)
    before, deviation = z.c[:, -n_queries:], z.radius[:, -n_queries:]
    off = {
        dtype: branch_rounding(point, rounding, s, linear, shifted, score_values, before, deviation, dtype)
        for dtype in {z.c.dtype, z.G.dtype}
    }
    executed = torch.zeros_like(norm.centre)
    if arithmetic == "float32":
        executed = norm.execution_error()
        error = execution_error(point, rounding, s, norm, still, executed, up(before.abs() + deviation))
        off = {dtype: x + error for dtype, x in off.items()}
    Q, image_weights = error_images(point, norm, z, pr, errors.key, score_values, local, off[z.G.dtype], limit, bent)
    c = before + block.join_heads(shifted) @ block.w_o + block.b_o
    out = EllipsoidalZonotope(c=c, G=G, Q=Q, p=z.p)
    require_finite("attention output", out.c, out.G, out.Q)
    step = AttentionStep(
        point=point,
        norm=norm.for_the_tape(),
        softmax=s,
        value_gram=value_gram,
        product_gram=product,
        key_radius=change.K[:, :, point.first :],
        value_radius=change.V,
        R_U=R_U,
        t=image_weights,
        executed=executed,
        rounding=off[z.c.dtype],
        choices=choices,
    )
    return out, step


@dataclass(frozen=True)
class Spare:
    """How far numbers at the centre, and all symbols' tangents together, may be from those of another program: what is
    nothing but rounding is another number there. None: no other program will compare."""

    values: Tensor | None = None  # (B, H, I, S): the length of V_j - O_i
    score_tangents: Tensor | None = None  # (B, H, I, S)
    value_tangents: Tensor | None = None  # (B, H, n, e)


def spare_room(point: AttentionPoint, norm: LayerNormStep, r: AttentionRounding) -> Spare:
    (S, e), P, wide = point.K.shape[-2:], point.P, point.P.dtype
    d = point.block.w_o.shape[0]
    lost = norm.rounding @ point.block.projections[2].abs()  # what LayerNorm's output at the centre may be off by
    V = r.V + point.block.split_heads(lost)
    size = gamma(S + 4, wide) * point.V.abs() + V
    # O = P V: with P off by twice what the scores are off by, relatively.
    moved = (P * r.scores) @ point.V.abs()
    centre = P @ size + 2 * moved + point.doubt[..., None] * (P @ point.V.abs())
    mean = (P * r.U_moving).sum(-1, keepdim=True)
    return Spare(
        values=up(length(size)[..., None, :] + length(centre)[..., None], S),
        score_tangents=up(gamma(d + e + 2 * S + 16, wide) * (r.U_moving + mean), S).masked_fill(point.hidden, 0.0),
        value_tangents=r.of_tangents(r.V_moving, wide),
    )


def spare_score_values(point: AttentionPoint, s: SoftmaxStep, values: Tensor, off: Tensor) -> Tensor:
    """(B, H, I, S): how far another program's slope_j v'_j, centred, may be, in length; `off` is that of its v'_j."""
    bent = s.slope.abs() * (off + gamma(point.P.shape[-1] + 16, off.dtype) * length(values))
    return up(bent + (point.P * bent).sum(-1, keepdim=True), point.P.shape[-1])


@dataclass(frozen=True)
class Changes:
    """How far queries, keys and values are from the centre's: coordinate by coordinate, and in length."""

    Q: Tensor  # (B, H, I, e)
    K: Tensor  # (B, H, S, e)
    V: Tensor  # (B, H, n, e)
    Q_length: Tensor  # (B, H, I)
    K_length: Tensor  # (B, H, S)

    def score_products(self, point: AttentionPoint) -> Tensor:
        """(B, H, I, S): bounds |dQ_i . dK_j| / sqrt(e), coordinate by coordinate or by the lengths of the two."""
        R_U = torch.minimum(self.Q @ self.K.mT, self.Q_length[..., None] * self.K_length[..., None, :])
        return up(R_U * point.block.scale, self.Q.shape[-1]).masked_fill(point.hidden, 0.0)


def changes(point: AttentionPoint, sums: TangentSums, pr: Projections, rounding: AttentionRounding) -> Changes:
    first = point.first
    query, key, value = rounding.query, rounding.key, rounding.value(rounding.narrow)
    K, K_length = key.clone(), length(key)
    K[:, :, first:] += sums.K.radius + coordinate_radius(pr.KK_heads)
    K_length[:, :, first:] += sums.K.square().sqrt() + lambda_max(pr.KK_heads).sqrt()
    return Changes(
        Q=up(sums.Q.radius + coordinate_radius(pr.QQ) + query),
        K=up(K),
        V=up(sums.V.radius + coordinate_radius(pr.VV_heads) + value[:, :, first:]),
        Q_length=up(sums.Q.square().sqrt() + lambda_max(pr.QQ).sqrt() + length(query)),
        K_length=up(K_length),
    )


def branch_rounding(
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
    P, slope, S = point.P, s.slope.abs(), point.P.shape[-1]
    # All that v'_j = V_j - O is multiplied with, P for the centre's own output and for rows without a slope.
    coefficients = P * (1 + slope * linear) + s.shift.abs() + s.common.abs() + s.error + s.scores + s.total
    heads = head_rounding(point, r, coefficients, s.total, dtype)
    # The slopes' mean value is taken off score_values, which is free for scores whose mean is exactly zero.
    mean = (P * (r.U_moving + linear)).sum(-1, keepdim=True)
    mean_value = (P * slope) @ point.V.abs() + (P * slope).sum(-1, keepdim=True) * point.O.abs()
    heads = heads + up(
        (gammas(2 * point.n_keys + 8, c.dtype, P) + 2 * point.doubt)[..., None] * mean * mean_value, 2 * S
    )
    moved = P * (r.U_moving + (P * r.U_moving).sum(-1, keepdim=True))
    moved = (moved[..., None, :] @ score_values.abs()).squeeze(-2) + P[..., point.first :] @ r.V_moving
    return output_rounding(point, heads, moved, shifted, c, radius, dtype) + r.underflow(c.shape[-1], dtype)


def execution_error(
    point: AttentionPoint,
    r: AttentionRounding,
    s: SoftmaxStep,
    norm: LayerNormStep,
    still: Still,
    executed: Tensor,
    skip: Tensor,
) -> Tensor:
    """(B, I, d): what an execution of the block in float32 may be off by, over the whole set."""
    n = torch.cat([still.size, up(norm.centre.abs() + norm.reach)], dim=1)
    K, V = (
        up(torch.cat([x[..., : point.first, :] + known, x[..., point.first :, :] + moving], dim=-2))
        for x, known, moving in ((point.K.abs(), still.K, r.K_moving), (point.V.abs(), still.V, r.V_moving))
    )
    P = up(point.P + s.total).clamp(max=1).masked_fill(point.hidden, 0.0)
    off = torch.cat([still.executed, executed], dim=1)
    return attention_error(point.block, up(point.Q.abs() + r.Q_moving), K, V, P, n, off, skip)


def softmax_cover(
    s: SoftmaxStep, log_P: Tensor, values: Tensor, choices: Choices | None = None, off: Tensor | None = None
) -> Tensor:
    """(B, H, I, e, e): contains sum_j (xi common_j + xi_j (error_j + scores_j)) v'_j; values (B, H, I, S, e).

    Without a slope that sum is sum_j p_j v'_j for a distribution p with p_j <= P_j + total_j, and
    (sum_j p_j l_j)^2 <= sum_j p_j l_j^2: probabilities add up to 1, however many keys may rise. `off` (B, H, I, S), if
    given, is how far another program's values may be.
    """
    choices = Choices() if choices is None else choices
    common = s.common[..., None, :] @ values  # one more direction, with coefficient xi
    hidden, P = masked(log_P), log_P.exp()
    size = up(s.error + s.scores).masked_fill(hidden, 0.0)
    size = torch.cat([size, torch.ones_like(size[..., :1])], dim=-1)
    share = up(P + s.total).masked_fill(hidden, 0.0)
    scaled = share.sqrt()[..., None] * values
    hull = rounded_out(symmetric_product(scaled.mT, scaled), terms=(~hidden).sum(-1))
    if off is not None:
        far = length(values)
        hull = widened(hull, up((share * (2 * far + off) * off).sum(-1), P.shape[-1]))
        of_common = (s.common.abs() * (off + gamma(P.shape[-1] + 8, P.dtype) * far)).sum(-1, keepdim=True)
        off = torch.cat([off, of_common], dim=-1)
    box = box_cover(torch.cat([values, common], dim=-2), size, choices.at("t_softmax"), off)
    smaller = ~s.sloped & (trace(hull) < trace(box))
    choices.at("hull")(smaller)
    return torch.where(smaller[..., None, None], hull, box)


def value_products(
    point: AttentionPoint, s: SoftmaxStep, score_gram: Tensor, value_gram: Tensor, note: Note = unnoted
) -> Tensor:
    """(B, H, I, e, e): contains sum_j dP_ij dV_j for dV_j in value_gram_j, over the moving keys j that query i sees.

    sum_j p_j v_j is in (sum_j p_j^2 / t_j) sum_j t_j Gram_j for any t > 0. The first factor is bounded key by key, or
    for all keys together: the part of dP that is linear in the symbols by its Gram, the rest key by key.
    """
    moving = slice(point.first, None)
    total, residual, P = s.total[..., moving], s.residual[..., moving], point.P[..., moving]
    hidden = point.hidden[..., moving]
    size = trace(value_gram).sqrt()[:, :, None].expand(total.shape).masked_fill(hidden, 0.0)
    t = weights(total, -1) / weights(size, -1)
    note(t)
    root = P / t.sqrt()
    linear = lambda_max(root[..., :, None] * score_gram[..., moving, moving] * root[..., None, :]).sqrt()
    together = (linear + (residual.square() / t).sum(-1).sqrt()).square()
    apart = (total.square() / t).sum(-1)
    smaller = up(torch.fmin(apart, together), 2 * total.shape[-1] + 16)
    seen = torch.einsum("bhin,bhnef->bhief", t.masked_fill(hidden, 0.0), value_gram)
    return rounded_out(smaller[..., None, None] * seen, terms=(~hidden).sum(-1))
