"""Scalar functions: every value between the ends is in the range, the strip and between the lines; none is wasteful."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zonogpt.domains.interval import Interval
from zonogpt.transforms.functions import (
    EXP,
    GELU,
    LOWEST,
    RECIPROCAL,
    SQRT,
    SQUARE,
    TURN,
    Lines,
    ShiftedExp,
)
from zonogpt.transforms.gelu import gelu, gelu_slope

# name: function, smallest and largest t that is tried
DOMAINS = {
    "sqrt": (SQRT, 1e-5, 1e4),
    "reciprocal": (RECIPROCAL, 1e-3, 1e6),
    "exp": (EXP, -30.0, 30.0),
    "square": (SQUARE, -50.0, 50.0),
    "gelu": (GELU, -12.0, 12.0),
}
NAMES = list(DOMAINS)


def boxes(name: str, count: int, seed: int, dtype: torch.dtype = torch.float64) -> Interval:
    """Intervals of all widths inside the domain: points, slivers, wide ones, and ones that end at its edges."""
    _, low, high = DOMAINS[name]
    g = torch.Generator().manual_seed(seed)
    middle = low + (high - low) * torch.rand(count, generator=g, dtype=torch.float64)
    width = (high - low) * 10 ** (-14 * torch.rand(count, generator=g, dtype=torch.float64))
    width[:20] = 0.0
    a, b = (middle - width).clamp(low, high).to(dtype), (middle + width).clamp(low, high).to(dtype)
    return Interval(a, b)


def inside(box: Interval, count: int = 201) -> torch.Tensor:
    """(count, n): points of each interval, both ends among them."""
    t = torch.linspace(0, 1, count, dtype=box.lower.dtype)[:, None]
    return torch.minimum(torch.maximum(box.lower + t * (box.upper - box.lower), box.lower), box.upper)


def size(f, box: Interval) -> torch.Tensor:
    values = f.range(box)
    return torch.maximum(values.lower.abs(), values.upper.abs()) + torch.maximum(box.lower.abs(), box.upper.abs())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_contracts(name, seed):
    f = DOMAINS[name][0]
    box = boxes(name, 3000, seed)
    t = inside(box)
    y = f(t)
    values, strip, lines = f.range(box), f.strip(box), f.lines(box)
    ulp = 4 * torch.finfo(torch.float64).eps * size(f, box)
    assert (y >= values.lower - ulp).all()
    assert (y <= values.upper + ulp).all()
    assert ((y - strip.slope * t - strip.mid).abs() <= strip.half).all()
    assert (lines.a_low * t + lines.b_low <= y).all()
    assert (y <= lines.a_high * t + lines.b_high).all()


@pytest.mark.parametrize("name", NAMES)
def test_contracts_in_float32_hold_for_exact_values(name):
    """Slopes and offsets from float32, applied in float64 to points in between, against values in float64."""
    f = DOMAINS[name][0]
    box = boxes(name, 3000, 2, torch.float32)
    strip, lines = f.strip(box), f.lines(box)
    t = inside(Interval(box.lower.double(), box.upper.double()))
    y = f(t)
    assert ((y - strip.slope.double() * t - strip.mid.double()).abs() <= strip.half.double()).all()
    assert (lines.a_low.double() * t + lines.b_low.double() <= y).all()
    assert (y <= lines.a_high.double() * t + lines.b_high.double()).all()


@pytest.mark.parametrize("name", NAMES)
def test_strip_is_tight_and_lines_are_not_looser(name):
    """Within 5 % of what a grid of points needs; the lines' gap at the middle is at most the strip's."""
    f = DOMAINS[name][0]
    box = boxes(name, 3000, 3)
    usual = ((box.upper - box.lower) > 1e-3) & ((box.upper - box.lower) < 1.5)
    box = Interval(box.lower[usual], box.upper[usual])
    assert len(box.lower) > 100
    t = inside(box)
    strip, lines = f.strip(box), f.lines(box)
    residual = f(t) - strip.slope * t
    seen = (residual.amax(0) - residual.amin(0)) / 2
    assert (strip.half <= 1.05 * seen + 1e-6 * size(f, box)).all()
    chord = (f(box.upper) - f(box.lower)) / (box.upper - box.lower)
    residual = f(t) - chord * t
    assert (strip.half <= 0.525 * (residual.amax(0) - residual.amin(0)) + 1e-6 * size(f, box)).all()
    middle = box.centre
    gap = (lines.a_high - lines.a_low) * middle + lines.b_high - lines.b_low
    assert (gap <= 2 * strip.half + 1e-9 * size(f, box)).all()


@pytest.mark.parametrize(
    ("f", "low", "high"),
    [(RECIPROCAL, 1e170, 2e170), (SQRT, 1.7e-318, 1.9e-309), (RECIPROCAL, 5e-324, 1e-310), (EXP, -800.0, -700.0)],
)
def test_slopes_that_underflow_or_overflow(f, low, high):
    box = Interval(torch.tensor([low], dtype=torch.float64), torch.tensor([high], dtype=torch.float64))
    t = inside(box)
    y = f(t)
    strip, lines, values = f.strip(box), f.lines(box).or_range(f.range(box)), f.range(box)
    off = (y - strip.slope * t - strip.mid).abs() - strip.half
    assert (off <= 1e-320).logical_or(~off.isfinite()).all()  # what is not finite says nothing
    assert (lines.a_low * t + lines.b_low <= y + 1e-320).all()
    assert (y <= lines.a_high * t + lines.b_high + 1e-320).all()
    assert not (values.lower == math.inf).any()


def test_gelu_lines_use_convexity():
    """Near 0 GELU is convex: a tangent below, so the gap at the middle is half of the strip's."""
    box = Interval(torch.tensor([-0.4], dtype=torch.float64), torch.tensor([0.4], dtype=torch.float64))
    strip, lines = GELU.strip(box), GELU.lines(box)
    assert float(lines.b_low) == pytest.approx(0.0, abs=1e-12)
    assert float(lines.a_low) == pytest.approx(0.5)
    assert float(lines.b_high) == pytest.approx(float(strip.mid + strip.half))


