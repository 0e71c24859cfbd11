"""What attention rounds off, at the centre and in everything that moves. Derivations: docs/math.md, Lemma 13.8.

Rounding is relative to the sizes of the summands. So two sizes go through the block once, as a token would, but with
absolute values of all weights: that of the centre, and how far LayerNorm's output may be from it. The rounding of the
scores joins the products of score changes; that of the heads joins the output's error, coordinate by coordinate.

Axes, after any leading ones: H heads, i queries (I of the moving tokens), j keys (S), of which the last n move, e
features of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zonogpt.domains.rounding import gamma, gammas, up
from zonogpt.model.nodes import Attention, size_of
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.queries import Queries


class Point(Protocol):
    """The branch at the centre."""

    @property
    def attention(self) -> Attention: ...
    @property
    def queries(self) -> Queries: ...
    @property
    def Q(self) -> Tensor: ...  # (..., H, I, e)
    @property
    def K(self) -> Tensor: ...  # (..., H, S, e)
    @property
    def V(self) -> Tensor: ...
    @property
    def P(self) -> Tensor: ...  # (..., H, I, S)
    @property
    def O(self) -> Tensor: ...  # noqa: E743  (..., H, I, e)
    @property
    def doubt(self) -> Tensor:
        """(..., H, I): P as computed is the normalised exp(log_P), up to this share of it."""

    @property
    def hidden(self) -> Tensor:
        """(..., I, S) booleans: the mask hides the key from the query."""

    @property
    def n_keys(self) -> Tensor:
        """(..., 1, I): how many keys a query sees: the number of terms in sums over keys. Adding zeros rounds nothing,
        and keys that a query does not see must not change its bound."""


def doubt_of(P: Tensor) -> Tensor:
    """The share of P, as exp computed it, by which it may differ from the normalised row: exp's error and the sum's."""
    return (P.sum(-1) - 1).abs() * (1 + gamma(4, P.dtype)) + gammas((P > 0).sum(-1) + 8, P.dtype, P)


@dataclass(frozen=True)
class NormSizes:
    """LayerNorm's output at the moving tokens: |LN(x) - centre| <= reach, all (..., n, d)."""

    centre: Tensor
    reach: Tensor
    lost: Tensor | None = None  # bounds a part of the output that no tangent and no error represents

    def at(self, queries: Queries) -> NormSizes:
        centre, reach = (queries.of_moving(x, -2) for x in (self.centre, self.reach))
        return NormSizes(centre, reach, None if self.lost is None else queries.of_moving(self.lost, -2))


@dataclass(frozen=True)
class AttentionRounding:
    Q: Tensor  # (..., H, I, e): queries are off by this much at the centre
    K: Tensor  # (..., H, S, e)
    V: Tensor  # (..., H, S, e)
    Q_moving: Tensor  # (..., H, I, e): bounds how far a query is from the centre's, and every term of that
    K_moving: Tensor  # (..., H, n, e)
    V_moving: Tensor  # (..., H, n, e)
    U_moving: Tensor  # (..., H, I, S): the same for the scores, in first order
    scores: Tensor  # (..., H, I, S): what the scores and their tangents are off by
    narrow: torch.dtype  # of the tangents
    symbols: int
    width: int  # features of a token

    def underflow(self, products: int, dtype: torch.dtype) -> float:
        """What `products` products per number may lose to underflow, all symbols together."""
        return self.symbols * products * torch.finfo(dtype).tiny

    def of_tangents(self, moving: Tensor, dtype: torch.dtype) -> Tensor:
        """What the tangents of a query, key or value lose, all symbols together; underflow included."""
        return gamma(self.width + 4, dtype) * moving + self.underflow(self.width, dtype)

    @property
    def query(self) -> Tensor:
        """(..., H, I, e): bounds what a query is besides its linear part, LayerNorm's error included in that part."""
        return self.Q + self.of_tangents(self.Q_moving, self.narrow)

    @property
    def key(self) -> Tensor:
        return _at_last(self.K, self.of_tangents(self.K_moving, self.narrow))

    def value(self, dtype: torch.dtype) -> Tensor:
        return _at_last(self.V, self.of_tangents(self.V_moving, dtype))


def _at_last(all_keys: Tensor, moving: Tensor) -> Tensor:
    """`all_keys` with `moving` (..., H, n, e) added at the last n keys."""
    out = all_keys.clone()
    out[..., all_keys.shape[-2] - moving.shape[-2] :, :] += moving
    return out


