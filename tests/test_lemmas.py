"""The scalar lemmas, over their whole ranges, by ball arithmetic and exact polynomials: the counterpart of the paper's
Lean files. Samples prove nothing here: a range is cut into balls until every one of them is decided."""

import math

import pytest
import torch
from flint import arb, ctx, fmpq, fmpq_poly

from builders import generator
from zonogpt.model.activations import GELU_TANH
from zonogpt.transforms.activations import bounds_of
from zonogpt.transforms.ellipsoidal.softmax import chord_of_psi, log_phi, psi
from zonogpt.transforms.gelu import curvature_bound, curvature_range, relu_gap

ctx.prec = 256  # with 53 bits some balls below are never decided

K0, K1 = (2 / arb.pi()).sqrt(), arb("0.044715")


def ball(low, high):
    """The ball around [low, high]."""
    a, b = arb(low), arb(high)
    return arb((a + b) / 2, (b - a) / 2)


def everywhere(holds, low, high, depth=30):
    """Whether `holds(ball)` is True for all balls of some subdivision of [low, high]; it may return True for a ball
    only if it holds at all of its points."""
    todo = [(low, high, 0)]
    while todo:
        a, b, level = todo.pop()
        if holds(ball(a, b)):
            continue
        if level == depth:
            return False
        middle = (a + b) / 2
        todo += [(a, middle, level + 1), (middle, b, level + 1)]
    return True


def h(t):
    return K0 * (t + K1 * t**3)


def h1(t):
    return K0 * (1 + 3 * K1 * t**2)


def slope(t):
    """g'."""
    tanh = h(t).tanh()
    return (1 + tanh) / 2 + t / 2 * (1 - tanh**2) * h1(t)


def curvature(t):
    """g'' = sech^2(h) (h' + t h''/2 - t tanh(h) h'^2)."""
    tanh = h(t).tanh()
    return (1 - tanh**2) * (h1(t) + 3 * K0 * K1 * t**2 - t * tanh * h1(t) ** 2)


def gap(t):
    """ReLU(t) - g(t) = |t| / (1 + exp(2 h(|t|)))."""
    return t / (1 + (2 * h(t)).exp())


def test_the_gap_between_relu_and_gelu_is_at_most_e_max():
    e_max = arb(relu_gap())
    assert everywhere(lambda t: gap(t) <= e_max, 0.0, 8.0)
    # Beyond 8, t exp(-2 h(t)) falls: 1/t < 2 h'(t).
    assert arb(1) / 8 < 2 * K0
    assert 8 * (-2 * h(arb(8))).exp() <= e_max
    # It is attained to 0.2 %.
    assert not everywhere(lambda t: gap(t) <= e_max * (1 - arb("2e-3")), 0.0, 8.0, depth=16)


def test_the_gap_is_the_difference():
    """g(t) = t/2 (1 + tanh h) = t - t / (1 + e^(2h)) for t >= 0, and g(-t) = g(t) - t: on balls, both sides overlap."""
    assert everywhere(lambda t: (t / 2 * (1 + h(t).tanh()) - (t - gap(t))).contains(0), 0.0, 8.0)
    assert everywhere(lambda t: (-t / 2 * (1 + h(-t).tanh()) + gap(t)).contains(0), 0.0, 8.0)


def test_gelu_is_nowhere_steeper_than_said():
    bound = arb(bounds_of(GELU_TANH).steepest)
    assert everywhere(lambda t: abs(slope(t)) < bound, -8.0, 8.0)
    # Outside, g' - (0 or 1) = +-gap' is below t h' / cosh^2 + e^(-2h), far below 0.1.
    for t in (arb(8),):
        assert t * h1(t) * 4 * (-2 * h(t)).exp() + (-2 * h(t)).exp() < arb("0.01")
    assert not everywhere(lambda t: abs(slope(t)) < arb("1.128"), 0.0, 4.0, depth=14)


@pytest.mark.parametrize("width", [1e-6, 1e-3, 0.05, 0.4, 3.0])
def test_curvature_ranges_hold_on_intervals_that_cover_the_line(width):
    """From a width of 0.05 on, every t in [-10, 10] lies in one of the intervals; wide ones are cut into balls."""
    if width >= 0.05:
        ends = torch.linspace(-10, 10, math.ceil(20 / width) + 1).double()
        low, high = ends[:-1], ends[1:]
    else:  # too many would be needed to cover the line: some of them
        low = 20 * torch.rand(400, generator=generator(1)).double() - 10
        high = low + width
    least, most = curvature_range(low, high)
    bound = curvature_bound(low, high)
    for a, b, m, M, C in zip(*(x.tolist() for x in (low, high, least, most, bound)), strict=True):
        inside = lambda t, m=m, M=M, C=C: curvature(t) >= m and curvature(t) <= M and abs(curvature(t)) <= C  # noqa: E731
        assert everywhere(inside, a, b), (a, b, m, M, C)


