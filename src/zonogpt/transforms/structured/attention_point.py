"""The attention branch at the centre of LayerNorm's output, and how tangents pass through it.

The branch is linearised at one point n (S, d): B(n) = concat_h(P_h V_h) W_o. Its nonlinear parts are the score
product, the softmax and the product with the values; Q, K and V are affine in n. Letters follow the paper; arrays
are head first: Q, K, V, O (H, S, e), P (H, S, S). A tangent of n lives either on all tokens (a shared generator) or on
one source token (a local generator); the second kind is cheap, because only the source's own query, key and value move.
Tangents may be of a shorter type than the point, which is then rounded to theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.finite import require_finite
from zonogpt.model.nodes import Attention, dense
from zonogpt.transforms.attention_rounding import doubt_of
from zonogpt.transforms.queries import Queries
from zonogpt.transforms.softmax import softmax_jvp


@dataclass(frozen=True)
class AttentionPoint:
    attention: Attention
    visible: Tensor  # (S, S) booleans
    Q: Tensor
    K: Tensor
    V: Tensor
    P: Tensor
    log_P: Tensor
    O: Tensor  # noqa: E741  (H, S, e): P V
    w_o: Tensor  # (H, e, d): W_o cut by heads
    VW: Tensor  # (H, S, d): V_h W_o^h, the paper's projected values
    OW: Tensor  # (H, S, d)
    doubt: Tensor  # (H, S): P as computed is the normalised exp(log_P), up to this share of it

    @property
    def n_tokens(self) -> int:
        return self.visible.shape[0]

    @property
    def hidden(self) -> Tensor:
        return ~self.visible

    @property
    def n_keys(self) -> Tensor:
        """(1, S): how many keys a query sees."""
        return self.visible.sum(-1)[None]

    def branch(self) -> Tensor:
        """B(n) + b_o, (S, d)."""
        out = self.OW.sum(0)
        return out if self.attention.b_o is None else out + self.attention.b_o

    @property
    def queries(self) -> Queries:
        """All tokens are queries."""
        return Queries.every(self.n_tokens)


def attention_point(attention: Attention, n: Tensor) -> AttentionPoint:
    """Evaluates the branch at n (S, d)."""
    Q, K, V = (attention.split_heads(dense(n, w, b)) for w, b in attention.projections)
    visible = attention.visible(n.shape[0])
    scores = (Q @ K.transpose(-1, -2)) * attention.scale
    require_finite("attention scores", Q, K, V, scores)
    log_P = scores.masked_fill(~visible, -math.inf).log_softmax(-1)
    require_finite("attention scores", log_P[:, visible])  # -inf must mean "masked" only
    P = log_P.exp()
    O = P @ V  # noqa: E741
    w_o = attention.w_o.unflatten(0, (attention.n_heads, -1))
    return AttentionPoint(attention, visible, Q, K, V, P, log_P, O, w_o, V @ w_o, O @ w_o, doubt_of(P))


@dataclass(frozen=True)
class SharedTangents:
    """The images of n tangents that touch all tokens: Q, K, V (n, H, S, e), U and P (n, H, S, S)."""

    Q: Tensor
    K: Tensor
    V: Tensor
    U: Tensor
    P: Tensor


def shared_tangents(point: AttentionPoint, n_dot: Tensor) -> SharedTangents:
    """Tangents of Q, K, V, U, P for tangents n_dot (n, S, d) of LayerNorm's output."""
    Q, K, V = (point.attention.split_heads(n_dot @ w) for w, _ in point.attention.projections)
    U = (Q @ point.K.transpose(-1, -2) + point.Q @ K.transpose(-1, -2)) * point.attention.scale
    U = U.masked_fill(~point.visible, 0.0)
    return SharedTangents(Q, K, V, U, softmax_jvp(point.P, U))


def shared_images(point: AttentionPoint, t: SharedTangents, sloped: Tensor) -> Tensor:
    """Images in the branch's output, (n, S, d), with softmax's slope only in the rows `sloped` (H, S)."""
    P_dot = t.P * sloped[..., None].to(t.P.dtype)
    return point.attention.join_heads(P_dot @ point.V + point.P @ t.V) @ point.attention.w_o


@dataclass(frozen=True)
class LocalTangents:
    """The images of n tangents at each source token s: Q, K, V (S, n, H, e); scores split in what a source changes.

    column (S, n, H, S): the score of query i on the source's key, for i != s (zero at i = s)
    row    (S, n, H, S): the source's own query's scores on every key j
    row_P  (S, n, H, S): the softmax tangent of that row
    """

    Q: Tensor
    K: Tensor
    V: Tensor
    column: Tensor
    row: Tensor
    row_P: Tensor


def local_tangents(point: AttentionPoint, n_dot: Tensor) -> LocalTangents:
    """Tangents for n_dot (S, n, d): n tangents of LayerNorm's output at each token alone."""
    attention, S = point.attention, point.n_tokens
    Q, K, V = ((n_dot @ w).unflatten(-1, (attention.n_heads, -1)) for w, _ in attention.projections)
    column = torch.einsum("snhe,hie->snhi", K, point.Q) * attention.scale
    column = column * point.visible.T[:, None, None, :].to(column.dtype)  # query i sees source s
    row = torch.einsum("snhe,hje->snhj", Q, point.K) * attention.scale
    row = row * point.visible[:, None, None, :].to(row.dtype)
    own = torch.eye(S, dtype=column.dtype, device=column.device)[:, None, None, :]
    row = row + column * own  # the source's query meets its own key
    row_P = softmax_jvp(point.P.transpose(0, 1)[:, None], row)
    return LocalTangents(Q, K, V, column * (1 - own), row, row_P)


def value_images(point: AttentionPoint, V_dot: Tensor) -> Tensor:
    """V_dot W_o head by head: (..., H, e) -> (..., H, d)."""
    return (V_dot.transpose(-2, -3) @ point.w_o).transpose(-2, -3)


def own_images(point: AttentionPoint, s: int, V_image: Tensor, row_P: Tensor, sloped: Tensor) -> Tensor:
    """Images at the source token s itself, (n, d), from V_image (n, H, d) and row_P (n, H, S)."""
    P_dot = row_P * sloped[:, s, None].to(row_P.dtype)
    return torch.einsum("h,nhd->nd", point.P[:, s, s], V_image) + P_dot.flatten(1) @ point.VW.flatten(0, 1)


def cross_images(
    point: AttentionPoint, s: int, queries: Tensor, V_image: Tensor, column: Tensor, sloped: Tensor
) -> Tensor:
    """Images at `queries` (I,), none of them s, of tangents at source s: (I, n, d).

    d(sum_j P_ij V_j) = P_is V_dot_s + P_is u_i (V_s - O_i), u_i the change of query i's score on the source's key.
    """
    P = point.P[:, queries, s]  # (H, I)
    through_values = P.T @ V_image  # (n, I, d)
    pull = (P * sloped[:, queries].to(P.dtype))[..., None] * (point.VW[:, s, None] - point.OW[:, queries])  # (H, I, d)
    through_scores = column[:, :, queries].permute(2, 0, 1) @ pull.transpose(0, 1)  # (I, n, H) @ (I, H, d)
    return through_scores + through_values.transpose(0, 1)
