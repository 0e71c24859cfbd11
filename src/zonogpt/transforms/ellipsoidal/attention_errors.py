"""The effect of the tokens' error ellipsoids inside attention: on the scores, and on the output of every query.

All of it is quadratic forms of the sources' Grams `merged` (sources.py). Axes as in attention_point.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.choices import Choices, Note, unnoted
from zonogpt.domains.chunks import chunks
from zonogpt.domains.ellipsoidal import (
    handed_on,
    rounded_out,
    sandwich,
    support,
    symmetrised,
    trace,
    weights,
    widened,
)
from zonogpt.domains.rounding import gamma, up
from zonogpt.transforms.ellipsoidal.attention_errors_rounding import (
    Crossed,
    cross_rounding,
    crossed_rounding,
    others_rounding,
    own_rounding,
)
from zonogpt.transforms.ellipsoidal.attention_point import BranchPoint
from zonogpt.transforms.ellipsoidal.sources import Sources, by_head, head_blocks, head_grams


@dataclass(frozen=True)
class AskedErrors:
    """The sources' errors `merged` as the queries of `point` meet them."""

    point: BranchPoint
    source: Sources
    keys: Tensor  # (B, H, I, d): W_k^h Q_i^h, so that Q_i^h . K_dot_s^h = keys_i^h . (change of token s)
    QQ: Tensor  # (B, H, I, e, e), head by head


def asked_errors(point: BranchPoint, source: Sources) -> AskedErrors:
    attention, H = point.attention, point.attention.n_heads
    merged = point.queries.of_moving(source.merged, 1)
    return AskedErrors(point, source, point.Q @ by_head(attention.w_k, H).mT, head_grams(merged, attention.w_q, H))


@dataclass(frozen=True)
class ErrorScores:
    """Bounds the change of centred scores by all error ellipsoids, per key and as a Gram over the keys of a row."""

    radius: Tensor  # (B, H, I, S)
    gram: Tensor  # (B, H, I, S, S)
    key: Tensor  # (B, H, I, n): the extent of Q_i . K_dot_s / sqrt(e) for every source s


def error_scores(asked: AskedErrors, choices: Choices | None = None) -> ErrorScores:
    """The bounds of ErrorScores. A source s != i moves only its own key, by u: the centred score s by (1 - P_is) u, the
    others by -P_is u. Query i's own token moves all."""
    point, P, hidden = asked.point, asked.point.P, asked.point.hidden
    choices = Choices() if choices is None else choices
    moved_key = torch.zeros_like(P)  # square of the extent of Q_i . K_dot_s / sqrt(e)
    of_keys = support(asked.source.KK_heads, point.Q[:, :, None]).mT
    moved_key[..., point.first :] = of_keys.square() * point.attention.scale**2
    moved_key = moved_key.masked_fill(hidden, 0.0)
    others, cross_gram = _scores_by_others(point, moved_key.masked_fill(point.own, 0.0), choices.at("t_keys"))
    own_gram = _scores_by_own(asked, (moved_key * point.own).sum(-1))
    radius = others + own_gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    gram = row_minkowski(P, own_gram, cross_gram, note=choices.at("t_errors"))
    gram = gram.masked_fill(hidden[..., None, :] | hidden[..., :, None], 0.0)
    return ErrorScores(radius.masked_fill(hidden, 0.0), gram, moved_key[..., point.first :].sqrt())


def _scores_by_others(point: BranchPoint, cross: Tensor, note: Note) -> tuple[Tensor, Tensor]:
    """The change by other tokens: each moves the score of its own key only, by at most sqrt(cross). Bounds (B, H, I, S)
    and a Gram (B, H, I, S, S)."""
    P, keys = point.P, point.P.shape[-1]
    u = cross.sqrt()
    mean = (P * u).sum(-1, keepdim=True)
    radius = (1 - 2 * P) * u + mean + others_rounding(point, u, mean)  # (1 - P_j) u_j + sum_{k != j} P_k u_k
    t = weights((P * cross).sqrt(), -1)
    note(t)
    r = cross / t
    spread = (P.square() * r).sum(-1)[..., None, None] - (P * r)[..., :, None] - (P * r)[..., None, :]
    total = up(t.masked_fill(point.hidden, 0.0).sum(-1), keys)[..., None, None]
    return radius, total * (torch.diag_embed(r + cross_rounding(point, r)) + spread)


