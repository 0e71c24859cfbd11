"""LayerNorm: every contract of LayerNormBounds, in the regimes where each of its terms matters."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import generator, layer_norm, randn, zonotope
from chunked import smallest_chunks
from containment import assert_bounded, assert_symbolic_containment, point
from zonogpt.domains.structured import StructuredZonotope, from_promoted
from zonogpt.model.nodes import Norm
from zonogpt.transforms.structured.layernorm import layernorm_bounds, layernorm_range, rho_remainders, taylor_remainder


def centred(x):
    return x - x.mean(-1, keepdim=True)


def x_hat(x, tau):
    z = centred(x)
    return z / (tau + z.square().mean(-1, keepdim=True)).sqrt()


def check_contract(norm, z, seed=0):
    bounds = layernorm_bounds(norm, z)

    def linear(noise):
        v = point(z, noise) - z.c
        return bounds.jacobian(v.transpose(0, 1)).transpose(0, 1)

    def error(noise):
        return norm(point(z, noise)) - bounds.centre - linear(noise)

    def normalised_error(noise):
        x = point(z, noise)
        return x_hat(x, norm.tau) - (bounds.centre - norm.beta) / norm.gamma - linear(noise) / norm.gamma

    assert_bounded(linear, bounds.r_N, z, seed)
    assert_bounded(error, bounds.R_N, z, seed)
    assert_bounded(normalised_error, bounds.R_hat, z, seed)
    assert_bounded(
        lambda noise: normalised_error(noise).mean(-1), torch.zeros(z.n_tokens, dtype=torch.float64), z, seed
    )
    out = StructuredZonotope(
        bounds.centre,
        bounds.jacobian(z.G.transpose(0, 1)).transpose(0, 1),
        torch.cat([bounds.jacobian(z.L), bounds.error_generators()], dim=1),
        torch.zeros_like(z.b),
    )
    assert_symbolic_containment(norm, z, out, seed)
    return bounds


@pytest.mark.parametrize("radius", [1e-4, 1e-2, 0.1, 0.5, 3.0, 100.0])
@pytest.mark.parametrize("d", [2, 3, 6])
def test_contract_over_radii(radius, d):
    for seed in range(3):
        z = zonotope(seed, S=3, d=d, m=3, q=2, radius=radius)
        check_contract(layer_norm(generator(seed + 50), d), z, seed)


@pytest.mark.parametrize("size", [1e-3, 0.05, 0.15])
@pytest.mark.parametrize("along", [True, False])
def test_contract_where_one_term_rules(along, size):
    """One generator along z0 (curvature term) or across it (quadratic term): the bounds are nearly attained there."""
    g = generator(3)
    c = centred(randn(g, 4, 5))
    v = c.clone() if along else centred(randn(g, 4, 5))
    if not along:
        v = v - c * (v * c).sum(-1, keepdim=True) / c.square().sum(-1, keepdim=True)
    z = StructuredZonotope(c, size * v[None], torch.zeros(4, 0, 5).double(), torch.zeros(4, 5).double())
    bounds = check_contract(Norm(torch.ones(5).double(), torch.zeros(5).double(), 1e-5), z)
    assert bool(bounds.sloped.all())


@given(a0=st.floats(1e-5, 10), lin=st.floats(-0.99, 0.99), quad=st.floats(0, 2), slack=st.floats(0.3, 1))
def test_rho_remainders(a0, lin, quad, slack):
    """A, B and the two forms of d_rho, each alone; the examples include the sharp corners of (lin, quad)."""
    t = [torch.tensor([x], dtype=torch.float64) for x in (a0, a0 * lin, a0 * quad)]
    a = t[0] + t[1] + t[2]
    a_min = torch.minimum(a, t[0]) * slack
    e_rho, d_rho = rho_remainders(t[0], a_min, t[1].abs(), t[2])
    rho = a.rsqrt() - t[0].rsqrt()
    assert float((rho + 0.5 * t[0].pow(-1.5) * t[1]).abs()) <= float(e_rho) * (1 + 1e-9) + 1e-12 * a0**-0.5
    assert float(rho.abs()) <= float(d_rho) * (1 + 1e-9) + 1e-12 * a0**-0.5


def test_rho_remainders_are_nearly_attained():
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for r in (1e-3, 1e-2):
        e_rho, d_rho = rho_remainders(one, one * (1 - r), r * one, zero)
        assert 0.9 * float(e_rho) < (1 - r) ** -0.5 - 1 - 0.5 * r <= float(e_rho)
        assert 0.9 * float(d_rho) < (1 - r) ** -0.5 - 1 <= float(d_rho)
        e_rho, _ = rho_remainders(one, one, zero, r * one)
        assert 0.9 * float(e_rho) < 1 - (1 + r) ** -0.5 <= float(e_rho)


def test_taylor_remainder_is_nearly_attained():
    """R_hat against the largest error on a line, for one generator: within a small factor, so no term is idle."""
    g = generator(4)
    c = centred(randn(g, 6, 4))
    v = centred(randn(g, 6, 4))
    for size in (1e-3, 1e-2, 0.1):
        H = size * v
        norm2 = c.square().sum(-1)
        a0 = 1e-5 + norm2 / 4
        R, a_min, a_max = taylor_remainder(c, norm2, a0, 1e-5, H.abs(), (c * H).sum(-1).abs())
        t = torch.linspace(-1, 1, 401, dtype=torch.float64)[:, None, None]
        path = c + t * H
        slope = torch.func.jvp(lambda x: x_hat(x, 1e-5), (c,), (H,))[1]
        error = (x_hat(path, 1e-5) - x_hat(c, 1e-5) - t * slope).abs().amax(0)
        a = 1e-5 + path.square().sum(-1) / 4
        assert (error <= R).all()
        assert (R.sum(-1) <= 12 * error.sum(-1)).all()
        assert (a.amin(0) >= a_min * (1 - 1e-12)).all()
        assert (a.amax(0) <= a_max * (1 + 1e-12)).all()


def test_jacobian_is_the_derivative():
    norm, z = layer_norm(generator(1), 6), zonotope(2, radius=1e-3)
    bounds = layernorm_bounds(norm, z)
    for v in z.G:
        expected = torch.func.jvp(norm, (z.c,), (v,))[1]
        torch.testing.assert_close(bounds.jacobian(v[:, None])[:, 0], expected)


def test_remainder_is_second_order():
    norm = layer_norm(generator(1), 6)
    ratios = [float(layernorm_bounds(norm, zonotope(5, radius=r)).R_N.mean()) / r**2 for r in (1e-2, 1e-3, 1e-4, 1e-5)]
    assert max(ratios) < 2 * min(ratios)


def test_zero_radius_is_exact():
    norm, z = layer_norm(generator(1), 6), zonotope(2, radius=0.0)
    bounds = layernorm_bounds(norm, z)
    torch.testing.assert_close(bounds.centre, norm(z.c))
    assert float(bounds.R_N.abs().max()) < 1e-13


def test_constant_token_uses_the_range():
    """At z0 = 0 the Jacobian is 1/sqrt(tau): the paper's R_N is in the hundreds, the range is below sqrt(d - 1)."""
    c = torch.zeros(1, 2, dtype=torch.float64)
    z = from_promoted(c, torch.diag_embed(torch.full((1, 2), 0.02, dtype=torch.float64)), pool=9)
    norm = Norm(torch.tensor([1.6, 1.8]).double(), torch.tensor([0.2, 0.3]).double(), 1e-5)
    bounds = check_contract(norm, z)
    assert not bool(bounds.sloped.any())
    assert float(bounds.R_hat.max()) < 1.0


