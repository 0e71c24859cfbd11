"""The attention branch at the centre of LayerNorm's output, and the images of the input's symbols.

Axes: B inputs, H heads, i queries (I of them), j or s keys (S), m symbols, e features of a head. Tokens before the
first one that can move are exact but for rounding: they are keys and values, never queries or sources. The last n keys
are the moving tokens; the queries are some of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.finite import require_finite
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.nodes import Attention, dense
from zonogpt.transforms.attention_rounding import doubt_of
from zonogpt.transforms.ellipsoidal.sources import Sources
from zonogpt.transforms.queries import Queries


@dataclass(frozen=True)
class BranchPoint:
    attention: Attention
    queries: Queries
    Q: Tensor  # (B, H, I, e)
    K: Tensor  # (B, H, S, e)
    V: Tensor  # (B, H, S, e)
    log_P: Tensor  # (B, H, I, S)
    P: Tensor
    O: Tensor  # noqa: E741  (B, H, I, e): P V
    doubt: Tensor  # (B, H, I): P as computed is the normalised exp(log_P), up to this share of it

    @property
    def first(self) -> int:
        """The first moving key."""
        return self.queries.prefix

    @property
    def n_queries(self) -> int:
        return self.Q.shape[2]

    @property
    def hidden(self) -> Tensor:
        """(B, H, I, S) booleans: the mask hides the key from the query; the same in every head."""
        return self.log_P == -math.inf

    @property
    def n_keys(self) -> Tensor:
        """(B, 1, I): how many keys a query sees."""
        return (~self.hidden[:, :1]).sum(-1)

    @property
    def own(self) -> Tensor:
        """(I, S) booleans: the key is the query's own token."""
        return self.queries.own(self.P.shape[-1], self.P.device)

    def values(self) -> Tensor:
        """(B, H, I, S, e): v'_ij = V_j - O_i. Memory O(B I S d)."""
        return self.V[:, :, None] - self.O[:, :, :, None]


def branch_point(source: Sources, queries: Queries, padding: Tensor | None = None) -> BranchPoint:
    """The branch at the sources' centre, for these queries; `padding` as in Attention.visible."""
    attention, K, V, S = source.attention, source.K, source.V, source.n_tokens
    Q = attention.split_heads(dense(queries.of_moving(source.norm.centre, 1), attention.w_q, attention.b_q))
    scores = (Q @ K.mT) * attention.scale
    require_finite("attention scores", Q, K, V, scores)
    masked = ~queries.of_all(attention.visible(S, padding), -2)
    log_P = scores.masked_fill(masked, -math.inf).log_softmax(-1)
    require_finite("attention scores", log_P.masked_fill(masked, 0.0))  # -inf must mean "masked" only
    P = log_P.exp()
    return BranchPoint(attention, queries, Q, K, V, log_P, P, P @ V, doubt_of(P))


@dataclass(frozen=True)
class Tangents:
    """Tangents of some symbols: Q (B, H, I, m, e), K and V (B, H, n, m, e), and centred scores W (B, H, I, m, S).

    W_ij = U_ij - sum_k P_ik U_ik: softmax does not see a change that all keys share.
    """

    Q: Tensor
    K: Tensor
    V: Tensor
    W: Tensor


def tangents(point: BranchPoint, n_dot: Tensor) -> Tangents:
    """The tangents that n_dot (B, n, m, d), tangents of LayerNorm's output, make in the branch."""
    attention = point.attention
    K, V = (_by_head(n_dot, w, attention.n_heads) for w in (attention.w_k, attention.w_v))
    Q = _by_head(point.queries.of_moving(n_dot, 1), attention.w_q, attention.n_heads)
    U = Q @ point.K[:, :, None].mT.to(Q.dtype)
    U[..., point.first :] += torch.einsum("bhie,bhjme->bhimj", point.Q.to(K.dtype), K)
    U *= attention.scale
    U -= U @ point.P[..., None].to(U.dtype)
    return Tangents(Q, K, V, U.masked_fill_(point.hidden[..., None, :], 0.0))


def _by_head(n_dot: Tensor, weight: Tensor, n_heads: int) -> Tensor:
    """(B, n, m, d) -> (B, H, n, m, e)."""
    return (n_dot @ weight.to(n_dot.dtype)).unflatten(-1, (n_heads, -1)).permute(0, 3, 1, 2, 4).contiguous()


def branch_images(point: BranchPoint, t: Tangents, score_values: Tensor) -> Tensor:
    """(B, I, m, d): the tangents' images in the branch's output; a score change u adds sum_j P_j u_j score_values_j."""
    dtype = t.W.dtype
    heads = t.W @ (point.P[..., None] * score_values).to(dtype)
    heads += torch.einsum("bhij,bhjme->bhime", point.P[..., point.first :].to(dtype), t.V)
    return heads.permute(0, 2, 3, 1, 4).flatten(-2) @ point.attention.w_o.to(dtype)


class TangentSums:
    """Sums over all symbols of the tangents of queries, keys, values and centred scores."""

    def __init__(self, p: float, dtype: torch.dtype) -> None:
        self.Q, self.K, self.V, self.W = (SymbolSums(p, dtype) for _ in range(4))

    def add(self, t: Tangents) -> None:
        self.Q.add(t.Q)
        self.K.add(t.K)
        self.V.add(t.V)
        self.W.add(t.W)


def symbol_bytes(point: BranchPoint, dtype: torch.dtype) -> int:
    """Bytes that one symbol needs on its way through the branch, its tangents held in this type."""
    B, H, S, e = point.K.shape
    return dtype.itemsize * B * (10 * S * H * e + 5 * H * point.n_queries * S)


def tangent_bytes(point: BranchPoint, dtype: torch.dtype) -> int:
    """Bytes of one symbol's tangents, held in this type."""
    B, H, S, e = point.K.shape
    return dtype.itemsize * B * H * ((2 * (S - point.first) + point.n_queries) * e + point.n_queries * S)