def _scores_by_own(asked: AskedErrors, own_key: Tensor) -> Tensor:
    """(B, H, I, S, S): a Gram of the change by the query's own token. Its query's change is multiplied by
    a_j = (K_j - Kbar) / sqrt(e), its key's change by (delta_ij - P_ii) Q_i / sqrt(e). `own_key` (B, H, I) is the square
    of the extent of Q_i . K_dot_i / sqrt(e)."""
    point = asked.point
    P, own, attention = point.P, point.own, point.attention
    a = (point.K[:, :, None] - (P @ point.K)[:, :, :, None]) * attention.scale  # (B, H, I, S, e)
    kept = own.to(P.dtype) - (P * own).sum(-1, keepdim=True)
    merged = point.queries.of_moving(asked.source.merged, 1)
    met = (asked.keys.transpose(1, 2) @ merged).transpose(1, 2)  # (B, H, I, d)
    shared = (met @ by_head(attention.w_q, attention.n_heads))[..., None, :]
    mixed = (a @ shared.mT * attention.scale).squeeze(-1)
    gram = a @ asked.QQ @ a.mT + mixed[..., :, None] * kept[..., None, :] + kept[..., :, None] * mixed[..., None, :]
    gram = gram + own_key[..., None, None] * kept[..., :, None] * kept[..., None, :]
    return widened(gram, own_rounding(point, merged, a, kept))


def row_minkowski(P: Tensor, *grams: Tensor, note: Note = unnoted) -> Tensor:
    """minkowski for Grams (..., S, S) over the keys of a row, traces weighted by P (..., S)."""
    sizes = torch.stack([(Q.diagonal(dim1=-2, dim2=-1).clamp(min=0) * P).sum(-1).sqrt() for Q in grams])
    t = weights(sizes, dim=0)
    note(t)
    parts = [(t.sum(0) / ti)[..., None, None] * Q for ti, Q in zip(t, grams, strict=True)]
    out = torch.stack(parts).sum(0)
    return widened(out, up(gamma(8, out.dtype) * trace(out)))


@dataclass(frozen=True)
class ImageWeights:
    """The weights of the Minkowski sum that is a query's new error."""

    own: Tensor  # (3, B, I): the query's own old error, LayerNorm's there, rounding
    local: Tensor  # (B, H, I): new errors, head by head
    crossed: Tensor  # (B, I, n): errors of other tokens


@dataclass(frozen=True)
class ScoreImages:
    """The images of score changes in the heads' outputs: a centred change u of a row adds sum_j P_j u_j values_j."""

    values: Tensor  # (B, H, I, S, e)
    key: Tensor  # as in ErrorScores
    off: Tensor | None = None  # (B, H, I, S): how far from these, in length, the checker's may be; None: no certificate


def error_images(
    asked: AskedErrors, scores: ScoreImages, local: Tensor, rounding: Tensor, limit: int
) -> tuple[Tensor, ImageWeights]:
    """(B, I, d, d): the Minkowski sum, per query, of the images of all old errors, of the new errors `local`, and of
    the box `rounding` (B, I, d); and its weights.

    `local` (B, H, I, e, e) is in head space. The images of other tokens need no d x d map per pair of tokens: see
    `_crossed`.
    """
    point, source = asked.point, asked.source
    I, H, queries = point.n_queries, point.attention.n_heads, point.queries  # noqa: E741
    w_o = point.attention.w_o.unflatten(0, (H, -1))
    metric = w_o.square().sum((-1, -2)) / w_o.shape[1]  # (H,): what a head's feature weighs in the output, on average
    t_local = weights((metric[:, None] * local.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)).sqrt(), 1)  # (B, H, I)
    own_map = _own_map(asked, scores.values)
    carried = sandwich(queries.of_moving(source.z.Q, 1), source.norm.at(queries).with_skip(own_map))
    fresh = sandwich(queries.of_moving(source.norm.error_gram, 1), own_map)
    t_own = weights(torch.stack([trace(carried).sqrt(), trace(fresh).sqrt(), rounding.sum(-1)]), 0)  # (3, B, I)
    out = carried.div_(t_own[0, ..., None, None]).addcdiv_(fresh, t_own[1, ..., None, None])
    total = t_own.sum(0) + t_local.sum(1)
    crossed = []
    for part in chunks(I, _query_bytes(point), limit):
        inner, t_crossed = _crossed(asked, scores, metric, part)
        blocks = local[:, :, part] / t_local[:, :, part, None, None]
        head_blocks(inner, H).add_(blocks)
        out[:, part] += sandwich(inner, point.attention.w_o)
        crossed.append(t_crossed)
    out.diagonal(dim1=-2, dim2=-1).add_(up(rounding * (rounding.sum(-1) / t_own[2])[..., None], 2 * rounding.shape[-1]))
    t = ImageWeights(t_own, t_local, torch.cat(crossed, dim=1))
    total = up(total + (t.crossed * others(point)).sum(-1), point.P.shape[-1] + H)
    return handed_on(rounded_out(out.mul_(total[..., None, None]))), t


def others(point: BranchPoint) -> Tensor:
    """(B, I, n) booleans: the query sees this moving token, and it is not its own."""
    return ~(point.own[:, point.first :] | point.hidden[:, 0, :, point.first :])


