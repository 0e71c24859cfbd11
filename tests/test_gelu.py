"""GELU: the affine bound against dense grids, its parts one by one, and how tight it is."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import generator
from zonogpt.transforms.gelu import (
    _interpolation_residual,
    _relu_residual,
    affine_gelu,
    curvature_bound,
    curvature_range,
    gelu,
    gelu_slope,
    relu_gap,
)


def intervals(n=400, seed=0):
    g = generator(seed)
    low = 8 * (2 * torch.rand(n, generator=g, dtype=torch.float64) - 1)
    width = 10 ** (5 * torch.rand(n, generator=g, dtype=torch.float64) - 4)
    return low, low + width


def grid(low, high, n=2001):
    return low + torch.linspace(0, 1, n, dtype=torch.float64)[:, None] * (high - low)


def second_derivative(t):
    first = torch.func.grad(lambda u: gelu(u).sum())
    return torch.func.grad(lambda u: first(u).sum())(t)


@pytest.mark.parametrize("pieces", [1, 2, 16, 32])
def test_affine_bound_contains_the_function(pieces):
    low, high = intervals()
    slope, mid, half = affine_gelu(low, high, pieces)
    t = grid(low, high)
    assert ((gelu(t) - slope * t - mid).abs() <= half).all()


@pytest.mark.parametrize(("pieces", "slack"), [(32, 0.02), (16, 0.05)])
def test_affine_bound_is_tight(pieces, slack):
    """Within `slack` (and 1e-3 of the width) of the residual's true half-width: no part of the enclosure is idle."""
    low, high = intervals()
    slope, _, half = affine_gelu(low, high, pieces)
    t = grid(low, high)
    q = gelu(t) - slope * t
    true = (q.amax(0) - q.amin(0)) / 2
    # On wide intervals the printed relation g = ReLU - [0, e_max] may be the better side, never the only one.
    assert (half <= (1 + slack) * true + 1e-3 * (high - low) + 1e-12).all()


def test_each_enclosure_alone():
    low, high = intervals(seed=1)
    slope, _, _ = affine_gelu(low, high)
    t = grid(low, high)
    q = gelu(t) - slope * t
    for r_low, r_high in (_interpolation_residual(low, high, slope), _relu_residual(low, high, slope)):
        assert (q.amin(0) >= r_low - 1e-14).all()
        assert (q.amax(0) <= r_high + 1e-14).all()


def test_any_slope_is_enclosed():
    low, high = intervals(seed=2)
    slope = 3 * torch.randn(low.shape, generator=generator(5), dtype=torch.float64)
    t = grid(low, high)
    q = gelu(t) - slope * t
    for r_low, r_high in (_interpolation_residual(low, high, slope), _relu_residual(low, high, slope)):
        assert (q.amin(0) >= r_low - 1e-12).all()
        assert (q.amax(0) <= r_high + 1e-12).all()


def test_curvature_range_contains_the_second_derivative():
    low, high = intervals(seed=3)
    bend_low, bend_high = curvature_range(low, high)
    for t in grid(low, high, 201):
        g2 = second_derivative(t)
        assert (g2 <= bend_high + 1e-12).all()
        assert (g2 >= bend_low - 1e-12).all()


def test_curvature_range_closes_on_narrow_intervals():
    t = torch.linspace(-6, 6, 1201, dtype=torch.float64)
    bend_low, bend_high = curvature_range(t - 1e-4, t + 1e-4)
    assert float((bend_high - bend_low).max()) < 2e-3
    g2 = second_derivative(t)
    assert (bend_low <= g2).all()
    assert (g2 <= bend_high).all()


def test_curvature_bound_covers_the_whole_interval():
    low, high = intervals(seed=4)
    C = curvature_bound(low, high)
    worst = torch.stack([second_derivative(t).abs() for t in grid(low, high, 401)]).amax(0)
    assert (worst <= C + 1e-12).all()
    assert (C <= 1.0).all()  # |g''| is largest at 0, about 0.798
    narrow = (high - low) < 0.5
    assert (C[narrow] <= 1.3 * worst[narrow] + 0.02).all()


def test_relu_gap_is_the_papers_constant():
    t = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    gap = t.clamp(min=0) - gelu(t)
    assert float(gap.min()) >= -1e-15
    assert float(gap.max()) <= relu_gap()
    # 0.1703 as the paper says, plus what its 8192 pieces cost
    assert math.isclose(relu_gap(), 0.1703, abs_tol=1e-3)


def test_slope_is_the_derivative():
    t = torch.linspace(-9, 9, 1001, dtype=torch.float64)
    torch.testing.assert_close(gelu_slope(t), torch.func.grad(lambda u: gelu(u).sum())(t))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_point_intervals(dtype):
    t = torch.linspace(-5, 5, 101, dtype=dtype)
    slope, mid, half = affine_gelu(t, t)
    assert (half <= 300 * torch.finfo(dtype).eps).all()
    assert ((gelu(t) - slope * t - mid).abs() <= half).all()


@given(low=st.floats(-50, 50), width=st.floats(0, 100))
def test_float32_contains_float64_values(low, width):
    lo = torch.tensor([low], dtype=torch.float32)
    hi = lo + torch.tensor([width], dtype=torch.float32)
    slope, mid, half = (x.double() for x in affine_gelu(lo, hi))
    t = grid(lo.double(), hi.double(), 301)
    assert ((gelu(t) - slope * t - mid).abs() <= half).all()


def test_curvature_in_float32_contains_that_of_float64():
    """At one point the range is just its rounding."""
    t = torch.linspace(-6, 6, 4001)
    bend_low, bend_high = curvature_range(t, t)
    g2 = second_derivative(t.double())
    assert (bend_low.double() <= g2).all()
    assert (g2 <= bend_high.double()).all()
