"""The attention block over an ellipsoidal zonotope, and its adjoint. Derivations: docs/math.md, section 10.

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
    rounded_off,
    rounded_out,
    support,
    symmetric_product,
    trace,
    weights,
    widened,
)
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, length, room, up
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.nodes import dense
from zonogpt.transforms.attention_rounding import AttentionRounding, NormSizes, Skip, attention_rounding
from zonogpt.transforms.ellipsoidal.attention_errors import (
    AskedErrors,
    ImageWeights,
    ScoreImages,
    asked_errors,
    error_images,
    error_scores,
    row_minkowski,
)
from zonogpt.transforms.ellipsoidal.attention_point import (
    BranchPoint,
    Tangents,
    TangentSums,
    branch_images,
    branch_point,
    symbol_bytes,
    tangent_bytes,
    tangents,
)
from zonogpt.transforms.ellipsoidal.attention_rounding import (
    CheckerSlack,
    Linearised,
    branch_rounding,
    checker_score_values,
    checker_slack,
    execution_error,
)
from zonogpt.transforms.ellipsoidal.norm import NormStep
from zonogpt.transforms.ellipsoidal.softmax import SoftmaxStep, softmax_step
from zonogpt.transforms.ellipsoidal.sources import Sources
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.queries import Queries
from zonogpt.transforms.softmax import masked

KEPT_CHUNKS = 4  # tangents are kept for their second use if they take no more than this many chunks


@dataclass(frozen=True)
class AttentionStep:
    point: BranchPoint
    norm: NormStep
    softmax: SoftmaxStep
    value_gram: Tensor  # (B, H, n, e, e): cover of the values' change, rounding apart
    product_gram: Tensor  # (B, H, I, e, e): cover of sum_j dP_ij dV_j
    key_radius: Tensor  # (B, H, n, e): how far a key is from the centre's, all told
    value_radius: Tensor  # (B, H, n, e)
    R_U: Tensor  # (B, H, I, S): bounds what is not linear in the scores
    t: ImageWeights
    executed: Tensor  # (B, n, d): what an execution of LayerNorm may be off by; 0 for real arithmetic
    rounding: Tensor  # (B, I, d): |w| . rounding bounds what the step rounds off a functional w of its output
    choices: Choices = field(default_factory=Choices)

    kind = "attention"

    @property
    def z(self) -> EllipsoidalZonotope:
        """The set before the block."""
        return self.norm.z

    @property
    def as_prefix(self) -> Prefix:
        """The moving tokens of this step as later tokens see them, if nothing but rounding moves them."""
        return Prefix(self.norm.centre, self.key_radius, self.value_radius, self.norm.output_size, self.executed)

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Functionals (B, K, I, d) of the block's output as functionals (B, K, n, d) of its input, and the losses."""
        point, s, attention = self.point, self.softmax, self.point.attention
        first, I = point.first, point.n_queries  # noqa: E741
        w = attention.split_heads(functionals @ attention.w_o.T)  # (B, K, H, I, e)
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
        by_score = P * (sloped - (P * sloped).sum(-1, keepdim=True)) * attention.scale  # (B, K, H, I, S)
        to_V = P[..., first:].mT @ w  # (B, K, H, n, e)
        to_K = by_score[..., first:].mT @ point.Q[:, None]
        to_Q = by_score @ point.K[:, None]  # (B, K, H, I, e)
        branch = attention.join_heads(to_K) @ attention.w_k.T + attention.join_heads(to_V) @ attention.w_v.T
        point.queries.add_to_moving(branch, attention.join_heads(to_Q) @ attention.w_q.T, 2)
        before, norm = self.norm.pull(branch, limit)
        point.queries.add_to_moving(before, functionals, 2)
        return before, {
            "layernorm": norm,
            "scores": up(scores, summands),
            "softmax": up(softmax, summands),
            "product": up(product, summands),
            "rounding": rounded_off(functionals, self.rounding),
        }


