"""The attention block over an ellipsoidal zonotope, and its adjoint.

Tokens before the first one that can move are exact: they enter only by their keys and values (`prefix`). The last
attention of a model that reads its last token has one query (`n_queries`). Axes: B inputs, H heads, i queries, s or j keys,
m symbols, e features of a head; n moving tokens, S = prefix + n keys. Derivations: docs/math.md, "Method E: attention".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks
from zonogpt.domains.ellipsoidal import (
    EllipsoidalZonotope,
    box_cover,
    coordinate_radius,
    lambda_max,
    minkowski,
    rounded_out,
    sandwich,
    support,
    trace,
    weights,
)
from zonogpt.domains.finite import require_finite
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.ir import AttentionBlock
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep, layernorm_step
from zonogpt.transforms.ellipsoidal.softmax import SoftmaxStep, softmax_step


SYMBOL_CHUNK_BYTES = 1 << 30


@dataclass(frozen=True)
class Point:
    """The branch at the (shifted) centre of LayerNorm's output."""

    block: AttentionBlock
    Q: Tensor  # (B, H, I, e)
    K: Tensor  # (B, H, S, e)
    V: Tensor  # (B, H, S, e)
    log_P: Tensor  # (B, H, I, S)
    P: Tensor
    O: Tensor  # noqa: E741  (B, H, I, e)
    first: int  # index of the first moving token among the keys
    n_queries: int

    @property
    def values(self) -> Tensor:
        """v'_ij = V_j - O_i, (B, H, I, S, e)."""
        return self.V[:, :, None] - self.O[:, :, :, None]


def attention_at(block: AttentionBlock, prefix: Tensor, n: Tensor, n_queries: int) -> Point:
    """`prefix` (B, p, d) and `n` (B, n, d): LayerNorm's output at the still and at the moving tokens."""
    whole = torch.cat([prefix, n], dim=1)
    first, S = prefix.shape[1], whole.shape[1]
    Q, K, V = map(block.split_heads, (whole @ block.w_qkv + block.b_qkv).chunk(3, dim=-1))
    Q = Q[:, :, S - n_queries :]
    scores = (Q @ K.mT) * block.scale
    require_finite("attention scores", Q, K, V, scores)
    visible = block.visible(S)[S - n_queries :]
    log_P = scores.masked_fill(~visible, -math.inf).log_softmax(-1)
    require_finite("attention scores", log_P[:, :, visible])  # -inf is to mean "masked" and nothing else
    P = log_P.exp()
    return Point(block, Q, K, V, log_P, P, P @ V, first, n_queries)


@dataclass(frozen=True)
class Tangents:
    """Of a chunk of m symbols, token first: dQ (B, H, I, m, e), dK, dV (B, H, n, m, e), U (B, H, I, m, S) centred."""

    Q: Tensor
    K: Tensor
    V: Tensor
    W: Tensor


def tangents(point: Point, n_dot: Tensor) -> Tangents:
    """For tangents n_dot (B, n, m, d) of LayerNorm's output."""
    block, I = point.block, point.n_queries  # noqa: E741
    Q, K, V = (
        part.unflatten(-1, (block.n_heads, -1)).permute(0, 3, 1, 2, 4)
        for part in (n_dot @ block.w_qkv).chunk(3, dim=-1)
    )
    Q = Q[:, :, -I:]
    U = Q @ point.K[:, :, None].mT  # (B, H, I, m, S)
    U[..., point.first :] += torch.einsum("bhie,bhjme->bhimj", point.Q, K)
    U = U * block.scale
    mean = U @ point.P[..., None]  # masked keys have P = 0
    return Tangents(Q, K, V, (U - mean).masked_fill((point.log_P == -math.inf)[..., None, :], 0.0))


def branch_images(point: Point, t: Tangents, score_values: Tensor) -> Tensor:
    """The tangents behind the branch, (B, I, m, d)."""
    heads = (t.W * point.P[..., None, :]) @ score_values  # (B, H, I, m, e)
    heads = heads + torch.einsum("bhij,bhjme->bhime", point.P[..., point.first :], t.V)
    return heads.permute(0, 2, 3, 1, 4).flatten(-2) @ point.block.w_o


@dataclass(frozen=True)
class Spreads:
    """Sums over the input symbols of the tangents."""

    Q: SymbolSums
    K: SymbolSums
    V: SymbolSums
    W: SymbolSums


