"""Softmax rows whose scores move, and the sums of values that they weigh: an exact formula, then best slopes.

For one head and query let P = softmax(U), delta the change of the scores minus its P-mean (softmax does not see the
mean), y = sum_j P_j v_j, v'_j = v_j - y, psi(t) = e^t - 1 - t and Z = sum_j P_j e^delta_j = 1 + sum_j P_j psi(delta_j).
Since p_j = P_j e^delta_j / Z, exactly

    sum_j p_j v_j - y = sum_j P_j ( delta_j + (1 - zeta) psi(delta_j) - zeta delta_j ) v'_j,    0 <= zeta = 1 - 1/Z < 1.

psi on [-W_j, W_j] is replaced by its chord and a half-width, zeta by the middle of its range: a slope per key, a
constant and an error per key. Arrays are (B, H, I, S): input, head, query, key; masked keys have log P = -inf, W = 0.
Derivations: docs/math.md, section 9.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import lambda_max
from zonogpt.domains.rounding import gamma, up
from zonogpt.transforms.softmax import masked, softmax_deviation


@dataclass(frozen=True)
class SoftmaxStep:
    """sum_j (p_j - P_j) v_j = sum_j (P_j slope_j delta_j + shift_j + xi common_j + xi_j (error_j + scores_j)) v'_j

    for every v, with |xi|, |xi_j| <= 1, where delta is the centred first-order score change, dQ K^T + Q dK^T over
    sqrt(e): linear in the change of LayerNorm's output, errors included. Also |p_j - P_j| <= total_j and
    |p_j - P_j - P_j delta_j| <= residual_j. In rows that are not `sloped`, and at keys whose P is below the smallest
    normal number, slope, shift, common and scores are 0: the range leaves a smaller error.
    """

    sloped: Tensor  # (B, H, I) booleans
    slope: Tensor
    shift: Tensor
    common: Tensor
    error: Tensor
    scores: Tensor  # the part of the error that comes from products of score changes
    total: Tensor
    residual: Tensor
    W: Tensor  # bounds the centred score change, all of it
    zeta: Tensor  # (B, H, I): bounds zeta


def softmax_step(
    log_P: Tensor, linear: Tensor, R_U: Tensor, score_gram: Tensor, length: Tensor, doubt: Tensor
) -> SoftmaxStep:
    """The step, with the contract of SoftmaxStep, for the row P that is exp(log_P), normalised.

    `linear` bounds the centred first-order score change, key by key, `score_gram` (B, H, I, S, S) covers it for all
    keys together, `R_U` bounds the products of changes and all rounding of scores (not centred).
    `length` is |v'_j|. exp(log_P), as computed, is the normalised row up to `doubt` (B, H, I) of it; for slope, shift
    and common the contract holds with what was computed, so that the error is that of the normalised row.
    """
    hidden = masked(log_P)
    keys = (~hidden).sum(-1, keepdim=True)
    # A visible key whose P underflowed may still grow by e^W, which 0 would hide. It gets no slope: a slope may be as
    # large as e^W / W, and multiplies P as it was computed.
    tiny = torch.finfo(log_P.dtype).tiny
    P, underflowed = log_P.exp().clamp(min=tiny), log_P.exp() < tiny
    above = P * (1 + 2 * doubt[..., None])  # at least the normalised row
    mean_R = up((above * R_U).sum(-1, keepdim=True), keys)
    rest = (R_U + mean_R).masked_fill(hidden, 0.0)
    W = up(linear + rest).masked_fill(hidden, 0.0)
    half_zeta = largest_zeta(log_P, W, rest, score_gram, doubt)[..., None] / 2
    chord, middle, half = chord_of_psi(W)
    slope = 1 + (1 - half_zeta) * chord - half_zeta
    constant = P * middle
    error = up(above * (half + half_zeta * (1 + chord) * W))
    scores = up(above * (slope.abs() * R_U + (slope - 1).abs() * mean_R))

    deviation = softmax_deviation(log_P, W) + doubt[..., None] * P
    # A key without a slope adds to a row that has slopes dp_j, zeta P_j, and P_j times a mean of what R_U bounds.
    left_out = deviation + up(tiny * (1 + mean_R))
    range_ = torch.minimum((deviation * length).sum(-1), ((P + deviation) * length.square()).sum(-1).sqrt())
    sloped = ((error + scores + half_zeta * constant.abs()) * length).sum(-1) < range_
    keep = sloped[..., None] & ~hidden & ~underflowed  # NaN or inf: not sloped
    # p_j = (1 - zeta) P_j e^delta_j, and p_j - P_j - P_j delta_j = P_j ((1 - zeta) psi(delta_j) - zeta (1 + delta_j)).
    total = above * torch.maximum(torch.expm1(W), 2 * half_zeta * torch.exp(-W) - torch.expm1(-W))
    residual = above * (torch.maximum(psi(W), 2 * half_zeta * (1 + W)) + rest) + doubt[..., None] * P * (1 + W)
    nothing = torch.zeros_like(P)
    return SoftmaxStep(
        sloped=sloped,
        slope=torch.where(keep, slope, nothing),
        shift=torch.where(keep, (1 - half_zeta) * constant, nothing),
        common=torch.where(keep, half_zeta * constant, nothing),
        error=torch.where(keep, error, torch.where(sloped[..., None] & ~hidden, left_out, deviation)),
        scores=torch.where(keep, scores, nothing),
        total=torch.fmin(up(total + doubt[..., None] * P), deviation).masked_fill(hidden, 0.0),
        residual=up(residual).masked_fill(hidden, 0.0),
        W=W,
        zeta=2 * half_zeta[..., 0],
    )


def largest_zeta(log_P: Tensor, W: Tensor, rest: Tensor, score_gram: Tensor, doubt: Tensor) -> Tensor:
    """(B, H, I): an upper bound of 1 - 1/Z over all delta with |delta_j| <= W_j, delta = (in score_gram) + (in rest).

    Z - 1 = sum_j P_j psi(delta_j), and psi(t) <= t^2 phi(W) / 2 for |t| <= W: key by key, and for all keys together.
    """
    keys, dtype = (~masked(log_P)).sum(-1), log_P.dtype
    exponent = log_P + log_phi(W)
    exponent = exponent + (gamma(8, dtype) * (W + 1 - log_P) + 2 * doubt[..., None])  # rounding of P and of the sum
    weight = (0.5 * exponent.exp()).masked_fill(masked(log_P), 0.0)
    apart = up((weight * W.square()).sum(-1), keys + 8)
    root = weight.sqrt()
    together = lambda_max(root[..., :, None] * score_gram * root[..., None, :], rows=keys).sqrt()
    together = up((together + (weight * rest.square()).sum(-1).sqrt()).square(), keys + 16)
    excess = torch.fmin(apart, together)
    # After an overflow, nothing is known but zeta < 1.
    return torch.where(excess.isfinite(), up(excess / (1 + excess)).clamp(max=1), torch.ones_like(excess))


def psi(t: Tensor) -> Tensor:
    """An upper bound of e^t - 1 - t. For small t it comes from the series, whose relative error is below 1e-7."""
    small = t.clamp(-0.5, 0.5)
    series = 1 + small / 8
    for k in (7, 6, 5, 4, 3):
        series = 1 + small / k * series
    series = small.square() / 2 * series
    return torch.where(t.abs() < 0.5, series, torch.expm1(t) - t) * (1 + 1e-6 + gamma(24, t.dtype))


def chord_of_psi(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(chord, middle, half) with |psi(t) - chord t - middle| <= half for every |t| <= W.

    psi is convex, so psi(t) - chord t is largest at the ends, where it is cosh(W) - 1, and least where e^t = 1 + chord.
    """
    small = W.clamp(max=0.5).square()
    series = small * (1 / 6 + small * (1 / 120 + small * (1 / 5040 + small / 362880)))
    chord = torch.where(W < 0.5, series, torch.sinh(W) / W.clamp(min=0.5) - 1)
    high = 2 * torch.sinh(W / 2).square()
    low = chord - (1 + chord) * torch.log1p(chord)
    # Outward: chord and ends are rounded, relative to cosh(W) - 1, and the series is cut.
    return chord, (high + low) / 2, (high - low) / 2 + (1e-8 + gamma(48, W.dtype)) * high


def log_phi(W: Tensor) -> Tensor:
    """log of an upper bound of phi(W) = 2 psi(W) / W^2, W >= 0."""
    small = W.clamp(max=0.5)
    series = small * (1 / 3 + small * (1 / 12 + small * (1 / 60 + small / 300)))
    big = W.clamp(min=0.5)
    large = big + torch.log1p(-(1 + big) * torch.exp(-big)) - 2 * big.log() + 0.6931471805599453
    # log1p magnifies what (1 + W) e^-W rounds by at most 11, at W = 1/2; the sum rounds relative to W.
    return torch.where(W < 0.5, torch.log1p(series), large) + 1e-6 + gamma(80, W.dtype) * (1 + W)