def attend(
    source: Sources,
    queries: Queries,
    limit: int,
    padding: Tensor | None = None,
    arithmetic: Arithmetic = "real",
) -> tuple[EllipsoidalZonotope, AttentionStep]:
    """Z' with A(x) in Z' at the queries, for x in the sources' set, same symbols; and the step for the adjoint.

    `padding` as in Attention.visible. With float32, every execution of A(x) is in Z'. Memory
    O(B (n m d + n d^2 + H n S (S + e))) and some `limit` bytes of tangents; products O(n m d^2 + n d^3 + n S d^2).
    """
    z, norm, attention = source.z, source.norm, source.attention
    point, choices = branch_point(source, queries, padding), Choices(source.choices)
    asked = asked_errors(point, source)
    sizes = NormSizes(norm.centre, norm.reach)
    rounding = attention_rounding(point, source.prefix, sizes, z.G.dtype, z.m)
    sums, kept = _tangent_sums(point, source, limit)
    slack = checker_slack(point, norm, rounding) if room() else CheckerSlack()
    errors = error_scores(asked, choices)
    by_symbols = sums.W.noted_cover(choices.at("scores_round"), slack.score_tangents)
    score_gram = row_minkowski(point.P, by_symbols, errors.gram, note=choices.at("t_scores"))
    values = point.values()
    linear = up(sums.W.radius + errors.radius)
    if slack.score_tangents is not None:
        linear = linear + slack.score_tangents
    change = changes(asked, sums, rounding)
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
    checker_off = None if slack.values is None else checker_score_values(point, s, values, slack.values)

    G = queries.of_moving(z.G, 1).clone()
    for part, images in kept:
        G[:, :, part] += branch_images(point, images or _tangents_of(point, source, part), score_values)
    del kept, images
    by_symbols = sums.V.noted_cover(choices.at("values_round"), slack.value_tangents)
    value_gram = minkowski(by_symbols, source.VV_heads, note=choices.at("t_values"))
    product = value_products(point, s, score_gram, value_gram, choices.at("t_products"))
    local = minkowski(softmax_cover(s, point.log_P, values, choices, slack.values), product, note=choices.at("t_fresh"))
    shifted = point.O + (s.shift[..., None, :] @ values).squeeze(-2)  # (B, H, I, e)
    at = Linearised(linear, score_values, shifted)
    skip = Skip(queries.of_moving(z.c, 1), queries.of_moving(z.radius, 1))
    lost = {dtype: branch_rounding(point, rounding, s, at, skip, dtype) for dtype in {z.c.dtype, z.G.dtype}}
    executed = torch.zeros_like(norm.centre)
    if arithmetic == "float32":
        executed = norm.execution_error()
        error = execution_error(point, source, rounding, s, executed, skip)
        lost = {dtype: x + error for dtype, x in lost.items()}
    images_of_scores = ScoreImages(score_values, errors.key, checker_off)
    Q, image_weights = error_images(asked, images_of_scores, local, lost[z.G.dtype], limit)
    c = skip.centre + dense(attention.join_heads(shifted), attention.w_o, attention.b_o)
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
        rounding=lost[z.c.dtype],
        choices=choices,
    )
    return out, step


def _tangents_of(point: BranchPoint, source: Sources, symbols: slice) -> Tangents:
    return tangents(point, source.norm.jacobian(source.z.G[:, :, symbols]))


def _tangent_sums(
    point: BranchPoint, source: Sources, limit: int
) -> tuple[TangentSums, list[tuple[slice, Tangents | None]]]:
    """Sums over all symbols; and, chunk by chunk, their tangents for a second use, or None if they would take too much
    memory and are to be computed again."""
    z = source.z
    keep = z.m * tangent_bytes(point, z.G.dtype) <= KEPT_CHUNKS * limit
    sums, kept = TangentSums(z.p, z.c.dtype), list[tuple[slice, Tangents | None]]()
    for part in chunks(z.m, symbol_bytes(point, z.G.dtype), limit):
        t = _tangents_of(point, source, part)
        sums.add(t)
        kept.append((part, t if keep else None))
    return sums, kept


@dataclass(frozen=True)
class Changes:
    """How far queries, keys and values are from the centre's: coordinate by coordinate, and in length."""

    Q: Tensor  # (B, H, I, e)
    K: Tensor  # (B, H, S, e)
    V: Tensor  # (B, H, n, e)
    Q_length: Tensor  # (B, H, I)
    K_length: Tensor  # (B, H, S)

    def score_products(self, point: BranchPoint) -> Tensor:
        """(B, H, I, S): bounds |dQ_i . dK_j| / sqrt(e), coordinate by coordinate or by the lengths of the two."""
        R_U = torch.minimum(self.Q @ self.K.mT, self.Q_length[..., None] * self.K_length[..., None, :])
        return up(R_U * point.attention.scale, self.Q.shape[-1]).masked_fill(point.hidden, 0.0)


def changes(asked: AskedErrors, sums: TangentSums, rounding: AttentionRounding) -> Changes:
    first, source = asked.point.first, asked.source
    query, key, value = rounding.query, rounding.key, rounding.value(rounding.narrow)
    K, K_length = key.clone(), length(key)
    K[:, :, first:] += sums.K.radius + coordinate_radius(source.KK_heads)
    K_length[:, :, first:] += sums.K.square().sqrt() + lambda_max(source.KK_heads).sqrt()
    return Changes(
        Q=up(sums.Q.radius + coordinate_radius(asked.QQ) + query),
        K=up(K),
        V=up(sums.V.radius + coordinate_radius(source.VV_heads) + value[:, :, first:]),
        Q_length=up(sums.Q.square().sqrt() + lambda_max(asked.QQ).sqrt() + length(query)),
        K_length=up(K_length),
    )


def softmax_cover(
    s: SoftmaxStep, log_P: Tensor, values: Tensor, choices: Choices | None = None, off: Tensor | None = None
) -> Tensor:
    """(B, H, I, e, e): contains sum_j (xi common_j + xi_j (error_j + scores_j)) v'_j; values (B, H, I, S, e).

    Without a slope that sum is sum_j p_j v'_j for a distribution p with p_j <= P_j + total_j, and
    (sum_j p_j l_j)^2 <= sum_j p_j l_j^2: probabilities add up to 1, however many keys may rise. `off` (B, H, I, S), if
    given, is how far from these, in length, the certificate checker's values may be.
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
    point: BranchPoint, s: SoftmaxStep, score_gram: Tensor, value_gram: Tensor, note: Note = unnoted
) -> Tensor:
    """(B, H, I, e, e): contains sum_j dP_ij dV_j for dV_j in value_gram_j, over the moving keys j that query i sees.

    sum_j p_j v_j is in (sum_j p_j^2 / t_j) sum_j t_j Gram_j for any t > 0. The first factor is bounded key by key, or
    for all keys together: by the Gram of the part of dP that is linear in the symbols, and key by key for the rest.
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