def test_gelu_minimum():
    turn = torch.tensor([TURN - 1e-9, TURN + 1e-9], dtype=torch.float64)
    assert gelu_slope(turn)[0] < 0 < gelu_slope(turn)[1]
    assert float(gelu(torch.tensor(TURN, dtype=torch.float64))) > LOWEST
    assert float(gelu(torch.tensor(TURN, dtype=torch.float64))) - LOWEST < 1e-9
    slopes = gelu_slope(torch.linspace(-12, 12, 200_001, dtype=torch.float64))
    t = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    assert (slopes[t < TURN] <= 0).all()
    assert (slopes[t > TURN] > 0).all()
    around = GELU.range(Interval(torch.tensor([-2.0]).double(), torch.tensor([-0.1]).double()))
    assert LOWEST - 1e-12 < float(around.lower) <= LOWEST


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.floats(-700, 700), st.floats(0, 60), st.floats(-50, 50), st.booleans())
def test_shifted_exp(low, width, shift, visible):
    box = Interval(*(torch.tensor([x], dtype=torch.float64) for x in (low, low + width)))
    shift = torch.tensor([low + shift], dtype=torch.float64)
    f = ShiftedExp(shift, torch.tensor([visible]))
    t = inside(box)
    y = f(t)
    values, strip, lines = f.range(box), f.strip(box), f.lines(box)
    exact = torch.where(torch.tensor([visible]), torch.exp(t - shift), torch.zeros_like(t))
    assert torch.equal(y, exact)
    assert (values.lower <= y).all()
    assert (y <= values.upper).all()
    assert ((y - strip.slope * t - strip.mid).abs() <= strip.half).all()
    assert (lines.a_low * t + lines.b_low <= y).all()
    assert (y <= lines.a_high * t + lines.b_high).all()
    if not visible:
        assert float(strip.half) == float(strip.slope) == float(lines.b_high) == 0.0


def test_overflowed_lines_become_the_range():
    nan, inf = math.nan, math.inf
    lines = Lines(*(torch.tensor(v, dtype=torch.float64) for v in ([1.0, nan], [0.0, nan], [2.0, 1.0], [0.5, inf])))
    values = Interval(torch.tensor([-1.0, -3.0]).double(), torch.tensor([1.0, 1.0]).double())
    safe = lines.or_range(values)
    assert safe.a_low.tolist() == [1.0, 0.0]
    assert safe.b_low.tolist() == [0.0, -3.0]
    assert safe.a_high.tolist() == [2.0, 0.0]
    assert safe.b_high.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_ranges_in_float32_contain_the_exact_values_of_points(name):
    """The range of a point is just the rounding of its value."""
    f, low, high = DOMAINS[name]
    t = torch.linspace(low, high, 20_000).clamp(low, high)
    box, exact = f.range(Interval(t, t)), f(t.double())
    assert (box.lower.double() <= exact).all()
    assert (exact <= box.upper.double()).all()


def test_sums_of_intervals_are_rounded_outward():
    g = torch.Generator().manual_seed(1)
    a, b = (torch.randn(1000, generator=g) * 10.0 ** torch.randint(-3, 3, (1000,), generator=g) for _ in range(2))
    box, exact = Interval(a, a).plus(Interval(b, b)), a.double() + b.double()
    assert (box.lower.double() <= exact).all()
    assert (exact <= box.upper.double()).all()


@pytest.mark.parametrize("name", ["sqrt", "reciprocal"])
def test_intervals_of_what_is_positive_by_itself_may_reach_below_zero(name):
    """Bounds of a variance, or of a sum of exponentials: what is below 0 is only slack."""
    f = DOMAINS[name][0]
    box = Interval(torch.tensor([-1.0, -1e-3]).double(), torch.tensor([2.0, 3.0]).double())
    t = torch.linspace(1e-6, 1, 500).double()[:, None] * box.upper
    values, strip, lines = f.range(box), f.strip(box), f.lines(box).or_range(f.range(box))
    assert ((f(t) >= values.lower) & (f(t) <= values.upper)).all()
    off = (f(t) - strip.slope * t - strip.mid).abs() <= strip.half
    assert (off | ~strip.half.isfinite()).all()  # 1 / t has no strip down to 0
    assert strip.half.isfinite().all() or name == "reciprocal"
    assert (lines.a_low * t + lines.b_low <= f(t)).all()
    assert (f(t) <= lines.a_high * t + lines.b_high).all()
