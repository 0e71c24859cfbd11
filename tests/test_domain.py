"""The structured zonotope: conversion keeps the set, reduction and casts widen it, the pool rule is the paper's."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import generator, randn, zonotope
from containment import directions, point, random_noise
from zonogpt.domains.chunks import chunks
from zonogpt.domains.finite import NonFiniteBoundError, require_finite
from zonogpt.domains.structured import (
    StructuredZonotope,
    cast,
    convert,
    from_local,
    from_promoted,
    generator_limit,
    reduce,
)


def support(z: StructuredZonotope, w: torch.Tensor) -> torch.Tensor:
    """max of w . x over z, for directions w (B, S, d)."""
    shared = torch.einsum("bsd,msd->bm", w, z.G).abs().sum(-1)
    local = torch.einsum("bsd,sqd->bsq", w, z.L).abs().sum((1, 2))
    return (w * z.c).sum((1, 2)) + shared + local + (w.abs() * z.b).sum((1, 2))


def with_interval(seed: int) -> StructuredZonotope:
    z = zonotope(seed, S=3, d=4)
    b = randn(generator(seed), 3, 4).abs()
    b[0, 1] = 0
    return dataclasses.replace(z, b=b)


def test_radius_is_the_support_of_coordinates():
    z = with_interval(1)
    eye = torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)
    torch.testing.assert_close(support(z, eye), (z.c + z.radius).flatten())


def test_conversion_keeps_the_set_and_the_old_generators():
    z = with_interval(2)
    out = convert(z)
    w = directions(3, 4, 0)
    torch.testing.assert_close(support(out, w), support(z, w))
    assert float(out.b.abs().max()) == 0
    torch.testing.assert_close(out.L[:, : z.q], z.L)
    assert convert(out) is out


@pytest.mark.parametrize("limit", [0, 1, 4, 6, 7, 20])
def test_reduction_only_widens_and_keeps_the_radius(limit):
    z = with_interval(3)
    out = reduce(z, limit)
    assert (out.m, out.q) == (min(z.m, limit), min(z.q, limit - min(z.m, limit)))
    w = directions(3, 4, 1)
    assert (support(out, w) >= support(z, w) - 1e-12).all()
    torch.testing.assert_close(out.radius, z.radius)


def test_reduction_is_symbol_by_symbol():
    """Kept generators keep their symbols: the rest fits in the interval."""
    z = zonotope(4, S=3, d=4, m=6, q=5)
    out = reduce(z, 8)
    kept_shared = [next(j for j in range(z.m) if torch.equal(z.G[j], g)) for g in out.G]
    noise = random_noise(z, 0)
    x = point(z, noise)
    rest = x - out.c - torch.einsum("bm,msd->bsd", noise[0][:, kept_shared], out.G)
    for s in range(3):
        kept = [next(k for k in range(z.q) if torch.equal(z.L[s, k], row)) for row in out.L[s]]
        rest[:, s] -= noise[1][:, s, kept] @ out.L[s]
    assert (rest.abs() <= out.b + 1e-12).all()


def test_reduction_keeps_the_largest_by_summed_absolute_coefficients():
    z = zonotope(5, m=7, q=6)
    out = reduce(z, 7 + 2)
    weights = z.L.abs().sum(2)
    for s in range(z.n_tokens):
        top = weights[s].topk(2).values.sum()
        torch.testing.assert_close(out.L[s].abs().sum(), top)
    out = reduce(z, 3)
    torch.testing.assert_close(out.G.abs().sum(), z.G.abs().sum((1, 2)).topk(3).values.sum())


def test_both_starts_are_the_same_set():
    c, local = randn(generator(6), 3, 4), randn(generator(7), 3, 2, 4)
    local[1, 0] = 0
    w = directions(3, 4, 2)
    a, b = from_local(c, local, 99), from_promoted(c, local, 99)
    torch.testing.assert_close(support(a, w), support(b, w))
    assert (a.m, a.q) == (0, 2)
    assert (b.m, b.q) == (5, 0)  # the zero generator is left out
    assert (b.G.abs().amax(-1) > 0).sum() == 5  # each touches one token
    for start in (from_local, from_promoted):  # the largest stay generators, the others become intervals
        small = start(c, local, 1)
        assert max(small.m, small.q) == 1
        assert (support(small, w) >= support(a, w) - 1e-12).all()
        torch.testing.assert_close(small.radius, a.radius)
    assert float(from_promoted(c, local, 1).G.abs().sum()) == float(local.abs().sum(-1).max())


def test_cast_to_float32_loses_nothing():
    z = with_interval(8)
    out = cast(z, torch.float32)
    assert (out.c.dtype, out.G.dtype, out.L.dtype) == (torch.float64, torch.float32, torch.float32)
    wide = StructuredZonotope(out.c.double(), out.G.double(), out.L.double(), out.b.double())
    noise = random_noise(z, 3)
    error = (point(z, noise) - point(wide, noise)).abs() + z.b
    assert (error <= wide.b + 1e-18).all()
    assert (wide.b >= z.b).all()
    same = cast(z, torch.float64)
    torch.testing.assert_close(same.b, z.b, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("S", "d", "expected"),
    [(28, 768, 6241), (28, 1024, 4681), (32, 768, 5461), (32, 1024, 4096), (512, 4096, 64)],
)
def test_pool_rule_gives_the_papers_numbers(S, d, expected):
    assert generator_limit(S, d) == expected


@given(count=st.integers(0, 200), each=st.integers(1, 50), limit=st.integers(1, 500))
def test_chunks_cover_everything_once(count, each, limit):
    slices = list(chunks(count, each, limit))
    assert [i for s in slices for i in range(count)[s]] == list(range(count))
    assert all((s.stop - s.start) * each <= limit or s.stop - s.start == 1 for s in slices)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_is_named(bad):
    for n in (1, 7, 1000):
        for place in {0, n // 2, n - 1}:
            values = torch.full((n, 3), 1e300, dtype=torch.float64)
            values[place, 1] = bad
            with pytest.raises(NonFiniteBoundError, match="softmax"):
                require_finite("softmax", torch.ones(2), values)


def test_finite_values_pass():
    require_finite("softmax", torch.full((9, 9), -1e308, dtype=torch.float64), torch.zeros(0, 3))


def test_sums_of_short_generators_are_rounded_up_in_their_own_type():
    """One generator of 1 and 4,095 of 2^-25, each of which float32 loses when it is added."""
    m, d = 4096, 4
    G = torch.full((m, 1, d), 2.0**-25)
    G[0] = 1.0
    nothing = torch.zeros(1, d).double()
    exact = G.double().abs().sum(0)
    shared = StructuredZonotope(nothing, G, torch.zeros(1, 0, d), nothing)
    local = StructuredZonotope(nothing, torch.zeros(0, 1, d), G.transpose(0, 1).contiguous(), nothing)
    for z in (shared, local):
        assert (z.radius >= exact).all()
    large = torch.cat([torch.full((64, 1, d), 2.0), G])
    for z in (
        StructuredZonotope(nothing, large, torch.zeros(1, 0, d), nothing),
        StructuredZonotope(nothing, torch.zeros(0, 1, d), large.transpose(0, 1).contiguous(), nothing),
    ):
        out = reduce(z, 64)
        assert (out.m + out.q) == 64
        kept = out.G.double().abs().sum(0) + out.L.double().abs().sum(1)
        assert (kept + out.b >= large.double().abs().sum(0)).all()