@dataclass(frozen=True)
class Projections:
    """Grams of the ellipsoids' part of LayerNorm's change, seen by queries, keys and values."""

    KK: Tensor  # (B, n, d, d), all heads
    KV: Tensor
    VV: Tensor
    QQ: Tensor  # (B, H, I, e, e), per head
    QK: Tensor  # (B, H, I, e, e): query by key of the same token

    def per_head(self, gram: Tensor, n_heads: int) -> Tensor:
        """The diagonal blocks of (B, n, d, d): (B, H, n, e, e)."""
        blocks = gram.unflatten(-1, (n_heads, -1)).unflatten(-3, (n_heads, -1))  # (B, n, H, e, H, e)
        return blocks.diagonal(dim1=2, dim2=4).permute(0, 4, 1, 2, 3)


def project(block: AttentionBlock, merged: Tensor, n_queries: int) -> Projections:
    d, H = merged.shape[-1], block.n_heads
    w_q, w_k, w_v = block.w_qkv.chunk(3, dim=-1)
    half = merged @ block.w_qkv[:, d:]  # (B, n, d, 2d)
    full = block.w_qkv[:, d:].mT @ half
    to_q = merged[:, -n_queries:] @ w_q  # (B, I, d, d)
    heads_q = to_q.unflatten(-1, (H, -1)).permute(0, 3, 1, 2, 4)  # (B, H, I, d, e)
    wq, wk = (w.unflatten(-1, (H, -1)).permute(1, 2, 0)[:, None] for w in (w_q, w_k))  # (H, 1, e, d)
    return Projections(
        KK=full[..., :d, :d], KV=full[..., :d, d:], VV=full[..., d:, d:],
        QQ=wq @ heads_q, QK=(wk @ heads_q).mT,
    )  # fmt: skip


def error_scores(point: Point, pr: Projections) -> tuple[Tensor, Tensor, Tensor]:
    """e_W (B, H, I, S), what the error ellipsoids do to the centred scores, and Q_i^T K K^T Q_i (B, H, I, n)."""
    block, first = point.block, point.first
    KK = pr.per_head(pr.KK, block.n_heads)  # (B, H, n, e, e)
    y = torch.einsum("bhie,bhnef,bhif->bhin", point.Q, KK, point.Q).clamp(min=0)
    P, n, I = point.P[..., first:], KK.shape[2], point.n_queries  # noqa: E741
    own = torch.zeros(I, n, dtype=torch.bool, device=P.device)
    own[torch.arange(I), torch.arange(n - I, n)] = True
    key = y.sqrt()
    cross = (P * key).masked_fill(own, 0.0)
    others = torch.zeros_like(point.P)
    others[..., first:] = ((1 - P) * key).masked_fill(own, 0.0) - cross
    others = others + cross.sum(-1, keepdim=True)
    # The query's own token moves its query and its key together.
    K_bar = point.P @ point.K
    a = point.K[:, :, None] - K_bar[:, :, :, None]  # (B, H, I, S, e)
    at_own = torch.zeros_like(point.P)
    at_own[..., first:] = own.to(P.dtype)
    weight = at_own - (point.P * at_own).sum(-1, keepdim=True)  # delta_ij - P_ii
    QKq = (pr.QK @ point.Q[..., None]).squeeze(-1)  # (B, H, I, e)
    y_own = (y * own).sum(-1, keepdim=True)
    var = ((a @ pr.QQ) * a).sum(-1) + 2 * weight * (a @ QKq[..., None]).squeeze(-1) + weight.square() * y_own
    e_W = (var.clamp(min=0).sqrt() + others) * block.scale
    hidden = point.log_P == -math.inf
    # All keys of a row together.
    a = a.masked_fill(hidden[..., None], 0.0)
    weight = weight.masked_fill(hidden, 0.0)
    aq = (a @ QKq[..., None]).squeeze(-1)
    gram_own = a @ pr.QQ @ a.mT + aq[..., :, None] * weight[..., None, :] + weight[..., :, None] * aq[..., None, :]
    gram_own = gram_own + y_own[..., None] * weight[..., :, None] * weight[..., None, :]
    yy = torch.zeros_like(point.P)
    yy[..., first:] = y.masked_fill(own, 0.0)
    yy = yy.masked_fill(hidden, 0.0)
    t = weights((yy * point.P).sqrt(), -1)
    r = yy / t
    Pr = point.P * r
    cross_gram = torch.diag_embed(r) - Pr[..., :, None] - Pr[..., None, :] + (point.P * Pr).sum(-1)[..., None, None]
    cross_gram = cross_gram.masked_fill(hidden[..., None, :] | hidden[..., :, None], 0.0)
    cross_gram = t.sum(-1)[..., None, None] * cross_gram
    gram = weighted_minkowski(point.P, gram_own, cross_gram) * block.scale**2
    return e_W.masked_fill(hidden, 0.0), y, gram