def test_softmax_lemma():
    """e^t >= 1 + t, so that Z >= 1 and p_j <= P_j e^delta_j; and psi(t) <= t^2 phi(W) / 2 for |t| <= W, phi(t) growing.

    psi(t) / t^2 = sum_k t^k / (k + 2)! for all t; phi = 2 psi / t^2 is its own derivative's integral of e^(st) (1 - s)
    over [0, 1], times 2: positive and growing. By balls: 2 int_0^1 (1 - s) e^(s t) ds over s in 64 pieces.
    """

    def integral(t, power):
        total = arb(0)
        for k in range(64):
            s = ball(k / 64, (k + 1) / 64)
            total += 2 * (1 - s) * s**power * (s * t).exp() / 64
        return total

    assert everywhere(lambda t: integral(t, 0) > 0 and integral(t, 1) > 0, -40.0, 40.0)
    # The integral is phi: on balls away from zero, both sides overlap.
    for low in (-30.0, -3.0, 0.5, 2.0, 20.0):
        t = ball(low, low + 0.25)
        assert (integral(t, 0) - 2 * (t.exp() - 1 - t) / t**2).contains(0)


def test_phi_by_its_series_below_one_half():
    """1 + W/3 + W^2/12 + W^3/60 + W^4/300 >= 2 sum_k W^k / (k + 2)!: equal up to W^3, and the tail is less."""
    for k, coefficient in enumerate((fmpq(1), fmpq(1, 3), fmpq(1, 12), fmpq(1, 60))):
        assert coefficient == fmpq(2, math.factorial(k + 2))
    tail = sum((fmpq(2, math.factorial(k + 2)) * fmpq(1, 2 ** (k - 4)) for k in range(4, 40)), fmpq(0))
    assert tail + fmpq(1, 10**9) < fmpq(1, 300)


def exact_psi(t):
    return t.expm1() - t


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_scalars_as_computed(dtype):
    """psi, log phi and the chord as computed, rounding included, against balls."""
    g = generator(3)
    W = torch.cat([10.0 ** (11 * torch.rand(700, generator=g).double() - 9), 0.5 + 0.01 * torch.rand(100, generator=g)])
    W = torch.cat([W, torch.tensor([0.5, 0.49999, 80.0])]).to(dtype).clamp(max=80)
    chord, middle, half = (x.double().tolist() for x in chord_of_psi(W))
    upper, lower, phi = psi(W).double().tolist(), psi(-W).double().tolist(), log_phi(W).double().tolist()
    for k, w in enumerate(W.double().tolist()):
        t = arb(w)
        assert arb(upper[k]) >= exact_psi(t)
        assert arb(lower[k]) >= exact_psi(-t)
        assert arb(phi[k]) >= (2 * exact_psi(t) / t**2).log()
        # psi(x) - chord x - middle is convex: largest at the ends, least where e^x = 1 + chord (or at an end).
        c, m, r = arb(chord[k]), arb(middle[k]), arb(half[k])
        for x in (t, -t):
            assert exact_psi(x) - c * x - m <= r
        least = c - (1 + c) * c.log1p() - m
        assert -least <= r


def test_remainders_of_rho_are_polynomial_identities():
    """1/s - 1 - (1 - s^2)/2 = (1 - s^2)^2 (2 + s) / (2 s (1 + s)^2): `_above_tangent`, for s^2 = a / a0.

    1/s - 1 = (1 - s^2) / (s (1 + s)): delta. Multiplied out, as polynomials in s over the rationals.
    """
    s, one = fmpq_poly([0, 1]), fmpq_poly([1])
    x = one - s * s
    assert 2 * (one + s) ** 2 * (one - s - s * x / 2) == x * x * (2 * one + s)
    assert (one - s) * (one + s) == x


def test_the_papers_taylor_bounds_of_rho():
    """(2 + s) / (2 s (1 + s)^2) <= 3/8 s^-5 for s <= 1 and <= 3/8 for s >= 1: the second-order term of rho, a = s^2.

    s^4 (2 + s) / (1 + s)^2 grows for s > 0 (its derivative's numerator has no negative coefficient) and is 3/4 at 1;
    (2 + s) / (s (1 + s)^2) falls for s > 0, and is 3/4 at 1.
    """
    s, one = fmpq_poly([0, 1]), fmpq_poly([1])
    top, bottom = s**4 * (2 * one + s), (one + s) ** 2
    grows = top.derivative() * bottom - top * bottom.derivative()
    assert top(1) / bottom(1) == fmpq(3, 4)
    # Coefficients of s^3 times a polynomial with positive ones only: positive on (0, oo).
    assert all(c >= 0 for c in grows.coeffs())
    top, bottom = 2 * one + s, s * (one + s) ** 2
    falls = top.derivative() * bottom - top * bottom.derivative()
    assert all(c <= 0 for c in falls.coeffs())
    assert top(1) / bottom(1) == fmpq(3, 4)
    # |rho(a) - rho(a0)| <= r_a a_min^(-3/2) / 2 likewise: 1 / (s (1 + s)) <= 1/2 s^-3 for s <= 1, s^2 / (1 + s) grows.
    top, bottom = s * s, one + s
    assert all(c >= 0 for c in (top.derivative() * bottom - top * bottom.derivative()).coeffs())
    assert top(1) / bottom(1) == fmpq(1, 2)