def _query_bytes(point: BranchPoint) -> int:
    B, H, S, e = point.K.shape
    return 4 * point.K.element_size() * B * S * H * H * e


def _crossed(asked: AskedErrors, scores: ScoreImages, metric: Tensor, queries: slice) -> tuple[Tensor, Tensor]:
    """sum_{s != i} Gram_is / t_is (B, i, d, d) in head space, and t_is (B, i, n), for a slice of queries.

    Source s moves head h of query i by P_is^h V_dot_s^h + b_is^h (Q_i^h . K_dot_s^h), b = P scores.values / sqrt(e).
    Block (h, g) of its Gram is  P^h P^g VV_s^hg + P^h x_hg (b^g)^T + b^h (P^g x_gh)^T + y_hg b^h (b^g)^T  with
    x_hg = W_v^h . merged_s keys_i^g and y_hg = keys_i^h . merged_s keys_i^g. Memory O(i n H d), time O(i n H d^2).
    """
    point, source = asked.point, asked.source
    first, H = point.first, point.attention.n_heads
    Q, P = point.Q[:, :, queries], point.P[:, :, queries, first:]  # (B, H, i, e), (B, H, i, n)
    b = scores.values[:, :, queries, first:] * (P * point.attention.scale)[..., None]  # (B, H, i, n, e)
    other = others(point)[:, queries]  # (B, i, n)
    # Any weights are sound. These are the images' sizes, but for the triangle inequality and correlations in W_o.
    length_b = torch.linalg.vector_norm(b, dim=-1)
    off_b = None if scores.off is None else scores.off[:, :, queries, first:] * (P * point.attention.scale)
    by_score = (length_b if off_b is None else length_b + off_b) * scores.key[:, :, queries] / point.attention.scale
    size = P * trace(source.VV_heads).sqrt()[:, :, None] + by_score
    t = weights((metric[:, None, None] * size.square()).sum(1).sqrt() * other, -1)
    inverse = other / t

    e = Q.shape[-1]
    omega = P[:, :, None] * P[:, None] * inverse[:, None, None]  # (B, H, G, i, n)
    VV = source.VV.unflatten(-1, (H, e)).unflatten(-3, (H, e))
    VV = VV.permute(0, 2, 4, 1, 3, 5).flatten(-2)  # (B, H, G, n, e e)
    inner = (omega @ VV).unflatten(-1, (e, e)).permute(0, 3, 1, 4, 2, 5).flatten(-2).flatten(-3, -2)  # (B, i, d, d)

    keys = asked.keys[:, :, queries]  # (B, G, i, d)
    met = keys.flatten(1, 2)[:, None] @ source.merged  # (B, n, G i, d)
    x = (met @ point.attention.w_v).unflatten(2, keys.shape[1:3]).permute(0, 2, 3, 1, 4)
    x = x.unflatten(-1, (H, e))  # (B, G, i, n, H, e)
    y = torch.einsum("bhid,bngid->bghin", keys, met.unflatten(2, keys.shape[1:3]))
    left = P.permute(0, 2, 3, 1)[:, None, ..., None] * x + 0.5 * torch.einsum("bghin,bhine->bginhe", y, b)
    left = (left * inverse[:, None, ..., None, None]).flatten(-2)  # (B, G, i, n, d)
    bent = (left.mT @ b).permute(0, 2, 3, 1, 4).flatten(-2)  # (B, i, d, d)
    inner = symmetrised(inner + bent + bent.mT)
    rounded = crossed_rounding(point, source, Crossed(P, length_b, off_b, inverse, queries))
    return widened(inner, rounded), t


def _own_map(asked: AskedErrors, score_values: Tensor) -> Tensor:
    """(B, I, d, d): how a change of LayerNorm's output at the query's own token moves the branch there."""
    point, attention, H = asked.point, asked.point.attention, asked.point.attention.n_heads
    w_q, w_v = (w.unflatten(-1, (H, -1)) for w in (attention.w_q, attention.w_v))  # (d, H, e)
    weighted = point.P * attention.scale
    own_P = (point.P * point.own).sum(-1)  # (B, H, I)
    own_b = ((weighted * point.own)[..., None, :] @ score_values).squeeze(-2)  # (B, H, I, e)
    by_query = (weighted[..., None] * point.K[:, :, None]).mT @ score_values  # (B, H, I, e, e)
    heads = torch.einsum("dhf,bhife->bidhe", w_q, by_query)
    heads.addcmul_(w_v, own_P.permute(0, 2, 1)[:, :, None, :, None])
    heads.addcmul_(asked.keys.permute(0, 2, 3, 1)[..., None], own_b.permute(0, 2, 1, 3)[:, :, None])
    return heads.flatten(-2) @ attention.w_o
