"""Softmax rows under a box of score changes: each bound alone, with masked, single and vanishing keys."""

import contextlib
import math

import pytest
import torch

from builders import generator, randn
from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import unaccounted
from zonogpt.transforms.softmax import (
    _others,
    softmax_bounds,
    softmax_deviation,
    softmax_jvp,
    softmax_radius,
    softmax_range,
    softmax_taylor,
)


def rows(seed, spread=1.0, change=0.3, causal=True, S=5):
    """(U, log_P, T_U) with head, query, key; masked keys have no change."""
    g = generator(seed)
    visible = torch.ones(S, S).tril().bool() if causal else torch.ones(S, S).bool()
    U = (spread * randn(g, 2, S, S)).masked_fill(~visible, -math.inf)
    T = (change * torch.rand(2, S, S, generator=g, dtype=torch.float64)).masked_fill(~visible, 0.0)
    return U, U.log_softmax(-1), T


def changes(T, seed=9, n=600):
    """Score changes within T: one half vertices; also, for each entry, the vertex that lifts or lowers it alone."""
    g = generator(seed)
    sign = torch.randn(n, *T.shape, generator=g, dtype=torch.float64).sign()
    inner = 2 * torch.rand(n, *T.shape, generator=g, dtype=torch.float64) - 1
    S = T.shape[-1]
    alone = 2 * torch.eye(S, dtype=torch.float64)[:, None, None, :] - 1
    return torch.cat([sign, inner, alone.expand(S, *T.shape), -alone.expand(S, *T.shape)]) * T


CASES = [(1.0, 1e-3), (1.0, 0.3), (3.0, 1.0), (3.0, 5.0), (30.0, 2.0), (100.0, 80.0), (1.0, 400.0)]


