"""Softmax of score rows under a box of score changes (paper, appendix "Fused Attention Transform").

Arrays are (H, S, S): head, query, key. Masked keys have P = 0 and log P = -inf, and no score change. Derivations:
docs/math.md, section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import gamma, gammas, up


def softmax_jvp(P: Tensor, U_dot: Tensor) -> Tensor:
    """J_SM(U) U_dot along the last dimension."""
    return P * (U_dot - (P * U_dot).sum(-1, keepdim=True))


def softmax_radius(P: Tensor, r: Tensor) -> Tensor:
    """The paper's map J_P: bounds |J_SM(U) dU| whenever |dU| <= r."""
    return P * (r + (P * r).sum(-1, keepdim=True))


def softmax_taylor(log_P: Tensor, T_U: Tensor) -> Tensor:
    """Bounds |softmax(U + dU) - P - J_SM(U) dU| whenever |dU| <= T_U: 2 P exp(2 M) M^2, M the row's largest change.

    P exp(2 M) is formed as exp(log P + 2 M): a visible key whose P underflows to 0 may still gain weight. The
    bound is +inf where exp overflows, and 0 at masked keys, where the product would be 0 * inf.
    """
    M = T_U.amax(-1, keepdim=True)
    exponent = log_P + 2 * M + gamma(4, log_P.dtype) * (2 * M - log_P)
    return up(2 * torch.exp(exponent) * M.square()).masked_fill(masked(log_P), 0.0)


def softmax_deviation(log_P: Tensor, T_U: Tensor) -> Tensor:
    """Bounds |softmax(U + dU) - P| whenever |dU| <= T_U, exactly per entry.

    An entry is largest when its own score rises and all others fall: with E_j = logsumexp over the *other* keys k of
    (log P_k - T_k) it is sigmoid(log P_j + T_j - E_j). Working with log P keeps entries far below the smallest float.
    """
    P = log_P.exp()
    high = torch.sigmoid(log_P + T_U - _others(log_P - T_U))
    low = torch.sigmoid(log_P - T_U - _others(log_P + T_U))
    # The exponents are off by some units of the largest of their row, the probabilities relatively by as much.
    largest = (T_U - log_P).masked_fill(masked(log_P), 0.0).amax(-1, keepdim=True)
    units = _units(~masked(log_P), largest)
    deviation = torch.maximum(high - P, P - low) + torch.expm1(units) * (high + P)
    return up(deviation).clamp(max=1).masked_fill(masked(log_P), 0.0)


def softmax_range(U: Interval, visible: Tensor) -> Interval:
    """The smallest interval around every entry of softmax(u), u in U: own score high and others low, or reversed."""
    low, high = (end.masked_fill(~visible, -math.inf) for end in (U.lower, U.upper))
    least, most = torch.sigmoid(low - _others(high)), torch.sigmoid(high - _others(low))
    largest = U.finite_size.masked_fill(~visible, 0.0).amax(-1, keepdim=True)
    units = torch.expm1(_units(visible.expand_as(low), largest))
    least, most = (least * (1 - units)).clamp(min=0), up(most * (1 + units)).clamp(max=1)
    least, most = least.nan_to_num(nan=0.0), most.nan_to_num(nan=1.0)  # where scores have no finite ends
    return Interval(least.masked_fill(~visible, 0.0), most.masked_fill(~visible, 0.0))


def _units(visible: Tensor, largest: Tensor) -> Tensor:
    """What the exponents of a row are off by, (..., 1), when the largest of them is `largest` in size.

    Only the visible keys of the row count: logarithms of sums do not round when nothing is added.
    """
    keys = visible.sum(-1, keepdim=True).clamp(min=1)
    return gammas(6 * keys + 16, largest.dtype, largest) * (1 + keys.to(largest).log() + largest)


def masked(log_P: Tensor) -> Tensor:
    """Keys that are not visible. A visible key's log P is finite (attention_point requires it), however small P is."""
    return log_P == -math.inf


def _others(x: Tensor) -> Tensor:
    """For each entry, logsumexp over all other entries of the last dimension; -inf where there are none."""
    edge = torch.full_like(x[..., :1], -math.inf)
    before = torch.cat([edge, x.logcumsumexp(-1)[..., :-1]], dim=-1)
    after = torch.cat([edge, x.flip(-1).logcumsumexp(-1)[..., :-1]], dim=-1).flip(-1)
    return torch.logaddexp(before, after)


@dataclass(frozen=True)
class SoftmaxBounds:
    """P(x) = P + (J_SM U_dot where `sloped`) + e with |e| <= remainder and sum_j e_j = 0;  |P(x) - P| <= total.

    The sum is 0 up to rounding: see `softmax_bounds`.
    """

    sloped: Tensor  # (H, S) booleans, per head and query
    remainder: Tensor  # (H, S, S)
    total: Tensor  # (H, S, S)


def softmax_bounds(log_P: Tensor, f_P: Tensor, R_U: Tensor, T_U: Tensor, doubt: Tensor) -> SoftmaxBounds:
    """The bounds, with the better of softmax's Jacobian and slope zero in each row.

    `f_P` bounds |J_SM U_dot| for the linear score change U_dot that is kept, `R_U` bounds the rest of the score change,
    `T_U` all of it. exp(log_P), as computed, is the normalised row up to `doubt` (H, S) of it. The contract is about
    P as computed, in the Jacobian too; so e adds up to zero only up to `doubt`.
    """
    P, doubt = log_P.exp(), doubt[..., None]
    keys = (~masked(log_P)).sum(-1, keepdim=True)
    deviation = up(softmax_deviation(log_P, T_U) + doubt * P)
    taylor = softmax_radius(P, R_U) * (1 + 4 * doubt) + softmax_taylor(log_P, T_U) * (1 + 2 * doubt)
    taylor = taylor + doubt * P + 4 * doubt * softmax_radius(P, T_U)
    sloped_R = up(torch.fmin(taylor, deviation + f_P), keys)  # fmin: an overflowed Taylor bound yields to the range
    sloped = sloped_R.sum(-1) <= deviation.sum(-1)
    return SoftmaxBounds(
        sloped=sloped,
        remainder=torch.where(sloped[..., None], sloped_R, deviation),
        total=torch.where(sloped[..., None], torch.minimum(up(f_P + sloped_R), deviation), deviation),
    )
