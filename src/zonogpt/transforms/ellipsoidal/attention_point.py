"""The attention branch at the centre of LayerNorm's output, and the images of the input's symbols.

Axes: B inputs, H heads, i queries (I of them), j or s keys (S), m symbols, e features of a head. Tokens before the
first one that can move are exact but for rounding: they are keys and values, never queries or sources. The last n keys
are the moving tokens, the last I of these the queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.finite import require_finite
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.ir import AttentionBlock
from zonogpt.transforms.attention_rounding import doubt_of


@dataclass(frozen=True)
class AttentionPoint:
    block: AttentionBlock
    Q: Tensor  # (B, H, I, e)
    K: Tensor  # (B, H, S, e)
    V: Tensor  # (B, H, S, e)
    log_P: Tensor  # (B, H, I, S)
    P: Tensor
    O: Tensor  # noqa: E741  (B, H, I, e): P V
    doubt: Tensor  # (B, H, I): P is exp(log_P), normalised, up to this part of it
    first: int  # the first moving key

    @property
    def n_queries(self) -> int:
        return self.Q.shape[2]

    @property
    def hidden(self) -> Tensor:
        """(B, H, I, S): keys that the mask takes away, the same of every head."""
        return self.log_P == -math.inf

    @property
    def n_keys(self) -> Tensor:
        """(B, 1, I): how many keys a query sees."""
        return (~self.hidden[:, :1]).sum(-1)

    @property
    def own(self) -> Tensor:
        """(I, S) booleans: the key is the query's own token."""
        I, S = self.P.shape[-2:]  # noqa: E741
        at = torch.arange(S - I, S, device=self.P.device)
        return at[:, None] == torch.arange(S, device=self.P.device)

    def values(self) -> Tensor:
        """v'_ij = V_j - O_i, (B, H, I, S, e): an order I S d array."""
        return self.V[:, :, None] - self.O[:, :, :, None]


def attention_point(
    block: AttentionBlock, still: Tensor, moving: Tensor, n_queries: int, padding: Tensor | None = None
) -> AttentionPoint:
    """`still` (B, p, d) and `moving` (B, n, d): LayerNorm's output at the still tokens and the centre at the others.

    `padding` as in AttentionBlock.visible.
    """
    tokens = torch.cat([still, moving], dim=1)
    S = tokens.shape[1]
    Q, K, V = map(block.split_heads, (tokens @ block.w_qkv + block.b_qkv).chunk(3, dim=-1))
    Q = Q[:, :, S - n_queries :]
    scores = (Q @ K.mT) * block.scale
    require_finite("attention scores", Q, K, V, scores)
    masked = ~block.visible(S, padding)[..., S - n_queries :, :]
    log_P = scores.masked_fill(masked, -math.inf).log_softmax(-1)
    require_finite("attention scores", log_P.masked_fill(masked, 0.0))  # -inf is to mean "masked" and nothing else
    P = log_P.exp()
    return AttentionPoint(block, Q, K, V, log_P, P, P @ V, doubt_of(P), still.shape[1])


@dataclass(frozen=True)
class Tangents:
    """Of some symbols: Q (B, H, I, m, e), K and V (B, H, n, m, e), and centred scores W (B, H, I, m, S).

    W_ij = U_ij - sum_k P_ik U_ik: softmax does not see a change that all keys share.
    """

    Q: Tensor
    K: Tensor
    V: Tensor
    W: Tensor


def tangents(point: AttentionPoint, n_dot: Tensor) -> Tangents:
    """For tangents n_dot (B, n, m, d) of LayerNorm's output."""
    block = point.block
    Q, K, V = (
        part.unflatten(-1, (block.n_heads, -1)).permute(0, 3, 1, 2, 4).contiguous()
        for part in (n_dot @ block.w_qkv.to(n_dot.dtype)).chunk(3, dim=-1)
    )
    Q = Q[:, :, -point.n_queries :]
    U = Q @ point.K[:, :, None].mT.to(Q.dtype)
    U[..., point.first :] += torch.einsum("bhie,bhjme->bhimj", point.Q.to(K.dtype), K)
    U *= block.scale
    U -= U @ point.P[..., None].to(U.dtype)
    return Tangents(Q, K, V, U.masked_fill_(point.hidden[..., None, :], 0.0))


def branch_images(point: AttentionPoint, t: Tangents, score_values: Tensor) -> Tensor:
    """The tangents behind the branch, (B, I, m, d), when a centred score change u adds sum_j P_j u_j score_values_j."""
    dtype = t.W.dtype
    heads = t.W @ (point.P[..., None] * score_values).to(dtype)
    heads += torch.einsum("bhij,bhjme->bhime", point.P[..., point.first :].to(dtype), t.V)
    return heads.permute(0, 2, 3, 1, 4).flatten(-2) @ point.block.w_o.to(dtype)


class TangentSums:
    """What all symbols together do to queries, keys, values and centred scores."""

    def __init__(self, p: float, dtype: torch.dtype) -> None:
        self.Q, self.K, self.V, self.W = (SymbolSums(p, dtype) for _ in range(4))

    def add(self, t: Tangents) -> None:
        self.Q.add(t.Q)
        self.K.add(t.K)
        self.V.add(t.V)
        self.W.add(t.W)


def symbol_bytes(point: AttentionPoint) -> int:
    """Bytes that one symbol needs on its way through the branch."""
    B, H, S, e = point.K.shape
    return point.K.element_size() * B * (10 * S * H * e + 5 * H * point.n_queries * S)


def tangent_bytes(point: AttentionPoint) -> int:
    """Bytes of one symbol's tangents."""
    B, H, S, e = point.K.shape
    return point.K.element_size() * B * H * ((2 * (S - point.first) + point.n_queries) * e + point.n_queries * S)
