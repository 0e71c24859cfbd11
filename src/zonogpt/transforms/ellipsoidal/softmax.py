"""Softmax rows whose centred scores move, and the weighted sum of values that follows: a bound per key.

For one head and query let P = softmax(U), delta the change of the scores minus its P-mean (softmax does not see the
mean), |delta_j| <= W_j, y(t) = sum_j p_j(t) v_j along p(t) = softmax(U + t delta), and v'_j = v_j - y(0). Then

    y(1) - y(0) - y'(0) = 1/2 sum_j kappa_j v'_j + V1/6 sum_j xi_j g_j v'_j
    0 <= kappa_j <= kbar_j,   sum_j kappa_j <= V1,   |xi_j| <= 1.

Arrays are (B, H, I, S): input, head, query, key; masked keys have log P = -inf and W = 0. Everything with exp is formed
from log P: a key with P < e^-60 and W > 60 may wake up. Derivations: docs/math.md, section "Method E: softmax".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import lambda_max
from zonogpt.transforms.softmax import masked, softmax_deviation


@dataclass(frozen=True)
class SoftmaxStep:
    """sum_j (p_j - P_j) v_j = [sloped] J delta_linear + 1/2 sum_j kappa_j v'_j + sum_j xi_j coefficient_j v'_j.

    With kappa and xi as above; J delta_linear = sum_j P_j delta_j v'_j for the part of delta that is linear in the
    domain's symbols (input symbols and ellipsoids). Also |p_j - P_j| <= total_j.
    """

    P: Tensor
    sloped: Tensor  # (B, H, I) booleans
    kbar: Tensor  # 0 where not sloped
    V1: Tensor  # (B, H, I); 0 where not sloped
    drift: Tensor  # where not sloped: all of |p_j - P_j|
    scores: Tensor  # the products of score changes
    total: Tensor
    residual: Tensor  # |p_j - P_j - P_j delta_j| for delta_j the input symbols' part

    @property
    def coefficient(self) -> Tensor:
        return self.drift + self.scores


def softmax_step(
    log_P: Tensor, f_W: Tensor, e_W: Tensor, R_U: Tensor, score_gram: Tensor | None, length: Tensor
) -> SoftmaxStep:
    """The contract of SoftmaxStep.

    `f_W` bounds the centred score change by the input symbols, `e_W` that by the error ellipsoids, `R_U` the products
    of changes (not centred). `score_gram` (B, H, I, S, S) covers the first part, all keys of a row together.
    `length` (B, H, I, S) is |v'_j|: where slope zero leaves a smaller error it is taken.
    """
    P, hidden = log_P.exp(), masked(log_P)
    R_W = R_U + (P * R_U).sum(-1, keepdim=True)
    W = (f_W + e_W + R_W).masked_fill(hidden, 0.0)
    rest = R_W.masked_fill(hidden, 0.0)
    pe = (log_P + W).clamp(max=0).exp()  # p_j(t) <= pe_j for all t
    V1 = largest_sum(pe, W.square())
    if score_gram is not None:
        root = pe.sqrt()
        weighted = root[..., :, None] * score_gram * root[..., None, :]
        V1 = torch.minimum(V1, (lambda_max(weighted).sqrt() + largest_sum(pe, rest.square()).sqrt()).square())
    top = torch.maximum(W, V1[..., None])
    rising = (log_P + log_phi(W)).clamp(max=0).exp() * top.square()
    falling = P * (W.square() + (2 / 3) * W * V1[..., None] + V1[..., None].square() / 6)
    kbar = torch.maximum(rising, falling).masked_fill(hidden, 0.0)
    g = torch.maximum(pe * top, P * (W + V1[..., None])).masked_fill(hidden, 0.0)

    deviation = softmax_deviation(log_P, W)
    drift, scores = V1[..., None] * g / 6, P * R_U
    sloped = ((kbar / 4 + drift + scores) * length).sum(-1) <= (deviation * length).sum(-1)
    # |p_j - P_j| from the same formula with the indicator of key j for values.
    others = torch.minimum(V1[..., None], kbar.sum(-1, keepdim=True) - kbar)
    taylor = P * W + 0.5 * torch.maximum(kbar * (1 - P), P * others) + V1[..., None] * g / 6
    total = torch.fmin(torch.fmin(taylor, g), deviation)
    keep = sloped[..., None]
    return SoftmaxStep(
        P=P,
        sloped=sloped,
        kbar=torch.where(keep, kbar, torch.zeros_like(kbar)),
        V1=torch.where(sloped, V1, torch.zeros_like(V1)),
        drift=torch.where(keep, drift, deviation),
        scores=torch.where(keep, scores, torch.zeros_like(scores)),
        total=total,
        residual=taylor - P * (f_W + e_W),
    )


def largest_sum(cap: Tensor, values: Tensor, mass: Tensor | float = 1.0) -> Tensor:
    """The largest sum_j p_j values_j over 0 <= p_j <= cap_j, sum_j p_j <= mass; values >= 0, mass (...,).

    The best p fills the largest values first.
    """
    ordered, index = values.sort(dim=-1, descending=True)
    limit = cap.gather(-1, index)
    room = torch.as_tensor(mass, dtype=cap.dtype, device=cap.device)[..., None] - (limit.cumsum(-1) - limit)
    return (ordered * torch.minimum(limit, room.clamp(min=0))).sum(-1)


def log_phi(W: Tensor) -> Tensor:
    """log of an upper bound of phi(W) = 2 (e^W - 1 - W) / W^2, W >= 0.

    Below 1 a polynomial that lies above the series (the formula cancels there), above 1 without overflow.
    """
    small = torch.log1p(W * (1 / 3 + W * (1 / 12 + W * (1 / 60 + W / 300))))
    big = W.clamp(min=1)
    large = math.log(2) + big + torch.log1p(-(1 + big) * torch.exp(-big)) - 2 * big.log()
    return torch.where(W < 1, small, large)