@pytest.mark.parametrize(("spread", "change"), CASES)
@pytest.mark.parametrize("causal", [True, False])
def test_every_bound(spread, change, causal):
    U, log_P, T = rows(1, spread, change, causal)
    P = log_P.exp()
    dU = changes(T)
    new = (U + dU).softmax(-1)
    linear = softmax_jvp(P, dU)
    tolerance = 1e-12
    assert (linear.abs() <= softmax_radius(P, T) + tolerance).all()
    taylor = softmax_taylor(log_P, T)
    assert not taylor.isnan().any()
    assert ((new - P - linear).abs() <= taylor + tolerance).all()
    deviation = softmax_deviation(log_P, T)
    assert ((new - P).abs() <= deviation + tolerance).all()
    assert (deviation <= 1).all()
    # the deviation is attained at the vertices that move one entry alone
    attained = (new - P).abs().amax(0)
    torch.testing.assert_close(attained, deviation, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("accounting", [contextlib.nullcontext, unaccounted])
@pytest.mark.parametrize(("spread", "change"), CASES)
def test_choice_of_slope(spread, change, accounting):
    """The combined contract, with one part of the change linear and one not; terms for rounding hide no error."""
    U, log_P, T = rows(2, spread, change)
    P = log_P.exp()
    dU = changes(T)
    share = torch.rand(T.shape, generator=generator(3), dtype=torch.float64)
    kept = dU * share  # the linear part that is kept
    R_U = T * (1 - share)
    f_P = softmax_jvp(P, kept).abs().amax(0)
    with accounting():
        bounds = softmax_bounds(log_P, f_P, R_U, T, 0 * log_P[..., 0])
    error = (U + dU).softmax(-1) - P - softmax_jvp(P, kept) * bounds.sloped[..., None]
    assert (error.abs() <= bounds.remainder + 1e-12).all()
    assert (((U + dU).softmax(-1) - P).abs() <= bounds.total + 1e-12).all()
    assert float(error.sum(-1).abs().max()) < 1e-9  # rows sum to zero


def test_slope_is_kept_for_small_and_dropped_for_large_changes():
    for change, expected in ((1e-3, True), (30.0, False)):
        _, log_P, T = rows(1, 1.0, change)
        bounds = softmax_bounds(log_P, softmax_radius(log_P.exp(), T), 0 * T, T, 0 * T[..., 0])
        assert bool(bounds.sloped[:, 1:].all()) is expected


def test_vanishing_keys_with_large_changes():
    """P below e^-60 and a change above 60: an exponent clamped in linear space would lose this key."""
    U = torch.tensor([[[0.0, -80.0]]], dtype=torch.float64)
    T = torch.tensor([[[0.0, 85.0]]], dtype=torch.float64)
    log_P = U.log_softmax(-1)
    deviation = softmax_deviation(log_P, T)
    truth = torch.sigmoid(torch.tensor(5.0, dtype=torch.float64))
    torch.testing.assert_close(deviation[0, 0], torch.stack([truth, truth]))


@pytest.mark.parametrize(("dtype", "low", "change"), [(torch.float64, -800.0, 450.0), (torch.float32, -120.0, 70.0)])
def test_underflowed_keys_are_not_masked_keys(dtype, low, change):
    """P rounds to exactly 0 for a visible key that the change can make the heaviest."""
    log_P, zero = torch.tensor([[[low, 0.0]]], dtype=dtype), torch.zeros(1, 1, 2, dtype=dtype)
    assert float(log_P.exp()[0, 0, 0]) == 0.0
    bounds = softmax_bounds(log_P, zero, zero, torch.full_like(zero, change), zero[..., 0])
    assert (bounds.remainder > 0.99).all()
    assert (bounds.total > 0.99).all()


def test_single_key_does_not_move():
    log_P, T = torch.zeros(1, 1, 1, dtype=torch.float64), torch.full((1, 1, 1), 3.0, dtype=torch.float64)
    assert float(softmax_deviation(log_P, T)) < 1e-12


def test_others_leaves_out_exactly_the_own_entry():
    x = randn(generator(4), 3, 6)
    x[0, 1] = -math.inf
    for i in range(6):
        rest = torch.cat([x[:, :i], x[:, i + 1 :]], dim=1).logsumexp(-1)
        torch.testing.assert_close(_others(x)[:, i], rest)


@pytest.mark.parametrize("M", [0.1, 1.0, 3.0, 6.0])
def test_taylor_bound_where_a_key_of_no_weight_rises_and_all_others_fall(M):
    """p' is nearly P e^(2 M) there, of which 1 + 2 M are P and its linear part."""
    U = torch.tensor([-40.0, 0.0, 0.3, -0.2], dtype=torch.float64)
    moved = U + M * torch.tensor([1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    P = U.softmax(-1)
    left = moved.softmax(-1) - P - softmax_jvp(P, moved - U)
    bound = softmax_taylor(U.log_softmax(-1), torch.full_like(U, M))
    assert (left.abs() <= bound).all()


def with_hidden(x, count, value):
    return torch.cat([x, torch.full((*x.shape[:-1], count), value, dtype=x.dtype)], dim=-1)


@pytest.mark.parametrize("count", [1, 10, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_hidden_keys_change_no_bound(dtype, count):
    """A row of five keys has the same bounds however many others the mask takes away. Elementary functions depend on
    the place in an array by a unit or two; a term that counts hidden keys would be thousands."""
    _, log_P, T = rows(3, change=0.1, causal=False)
    log_P, T = log_P.to(dtype), T.to(dtype)
    more_P, more_T = with_hidden(log_P, count, -math.inf), with_hidden(T, count, 0.0)
    zero = torch.zeros_like(T)
    alone = softmax_bounds(log_P, T, zero, T, zero[..., 0])
    among = softmax_bounds(more_P, more_T, with_hidden(zero, count, 0.0), more_T, zero[..., 0])
    box = Interval(log_P - T, log_P + T)
    visible = torch.ones(5, 5).bool()
    ends = softmax_range(box, visible)
    more_ends = softmax_range(
        Interval(with_hidden(box.lower, count, -1e3), with_hidden(box.upper, count, 1e3)),
        with_hidden(visible, count, False),
    )
    units = 8 * torch.finfo(dtype).eps
    for many, one in (
        (softmax_deviation(more_P, more_T), softmax_deviation(log_P, T)),
        (among.remainder, alone.remainder),
        (among.total, alone.total),
        (more_ends.lower, ends.lower),
        (more_ends.upper, ends.upper),
    ):
        torch.testing.assert_close(many[..., :5], one, rtol=units, atol=units)
