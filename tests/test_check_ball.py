"""The checker's ball arithmetic against python-flint's, which is rigorous itself."""

from types import SimpleNamespace

import numpy as np
import pytest
from flint import arb, ctx

from zonogpt_check.ball import Ball, joined, largest, smallest
from zonogpt_check.check import go_back
from zonogpt_check.mlp import Mlp, strays
from zonogpt_check.norm import scalars
from zonogpt_check.sets import covers, lambda_max

ctx.prec = 256


def numbers(seed, shape, low=-6, high=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * 10.0 ** rng.uniform(low, high, shape)


def cases(seed, shape=(7, 5)):
    """Balls, and a point of each: the midpoint, an end, or one between."""
    rng = np.random.default_rng(seed + 100)
    mid = numbers(seed, shape)
    rad = np.abs(numbers(seed + 1, shape, -12, 0)) * (rng.random(shape) < 0.7)
    ball = Ball(mid, rad)
    where = rng.choice([-1.0, 1.0, 0.0, 0.3], shape)
    return ball, [arb(m) + arb(w) * arb(r) for m, w, r in zip(mid.flat, where.flat, rad.flat, strict=True)]


def assert_holds(out, truth):
    for mid, rad, low, high, t in zip(
        out.mid.flat, out.rad.flat, out.lower().flat, out.upper().flat, truth, strict=True
    ):
        assert abs(arb(mid) - t) <= arb(rad), (mid, rad, t)
        assert arb(low) <= t
        assert t <= arb(high)


@pytest.mark.parametrize("seed", range(5))
def test_sums_products_and_quotients(seed):
    a, x = cases(seed)
    b, y = cases(seed + 10)
    assert_holds(a + b, [p + q for p, q in zip(x, y, strict=True)])
    assert_holds(a - b, [p - q for p, q in zip(x, y, strict=True)])
    assert_holds(a * b, [p * q for p, q in zip(x, y, strict=True)])
    assert_holds(3.5 - a * 2.0, [3.5 - p * 2 for p in x])
    away = abs(b) + 1.0
    assert_holds(a / away, [p / (abs(q) + 1) for p, q in zip(x, y, strict=True)])
    assert_holds(a.square(), [p * p for p in x])
    assert_holds(largest(a, b), [max(p, q, key=lambda t: float(t.mid())) for p, q in zip(x, y, strict=True)])
    assert_holds(smallest(a, b), [min(p, q, key=lambda t: float(t.mid())) for p, q in zip(x, y, strict=True)])
    with pytest.raises(ZeroDivisionError):
        a / Ball(1.0, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_matrices_and_reductions(seed):
    a, x = cases(seed, (4, 9))
    b, y = cases(seed + 10, (9, 3))
    truth = [sum((x[9 * i + k] * y[3 * k + j] for k in range(9)), arb(0)) for i in range(4) for j in range(3)]
    assert_holds(a @ b, truth)
    assert_holds((b.T @ a.T).T, truth)
    rows = [sum(x[9 * i : 9 * i + 9], arb(0)) for i in range(4)]
    assert_holds(a.sum(1), rows)
    assert_holds(a.sum(1) / 9, [r / 9 for r in rows])
    assert_holds(joined([a, a], 0)[4:], x)
    # Terms that cancel: the midpoint may be nothing but rounding, and the radius says so.
    c = Ball(np.array([[1e16, 1.0, -1e16]]))
    assert_holds(c @ np.ones((3, 1)), [arb(1)])


@pytest.mark.parametrize("seed", range(5))
def test_functions(seed):
    a, x = cases(seed)
    small = a * 1e-3
    t = [p * arb(1e-3) for p in x]
    assert_holds(small.exp(), [p.exp() for p in t])
    assert_holds(small.expm1(), [p.expm1() for p in t])
    assert_holds(a.tanh(), [p.tanh() for p in x])
    positive = abs(a) + 1e-3
    q = [abs(p) + arb(1e-3) for p in x]
    assert_holds(positive.sqrt(), [p.sqrt() for p in q])
    if np.all(positive.lower() > 0):
        assert_holds(positive.log(), [p.log() for p in q])
    assert_holds(positive.log1p(), [p.log1p() for p in q])
    with pytest.raises(ZeroDivisionError):
        Ball(0.0, 1.0).log()


def test_the_radius_is_not_generous():
    """One operation on exact numbers gives a radius of a few units, no more."""
    a, b = numbers(1, (50,)), numbers(2, (50,))
    for out in (Ball(a) + b, Ball(a) * b, Ball(a) / b, Ball(np.abs(a)).sqrt()):
        assert np.all(out.rad <= 16 * 2.0**-53 * np.abs(out.mid) + 1e-300)


def test_mixed_operations_are_ours():
    """numpy must not take a Ball apart."""
    out = np.ones((2, 3)) @ Ball(np.ones((3, 2)), 0.5)
    assert isinstance(out, Ball)
    assert out.rad.min() >= 1.5
    assert isinstance(np.float64(2.0) * Ball(1.0), Ball)
    assert isinstance(np.ones(2) / Ball(2.0), Ball)


def test_radii_that_underflow_before_they_meet_something_large():
    assert_holds(Ball([[1e300]]) @ Ball([[1e-309]]), [arb(1e300) * arb(1e-309)])
    assert_holds(Ball([1e-320]) / Ball([1e-140], [1e-150]), [arb(1e-320) / (arb(1e-140) - arb(1e-150))])


def test_inclusion_of_ellipsoids_is_proved_not_believed():
    rng = np.random.default_rng(0)
    F = rng.standard_normal((40, 12, 12))
    Q = F @ F.swapaxes(1, 2)
    values, vectors = np.linalg.eigh(Q)
    lowest = np.einsum("n,ni,nj->nij", values[:, 0], vectors[:, :, 0], vectors[:, :, 0])
    for share, holds in ((0.0, True), (5e-7, True), (1.01e-6, False), (0.01, False)):
        R = (1 - 1e-6) * Q + share * lowest  # a little less than Q, but for its thinnest direction
        assert (covers(Q, Ball((R + R.swapaxes(1, 2)) / 2)) == holds).all(), share
    assert not covers(np.eye(3), Ball(np.zeros((3, 3)), np.full((3, 3), 0.5)))  # some matrix of the ball is larger
    assert not covers(1e-170 * np.eye(3), Ball(np.zeros((3, 3)), np.full((3, 3), 1e-165)))  # squares underflow
    assert not covers(np.full((2, 2), np.nan), Ball(np.eye(2)))
    top = lambda_max(Ball(Q))
    assert (top.upper() >= values[:, -1]).all()
    assert (top.upper() <= values[:, -1] * (1 + 1e-8)).all()


def test_norms_scalars_hold_for_every_length_of_the_ball():
    """The scalars at the ends of a wide ball of lengths lie within those of the whole ball."""
    a0, rho, r = Ball([1.5]), Ball([0.8]), Ball([0.9])
    for mid, rad, most in ((1.0, 0.4, 0.4), (1.0, 0.9, 0.1), (0.5, 0.6, 0.2), (0.2, 0.19, 0.01)):
        met = Ball([most])
        whole = scalars(Ball([mid], [rad]), a0, rho, met, r, 4, 1e-2)
        for length in np.linspace(max(0.0, mid - rad), mid + rad, 7):
            for wide, exact in zip(whole, scalars(Ball([length]), a0, rho, met, r, 4, 1e-2), strict=True):
                assert wide.upper() >= exact.lower()


def test_what_functionals_are_off_by_is_charged_at_the_head_and_at_every_step():
    rng = np.random.default_rng(0)
    mid, radius = rng.standard_normal((2, 3, 4)), rng.random((3, 4))
    first = SimpleNamespace(c=np.zeros((3, 4)), G=np.zeros((1, 3, 4)), p=np.inf, radius=lambda: Ball(5 * radius))

    def step(off, times):
        at = SimpleNamespace(z=SimpleNamespace(radius=lambda: Ball(times * radius)))
        nothing = [Ball(np.zeros(2)), Ball(np.zeros(2))]
        return SimpleNamespace(norm=at, after=first, pull=lambda w, at: (Ball(w, np.full(w.shape, off)), nothing))

    norm = SimpleNamespace(pull=lambda w, at: (Ball(w, np.full(w.shape, 0.5)), Ball(np.zeros(2))))
    steps = [step(0.25, 2.0), step(0.125, 3.0)]
    found = go_back(mid, Ball(np.full(2, 7.0)), np.arange(2), norm, steps, first, Ball(np.zeros((3, 4))))
    charged = [float(loss.upper().max()) for loss in found]
    total = radius.sum()
    wanted = [0, 0, 0, 0.25 * 2 * total, 0, 0.125 * 3 * total, 0, 7 + 0.5 * 5 * total]
    np.testing.assert_allclose(charged, wanted, rtol=1e-12, atol=1e-12)
    assert all(found >= exact for found, exact in zip(charged, wanted, strict=True))


def test_strays_of_gelu_from_a_line_on_every_piece():
    rng = np.random.default_rng(1)
    low = rng.uniform(-6, 5, 200)
    high = low + 10 ** rng.uniform(-2, 1, 200)
    slope, mid = rng.uniform(-0.2, 1.2, 200), rng.uniform(-1, 1, 200)
    rad = rng.uniform(0, 0.3, 200)
    bound = strays(Ball(low, rad), Ball(high, rad), slope, mid).upper()
    for share in np.linspace(0, 1, 401):
        t = low - rad + share * (high - low + 2 * rad)
        g = 0.5 * t * (1 + np.tanh(np.sqrt(2 / np.pi) * (t + 0.044715 * t**3)))
        assert (np.abs(g - slope * t - mid) <= bound + 1e-12).all()


def test_what_an_mlp_misses_besides_is_charged():
    """The output's error is charged to the functional, the activation's to the functional at the hidden units."""
    rng = np.random.default_rng(2)
    outer, inner = rng.standard_normal((5, 4)), rng.standard_normal((4, 5))
    norm = SimpleNamespace(pull=lambda w, rows: (Ball(w), Ball(np.zeros(len(w)))), reach=Ball(np.zeros((3, 4))))
    mlp = object.__new__(Mlp)
    mlp.block, mlp.norm = SimpleNamespace(outer=outer, inner=inner), norm
    mlp.slope, mlp.half, mlp.box = np.zeros((3, 5)), Ball(np.full((3, 5), 0.5)), Ball(np.full((3, 4), 2.0))
    w = rng.standard_normal((2, 3, 4))
    _, (of_norm, of_gelu, rounding) = mlp.pull(w, np.arange(2))
    assert (of_norm.upper() >= 0).all()
    assert (of_gelu.upper() >= 0.5 * np.abs(w @ outer.T).sum((1, 2))).all()
    assert (rounding.upper() >= 2 * np.abs(w).sum((1, 2))).all()