def weighted_minkowski(P: Tensor, *grams: Tensor) -> Tensor:
    """minkowski for Grams over the keys of a row, with the traces weighted by P."""
    t = weights(torch.stack([(Q.diagonal(dim1=-2, dim2=-1) * P).sum(-1).clamp(min=0).sqrt() for Q in grams]), dim=0)
    return sum(((t.sum(0) / ti)[..., None, None] * Q for ti, Q in zip(t, grams, strict=True)), torch.zeros_like(grams[0]))


@dataclass(frozen=True)
class AttentionStep:
    point: Point
    norm: LayerNormStep
    softmax: SoftmaxStep
    value_gram: Tensor  # (B, H, n, e, e): cover of the values' change
    product_gram: Tensor

    def pull(self, functionals: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Functionals (B, K, I, d) of the block's output as functionals (B, K, n, d) of its input, and the losses."""
        point, s, block = self.point, self.softmax, self.point.block
        first, I = point.first, point.n_queries  # noqa: E741
        w = block.split_heads(functionals @ block.w_o.T)  # (B, K, H, I, e)
        along = torch.einsum("bkhie,bhje->bkhij", w, point.V) - torch.einsum("bkhie,bhie->bkhi", w, point.O)[..., None]
        size = along.abs()
        softmax = (s.error[:, None] * size).sum((-1, -2, -3)) + (s.common[:, None] * along).sum(-1).abs().sum((-1, -2))
        scores = (s.scores[:, None] * size).sum((-1, -2, -3))
        value = torch.einsum("bkhie,bhnef,bkhif->bkhin", w, self.value_gram, w).clamp(min=0).sqrt()
        product = (s.total[:, None, ..., first:] * value).sum(-1)
        product = torch.minimum(product, ((w[..., None, :] @ self.product_gram[:, None]).squeeze(-2) * w).sum(-1).clamp(min=0).sqrt()).sum((-1, -2))

        P = point.P[:, None]
        sloped = s.slope[:, None] * along
        slope = P * (sloped - (P * sloped).sum(-1, keepdim=True)) * block.scale  # (B, K, H, I, S)
        lam_V = P[..., first:].mT @ w  # (B, K, H, n, e)
        lam_K = slope[..., first:].mT @ point.Q[:, None]
        lam_Q = torch.zeros_like(lam_V)
        lam_Q[..., -I:, :] = slope @ point.K[:, None]
        branch = torch.cat([block.join_heads(x) for x in (lam_Q, lam_K, lam_V)], dim=-1) @ block.w_qkv.T
        before, norm = self.norm.pull(branch)
        before[:, :, -I:] += functionals
        return before, {"layernorm": norm, "softmax": softmax, "scores": scores, "product": product}


def attention_step(
    block: AttentionBlock, z: EllipsoidalZonotope, prefix: Tensor, n_queries: int
) -> tuple[EllipsoidalZonotope, AttentionStep]:
    """Z' with A(x) in Z' at the last `n_queries` tokens, for x in z behind the still tokens `prefix` (B, p, d)."""
    norm = layernorm_step(block.norm, z)
    point = attention_at(block, block.norm(prefix), norm.centre, n_queries)
    merged = minkowski(norm.jacobian_gram(z.Q), norm.error_gram)
    pr = project(block, merged, n_queries)
    H = block.n_heads

    sums = Spreads(SymbolSums(z.p), SymbolSums(z.p), SymbolSums(z.p), SymbolSums(z.p))
    B, n, m, d = z.G.shape
    values = point.values
    images = torch.empty(B, n_queries, m, d, dtype=z.G.dtype, device=z.G.device)
    parts = list(chunks(m, symbol_bytes(point), SYMBOL_CHUNK_BYTES))
    t = None
    for part in parts:
        t = tangents(point, norm.jacobian(z.G[:, :, part]))
        sums.Q.add(t.Q), sums.K.add(t.K), sums.V.add(t.V), sums.W.add(t.W)

    e_W, y, error_gram = error_scores(point, pr)
    score_gram = weighted_minkowski(point.P, sums.W.cover, error_gram)
    KK, VV = pr.per_head(pr.KK, H), pr.per_head(pr.VV, H)
    T_Q = sums.Q.radius + coordinate_radius(pr.QQ)
    T_K = sums.K.radius + coordinate_radius(KK)
    rho_Q = sums.Q.square().sqrt() + lambda_max(pr.QQ).sqrt()  # (B, H, I)
    rho_K = sums.K.square().sqrt() + lambda_max(KK).sqrt()
    R_U = torch.zeros_like(point.P)
    R_U[..., point.first :] = torch.minimum(T_Q @ T_K.mT, rho_Q[..., None] * rho_K[..., None, :]) * block.scale
    R_U = R_U.masked_fill(point.log_P == -math.inf, 0.0)
    length = torch.linalg.vector_norm(values, dim=-1)
    s = softmax_step(point.log_P, sums.W.radius + e_W, R_U, score_gram, length)
    require_finite("attention softmax", s.slope, s.error, s.total)
    score_values = s.slope[..., None] * values
    score_values = score_values - point.P[..., None, :] @ score_values
    for part in parts:
        if len(parts) > 1:
            t = tangents(point, norm.jacobian(z.G[:, :, part]))
        images[:, :, part] = branch_images(point, t, score_values)

    # New errors, per head and query, in head space.
    value_gram = minkowski(sums.V.cover, VV)  # (B, H, n, e, e)
    size_V = trace(value_gram).sqrt()
    weight_P = s.total[..., point.first :]
    tau = weights(weight_P, -1) / weights(size_V, -1)[:, :, None]
    inverse = 1 / tau
    root = point.P[..., point.first :] * inverse.sqrt()
    jointly = lambda_max(root[..., :, None] * score_gram[..., point.first :, point.first :] * root[..., None, :]).sqrt()
    jointly = (jointly + (s.residual[..., point.first :].square() * inverse).sum(-1).sqrt()).square()
    apart = (weight_P.square() * inverse).sum(-1)
    product = torch.fmin(apart, jointly)[..., None, None] * torch.einsum("bhin,bhnef->bhief", tau, value_gram)
    common = s.common[..., None, :] @ values  # (B, H, I, 1, e)
    local = minkowski(box_cover(torch.cat([values, common], -2), torch.nn.functional.pad(s.error + s.scores, (0, 1), value=1.0)), product)

    shift = (s.shift[..., None, :] @ values).squeeze(-2)  # (B, H, I, e)
    c = z.c[:, -n_queries:] + block.join_heads(point.O + shift) @ block.w_o + block.b_o
    Q = error_images(point, norm, z, pr, y, score_values, local)
    images += z.G[:, -n_queries:]
    out = EllipsoidalZonotope(c=c, G=images, Q=rounded_out(Q), p=z.p)
    require_finite("attention output", out.c, out.G, out.Q)
    return out, AttentionStep(point, norm, s, value_gram, product)


def symbol_bytes(point: Point) -> int:
    B, H, S, e = point.K.shape
    return point.K.element_size() * B * (8 * S * H * e + 4 * H * point.n_queries * S)


def error_images(
    point: Point,
    norm: LayerNormStep,
    z: EllipsoidalZonotope,
    pr: Projections,
    y: Tensor,
    score_values: Tensor,
    local: Tensor,
) -> Tensor:
    """(B, I, d, d): the Minkowski sum, per query, of every old error's image and the new errors `local`.

    A source s moves query i != s by sum_h W_o^h P_is^h (V_dot_s + v'_is (Q_i . K_dot_s) / sqrt(e)), a map of rank
    structure: its Gram needs only the Grams of keys and values of s, so no S^2 d x d maps are formed.
    """
    block, first, I = point.block, point.first, point.n_queries  # noqa: E741
    H, B, n, d = block.n_heads, *z.c.shape
    e = d // H
    w_o = block.w_o.unflatten(0, (H, e))
    metric = w_o.square().sum((-1, -2)) / e  # (H,): what a head's features weigh in the output, on average
    own = torch.zeros(I, n, dtype=torch.bool, device=z.c.device)
    own[torch.arange(I), torch.arange(n - I, n)] = True

    P = point.P[..., first:]  # (B, H, I, n)
    b = score_values[..., first:, :] * (P * block.scale)[..., None]  # (B, H, I, n, e)
    # X: value by key score, for every query: x[b, h', i, n, d] = VK_s[:, h'] q_i^h'
    KV = pr.KV.unflatten(-2, (H, e))  # (B, n, H', e', d)
    x = torch.einsum("bhie,bnhed->bhind", point.Q, KV)  # (B, H', I, n, d)
    KK = pr.KK.unflatten(-1, (H, e)).unflatten(-3, (H, e))  # (B, n, H, e, H', e')
    yy = torch.einsum("bhie,bnhegf->bhingf", point.Q, KK)
    yy = torch.einsum("bhingf,bgif->bhgin", yy, point.Q)  # (B, H, H', I, n)

    # Any weights are sound; these are the traces of the images, up to the triangle inequality and W_o's correlations.
    size = P * trace(pr.per_head(pr.VV, H)).sqrt()[:, :, None] + torch.linalg.vector_norm(b, dim=-1) * y.sqrt()
    t_pair = torch.einsum("h,bhin->bin", metric, size.square()).sqrt()
    hidden = own | (point.log_P[:, 0, :, first:] == -math.inf)
    t_pair = weights(t_pair.masked_fill(hidden, 0.0), -1)
    inverse = (1 / t_pair).masked_fill(hidden, 0.0)  # (B, I, n)
    t_local = weights((metric[:, None] * trace(local)).sqrt(), 1)  # (B, H, I)

    # Value part: sum_s P^h P^h' / t  VV_s^{hh'}
    omega = P[:, :, None] * P[:, None] * inverse[:, None, None]  # (B, H, H', I, n)
    VV = pr.VV.unflatten(-1, (H, e)).unflatten(-3, (H, e)).permute(0, 2, 4, 1, 3, 5).flatten(-2)  # (B, H, H', n, e e')
    inner = (omega @ VV).unflatten(-1, (e, e)).permute(0, 3, 1, 4, 2, 5).flatten(-2).flatten(-3, -2)  # (B, I, d, d)
    # Score part: (P^h x[h,h'] + 1/2 y^{hh'} b^h) / t  outer  b^h'
    xh = x.unflatten(-1, (H, e))  # (B, H', I, n, H, e)
    left = P.permute(0, 2, 3, 1)[:, None, ..., None] * xh  # P_is^h x
    left = left + 0.5 * torch.einsum("bhgin,bhine->bginhe", yy, b)
    left = (left * inverse[:, None, :, :, None, None]).flatten(-2)  # (B, H', I, n, d)
    z_part = left.mT @ b  # (B, H', I, d, e')
    z_part = z_part.permute(0, 2, 3, 1, 4).flatten(-2)  # (B, I, d, d)
    inner = inner + z_part + z_part.mT
    # New errors: block diagonal
    blocks = local / t_local[..., None, None]  # (B, H, I, e, e)
    inner.unflatten(-1, (H, e)).unflatten(-3, (H, e)).diagonal(dim1=2, dim2=4).add_(blocks.permute(0, 2, 3, 4, 1))

    # The query's own token: query, key, value and the skip move together.
    w_q, w_k, w_v = (w.unflatten(-1, (H, e)) for w in block.w_qkv.chunk(3, dim=-1))  # (d, H, e)
    P_own = (P * own).sum(-1)  # (B, H, I)
    b_own = (b * own[..., None]).sum(-2)  # (B, H, I, e)
    C = torch.einsum("bhij,bhje,bhijf->bhief", point.P * block.scale, point.K, score_values)
    A = torch.einsum("dhe,bhi->bidhe", w_v, P_own)
    A = A + torch.einsum("bidh,bhie->bidhe", torch.einsum("dhe,bhie->bidh", w_k, point.Q), b_own)
    A = A + torch.einsum("dhf,bhife->bidhe", w_q, C)
    own_map = A.flatten(-2) @ block.w_o  # (B, I, d, d)
    queries = _last(norm, I)
    eye = torch.eye(d, dtype=A.dtype, device=A.device)
    carried = sandwich(z.Q[:, -I:], eye + queries.jacobian_adjoint(own_map))
    fresh = sandwich(norm.error_gram[:, -I:], own_map)
    t_own = weights(torch.stack([trace(carried).sqrt(), trace(fresh).sqrt()]), 0)  # (2, B, I)

    total = t_pair.sum(-1) + t_local.sum(1) + t_own.sum(0)  # (B, I)
    scale = t_own[..., None, None]
    return total[..., None, None] * (sandwich(inner, block.w_o) + carried / scale[0] + fresh / scale[1])


def _last(norm: LayerNormStep, count: int) -> LayerNormStep:
    import dataclasses

    return dataclasses.replace(norm, sloped=norm.sloped[:, -count:], a0=norm.a0[:, -count:], z0=norm.z0[:, -count:])
