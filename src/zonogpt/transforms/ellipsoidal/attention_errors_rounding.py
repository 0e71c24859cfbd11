"""The rounding of the Grams of attention_errors.py.

Their summands may cancel, but the rounding errors of these do not: rounding is relative to the summands' sizes.
Derivations: docs/math.md, Lemma 13.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import trace
from zonogpt.domains.rounding import gamma, gammas, up
from zonogpt.transforms.ellipsoidal.attention_point import BranchPoint
from zonogpt.transforms.ellipsoidal.sources import Sources, by_head


def others_rounding(point: BranchPoint, u: Tensor, mean: Tensor) -> Tensor:
    """(B, H, I, S): the rounding of (1 - 2 P) u + mean."""
    return gammas(point.n_keys[..., None] + 8, u.dtype, u) * (u + mean)


def cross_rounding(point: BranchPoint, r: Tensor) -> Tensor:
    """(B, H, I, 1): the rounding of the Gram over the keys of a row. Its entry (a, b) adds up sum P^2 r, P_a r_a and
    P_b r_b; this bounds the sum of their rounding errors along a row of the Gram."""
    n_keys, dtype = point.n_keys[..., None], r.dtype
    slack = gammas(n_keys + 8, dtype, r) * (2 * n_keys + 1) * (point.P * r).sum(-1, keepdim=True)
    return up(slack + gamma(4, dtype) * r.sum(-1, keepdim=True), r.shape[-1])


def own_rounding(point: BranchPoint, merged: Tensor, a: Tensor, kept: Tensor) -> Tensor:
    """(B, H, I): the rounding of the Gram by the query's own token. Its three parts may cancel, and so may the terms of
    each part."""
    attention = point.attention
    token = trace(merged)[:, None]  # (B, 1, I)
    of_weights = (attention.w_q, attention.w_k)
    w_q, w_k = (by_head(w, attention.n_heads).square().sum((-1, -2))[:, None] for w in of_weights)  # (H, 1)
    of_query = (token * w_q)[..., None] * a.square().sum(-1)  # (B, H, I, S)
    of_key = (token * w_k * point.Q.square().sum(-1))[..., None] * (attention.scale * kept).square()
    units = 4 * (merged.shape[-1] + a.shape[-1] + 4)
    return (gamma(units, a.dtype) * (of_query + of_key)).sum(-1)


@dataclass(frozen=True)
class Crossed:
    """Sizes in the images of other tokens at some queries: (B, H, i, n), and `inverse` (B, i, n), 1 / their weights."""

    P: Tensor
    length_b: Tensor  # the length of the coefficients b
    off_b: Tensor | None  # how far the checker's b may be from these, in length
    inverse: Tensor
    queries: slice


def crossed_rounding(point: BranchPoint, source: Sources, at: Crossed) -> Tensor:
    """(B, i): the rounding of each query's sum of images."""
    of_value, of_key = _sizes(point, source)
    summands = at.P * of_value[:, :, None] + at.length_b * of_key[:, :, at.queries]
    parts = (summands.square().sum(1) * at.inverse).sum(-1)
    seen = (at.inverse > 0).sum(-1)
    e = point.Q.shape[-1]
    out = gammas(4 * point.attention.longest + 2 * e + 2 * seen + 32, parts.dtype, parts) * parts
    if at.off_b is None:
        return out
    lost = at.off_b * of_key[:, :, at.queries]
    return out + up((((2 * summands + lost) * lost).sum(1) * at.inverse).sum(-1), 2 * at.P.shape[-1])


def _sizes(point: BranchPoint, source: Sources) -> tuple[Tensor, Tensor]:
    """The sizes of what V_dot_s (B, H, n) and Q_i . K_dot_s (B, H, I, n) are formed from."""
    at, H = point.attention, point.attention.n_heads
    w_k, w_v = (torch.linalg.matrix_norm(by_head(w, H))[:, None] for w in (at.w_k, at.w_v))
    token = trace(source.merged).sqrt()[:, None]  # (B, 1, n)
    of_query = w_k * torch.linalg.vector_norm(point.Q, dim=-1)  # (B, H, I)
    return w_v * token, of_query[..., None] * token[:, :, None]