def attention_rounding(
    point: Point, prefix: Prefix, norm: NormSizes, narrow: torch.dtype, symbols: int
) -> AttentionRounding:
    """The rounding for moving tokens behind `prefix`, with tangents of `symbols` symbols in the type `narrow`."""
    attention, queries, S, e = point.attention, point.queries, point.K.shape[-2], point.Q.shape[-1]
    n, wide, d = norm.centre.shape[-2], point.Q.dtype, attention.width
    of_query, of_key, of_value = attention.projections
    Q, Q_moving = _through(attention, *of_query, prefix.n[..., :0, :], norm.at(queries))
    K, K_moving = _through(attention, *of_key, prefix.n, norm)
    V, V_moving = _through(attention, *of_value, prefix.n, norm)
    K, V = (torch.cat([x[..., : S - n, :] + y, x[..., S - n :, :]], -2) for x, y in ((K, prefix.K), (V, prefix.V)))

    Q_size, K_size = point.Q.abs(), point.K.abs()
    pairs = Q_size @ K_size.mT
    at_centre = Q_size @ K.mT + Q @ K_size.mT + gamma(e + 4, wide) * pairs
    U_moving = Q_moving @ K_size.mT
    U_moving[..., S - n :] += Q_size @ K_moving.mT
    U_moving, at_centre, pairs = (
        (x * attention.scale).masked_fill(point.hidden, 0.0) for x in (U_moving, at_centre, pairs)
    )
    U_moving = up(U_moving, 2 * e)
    # Tangents are centred with P as computed, which leaves a mean of at most `doubt` times that of the sizes.
    mean = (point.P * U_moving).sum(-1, keepdim=True)
    keys = point.n_keys[..., None]
    longest = attention.longest
    tangents = gammas(longest + e + 2 * keys + 16, narrow, mean) * (U_moving + mean) + 2 * point.doubt[..., None] * mean
    tangents = tangents + symbols * (2 * e + S) * torch.finfo(narrow).tiny
    # log_softmax subtracts the row's maximum and a logarithm: an error that all keys share does not matter.
    logarithms = gamma(8, wide) * (pairs.amax(-1, keepdim=True) + keys.to(pairs).log() + 1)
    scores = up(at_centre + tangents + logarithms, 2 * e + S).masked_fill(point.hidden, 0.0)
    return AttentionRounding(Q, K, V, Q_moving, K_moving, V_moving, U_moving, scores, narrow, symbols, d)


def _through(
    attention: Attention, weight: Tensor, bias: Tensor | None, still: Tensor, norm: NormSizes
) -> tuple[Tensor, Tensor]:
    """For queries, keys or values, (..., H, tokens, e): the rounding at the centre, of the `still` tokens and of the
    moving ones behind them; and how far the moving ones move."""
    rows = [still.abs(), norm.centre.abs(), norm.reach] + ([] if norm.lost is None else [norm.lost])
    parts = (torch.cat(rows, dim=-2) @ weight.abs()).split([x.shape[-2] for x in rows], dim=-2)
    d, p = attention.width, still.shape[-2]
    off = gamma(d + 2, weight.dtype) * (torch.cat(parts[:2], dim=-2) + size_of(bias))
    if norm.lost is not None:
        off[..., p:, :] += parts[3]
    return attention.split_heads(up(off, d)), attention.split_heads(up(parts[2], d))


def head_rounding(
    point: Point, r: AttentionRounding, coefficients: Tensor, total: Tensor, dtype: torch.dtype
) -> Tensor:
    """(..., H, I, e): what the heads' outputs are off by.

    `coefficients` (..., H, I, S) bound everything that values are multiplied by, P included; `total` bounds |p - P|;
    `dtype` is the type in which the linear part is computed.
    """
    (S, e), wide = point.K.shape[-2:], point.P.dtype
    d, n = point.attention.longest, r.V_moving.shape[-2]
    apart = coefficients @ point.V.abs() + coefficients.sum(-1, keepdim=True) * point.O.abs()
    heads = (gammas(d + e + point.n_keys + 16, wide, point.P) + 2 * point.doubt)[..., None] * apart
    heads = heads + (point.P + total) @ r.value(dtype)
    heads = heads + gamma(d + e + 8, wide) * (total[..., S - n :] @ r.V_moving)
    return up(heads + r.underflow(2 * S, dtype), 2 * S)


@dataclass(frozen=True)
class Skip:
    """What the branch is added to, at the queries: centre and deviation, (..., I, d)."""

    centre: Tensor
    radius: Tensor


def output_rounding(
    point: Point, heads: Tensor, moved: Tensor, output: Tensor, skip: Skip, dtype: torch.dtype
) -> Tensor:
    """(..., I, d): what the block's output is off by.

    In head space (..., H, I, e): `heads` is what the heads' outputs are off by, `moved` bounds how far they move
    linearly, `output` is their value at the centre. `dtype` is the type that the linear part is computed in.
    """
    attention, (H, S), e = point.attention, point.K.shape[-3:-1], point.Q.shape[-1]
    keys, d = point.n_keys[..., 0, :, None], attention.longest
    parts = [attention.join_heads(x) for x in (output.abs(), heads, moved)]
    output, heads, moved = (torch.cat(parts, dim=-2) @ attention.w_o.abs()).chunk(3, dim=-2)
    out = gamma(d + H + 4, skip.centre.dtype) * (skip.centre.abs() + output + size_of(attention.b_o)) + heads
    return up(out + gammas(4 * d + e + (3 + H) * keys + 24, dtype, out) * (skip.radius + moved), 2 * (d + S + e))