@given(seed=st.integers(0, 10_000), spread=st.floats(1e-6, 1e3), radius=st.floats(1e-9, 1e4), d=st.integers(2, 7))
def test_range_contains_every_value(seed, spread, radius, d):
    g = generator(seed)
    z0 = centred(spread * randn(g, 3, d))
    r = radius * randn(g, 3, d).abs()
    dev = centred((2 * torch.rand(500, 3, d, generator=g, dtype=torch.float64) - 1) * r)
    dev = dev * torch.clamp(r / dev.abs().clamp(min=1e-300), max=1).amin(-1, keepdim=True)  # mean-free and inside r
    z = z0 + dev
    a = 1e-5 + z.square().sum(-1) / d
    low, high = layernorm_range(z0 - r, z0 + r, a.amin(0), a.amax(0), 1e-5)
    xs = z / a.sqrt()[..., None]
    slack = 1e-12 * (1 + xs.abs())
    assert (xs <= high + slack).all()
    assert (xs >= low - slack).all()
    assert (high.abs() <= (d - 1) ** 0.5 + 1e-9).all()
    assert (low.abs() <= (d - 1) ** 0.5 + 1e-9).all()


def test_overflowing_radius_stays_finite():
    z = zonotope(1, radius=1e200)  # squares overflow, the range does not
    bounds = layernorm_bounds(layer_norm(generator(2), 6), z)
    assert bool(bounds.R_N.isfinite().all())
    assert not bool(bounds.sloped.any())


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e70), (torch.float64, 1e-70), (torch.float32, 1e11)])
def test_large_activations_do_not_lose_the_remainder(dtype, scale):
    """The remainders are those of the same token at scale 1, divided by the scale: no power of a may underflow."""
    a0, a_min, r_lin, r_quad = (torch.tensor([x], dtype=dtype) for x in (1.0, 0.4, 0.5, 0.3))
    small = rho_remainders(a0, a_min, r_lin, r_quad)
    large = rho_remainders(
        *(x * scale * scale if dtype == torch.float64 else x * scale for x in (a0, a_min, r_lin, r_quad))
    )
    root = scale if dtype == torch.float64 else scale**0.5
    for s, t in zip(small, large, strict=True):
        torch.testing.assert_close(t.double() * root, s.double(), rtol=1e-5, atol=0)


def test_chunked_equals_plain():
    norm, z = layer_norm(generator(4), 6), zonotope(5, radius=0.1)
    plain = layernorm_bounds(norm, z)
    with smallest_chunks() as rounds:
        small = layernorm_bounds(norm, z)
    assert rounds == [z.m, z.q]
    for name in ("centre", "r_N", "R_N", "R_hat", "reach", "rounding"):
        torch.testing.assert_close(getattr(small, name), getattr(plain, name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tangents_in_a_short_type_are_off_by_less_than_is_said(dtype):
    """The set is so small that LayerNorm's own error is nothing beside the rounding of J in this type."""
    for seed in range(4):
        g, d = generator(seed), 6
        norm, c = layer_norm(g, d), randn(g, 3, d)
        G, L = (1e-4 * randn(g, 4, 3, d)).to(dtype), (1e-4 * randn(g, 3, 2, d)).to(dtype)
        bounds = layernorm_bounds(norm, StructuredZonotope(c, G, L, torch.zeros(3, d, dtype=torch.float64)))
        exact = layernorm_bounds(norm, StructuredZonotope(c, G.double(), L.double(), torch.zeros_like(c)))
        G, L = G.transpose(0, 1), L
        lost = sum((bounds.jacobian(x).double() - exact.jacobian(x.double())).abs().sum(1) for x in (G, L))
        assert (lost <= bounds.rounding).all()
        assert lost.max() > 1e3 * bounds.R_N.max() * torch.finfo(torch.float32).eps
