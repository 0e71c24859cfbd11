"""The model of arithmetic that all rounding bounds rest on, held against exact and ball arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx

from builders import generator, randn
from exact import gelu as exact_gelu
from zonogpt.domains.rounding import LIBRARY, gamma, length, part, unaccounted, unit, up
from zonogpt.methods.adjoint import below
from zonogpt.transforms.gelu import gelu

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = (torch.float32, torch.float64)

# name: torch's function, ball arithmetic's, and the range of its argument (and of its second one, if there is one)
FUNCTIONS = {
    "exp": (torch.exp, lambda x: x.exp(), (-80, 80)),
    "expm1": (torch.expm1, lambda x: x.expm1(), (-30, 80)),
    "log": (torch.log, lambda x: x.log(), (1e-30, 1e30)),
    "log1p": (torch.log1p, lambda x: x.log1p(), (-0.99, 1e6)),
    "tanh": (torch.tanh, lambda x: x.tanh(), (-20, 20)),
    "sinh": (torch.sinh, lambda x: x.sinh(), (-60, 60)),
    "sigmoid": (torch.sigmoid, lambda x: 1 / (1 + (-x).exp()), (-80, 80)),
    "rsqrt": (torch.rsqrt, lambda x: 1 / x.sqrt(), (1e-30, 1e30)),
    "sqrt": (torch.sqrt, lambda x: x.sqrt(), (1e-30, 1e30)),
}


def points(low, high, dtype, count=1500):
    """Spread evenly, near zero, and over many orders of magnitude, inside (low, high)."""
    g = generator(0)
    x = torch.rand(count, generator=g).double()
    even = low + (high - low) * x
    size = 10.0 ** (-12 + 12 * torch.rand(count, generator=g).double()) * high
    tiny = torch.where(torch.rand(count, generator=g) < 0.5, size, -size) if low < 0 else size
    both = torch.cat([even, tiny]).to(dtype)
    return both[(both.double() > low) & (both.double() < high)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementary_functions_are_off_by_few_units(name, dtype, device):
    f, exact, (low, high) = FUNCTIONS[name]
    x = points(low, high, dtype)
    values = f(x.to(device)).cpu().double().tolist()
    u, tiny = unit(dtype), torch.finfo(dtype).tiny
    for t, value in zip(x.double().tolist(), values, strict=True):
        truth = exact(arb(t))
        assert abs(arb(value) - truth) <= LIBRARY * u * abs(truth) + tiny, (t, value, truth)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hypot_is_off_by_few_units(dtype):
    g = generator(1)
    a, b = (10.0 ** (8 * torch.rand(2, 1500, generator=g).double() - 4)).to(dtype)
    for x, y, value in zip(a.tolist(), b.tolist(), torch.hypot(a, b).tolist(), strict=True):
        truth = (arb(x) ** 2 + arb(y) ** 2).sqrt()
        assert abs(arb(value) - truth) <= LIBRARY * unit(dtype) * truth


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_is_off_by_less_than_six_units_of_its_argument(dtype, device):
    t = torch.cat([points(-12, 12, dtype), points(-3, 3, dtype)])
    for x, value in zip(t.double().tolist(), gelu(t.to(device)).cpu().double().tolist(), strict=True):
        assert abs(arb(value) - exact_gelu(arb(x))) <= 6 * unit(dtype) * abs(x) + torch.finfo(dtype).tiny, (x, value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [1, 3, 30, 300])
def test_products_of_matrices_are_off_by_gamma(k, dtype, device):
    """Against fractions; terms have one sign, or cancel, or have very different sizes."""
    if k * unit(dtype) >= 0.5:
        assert gamma(2 * k, dtype) == math.inf
        return
    g = generator(k)
    for case in range(3):
        a, b = randn(g, 3, k), randn(g, k, 4)
        if case == 1:
            a, b = a.abs(), b.abs()
        if case == 2:
            a = a * 10.0 ** (4 * torch.rand(3, k, generator=g).double() - 2)
        a, b = a.to(dtype), b.to(dtype)
        out = (a.to(device) @ b.to(device)).cpu().double()
        for i in range(3):
            for j in range(4):
                terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)]
                size = sum(map(abs, terms))
                assert abs(Fraction(float(out[i, j])) - sum(terms)) <= Fraction(gamma(k, dtype)) * size


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_up_is_enough_for_as_many_operations(dtype):
    g = generator(5)
    x = torch.rand(200, generator=g).to(dtype)
    for k in (1, 6, 14, 60):
        for value, raised in zip(x.tolist(), up(x, k).tolist(), strict=True):
            assert Fraction(raised) >= Fraction(value) * (1 + Fraction(k) * Fraction(unit(dtype)))
        share = gamma(7, torch.float64)
        for value, taken in zip(x.tolist(), part(share, x, k).tolist(), strict=True):
            assert Fraction(taken) >= Fraction(share) * Fraction(value) * (1 + Fraction(k) * Fraction(unit(dtype)))
    v = torch.rand(40, 30, generator=g).to(dtype)
    for row, size in zip(v.tolist(), length(v).tolist(), strict=True):
        assert Fraction(size) ** 2 >= sum(Fraction(t) ** 2 for t in row)
    assert float(length(torch.full((1, 100), 1e-30, dtype=dtype))) >= 1e-29  # whose squares underflow


def test_rounding_can_be_left_out_of_account_and_comes_back():
    with unaccounted():
        assert gamma(10, torch.float64) == 0.0
        assert float(up(torch.ones(()))) == 1.0
        assert float(part(0.5, torch.ones(()))) == 0.5
    assert gamma(10, torch.float64) > 0
    assert gamma(1, torch.float64) == 2.0**-53 / (1 - 2.0**-53)
    assert gamma(2**53, torch.float64) == math.inf


def test_ball_arithmetic_is_wide_enough():
    assert ctx.prec >= 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_margins_lie_below_the_value_less_losses_of_either_sign(dtype):
    """A loss against LayerNorm's range may be negative; rounding it up as a size would raise the margin."""
    g = torch.Generator().manual_seed(0)
    for n in (1, 2, 20):
        losses = torch.randn(n, 300, generator=g).to(dtype) * 10.0 ** torch.randint(-8, 8, (n, 1), generator=g).to(
            dtype
        )
        losses[0] = -losses[0].abs() * 1e3  # nearly all of the sum
        value = torch.randn(300, generator=g).to(dtype)
        found = below(value, losses)
        for k in range(300):
            exact = Fraction(float(value[k])) - sum(Fraction(float(x)) for x in losses[:, k])
            assert Fraction(float(found[k])) <= exact
        assert (found >= value - losses.sum(0) - 1e2 * torch.finfo(dtype).eps * losses.abs().sum(0) - 1e-5).all()
