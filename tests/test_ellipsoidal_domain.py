"""Covers, sums and eigenvalue bounds of the ellipsoidal domain."""

import itertools
import math

import pytest
import torch

from builders import generator, randn
from zonogpt.domains import ellipsoidal as domain
from zonogpt.domains.ellipsoidal import (
    box_cover,
    coordinate_radius,
    dual_norm,
    lambda_max,
    minkowski,
    rounded_out,
    sandwich,
    support,
    symmetric_product,
    trace,
    weights,
)
from zonogpt.domains.symbols import SymbolSums


def signs(n):
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=n))).double()


@pytest.mark.parametrize("seed", range(10))
def test_box_cover_contains_every_vertex(seed):
    g = generator(seed)
    A, R = randn(g, 6, 3), torch.rand(6, generator=g).double()
    R[0] = 0.0 if seed % 2 else R[0]
    Q = box_cover(A, R)
    w = randn(g, 300, 3)
    reach = (signs(6) * R) @ A @ w.T  # (64, 300)
    assert (reach.amax(0) <= support(Q, w) * (1 + 1e-9)).all()
    # With one coordinate it is exact, and no weights have a smaller trace.
    torch.testing.assert_close(
        support(box_cover(A[:1], R[1:2]), w), R[1] * (A[:1] @ w.T).abs()[0], rtol=1e-5, atol=1e-9
    )
    torch.testing.assert_close(trace(Q), (R * A.norm(dim=-1)).sum().square(), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("seed", range(10))
def test_minkowski_contains_sums(seed):
    g = generator(seed)
    grams = [(F := randn(g, 2, 4, 4) * 10.0**-k) @ F.mT for k in range(3)]
    joint = minkowski(*grams)
    w = randn(g, 2, 200, 4)
    apart = sum(support(Q, w) for Q in grams)
    assert (support(joint, w) >= apart * (1 - 1e-9)).all()
    torch.testing.assert_close(trace(joint), sum(trace(Q).sqrt() for Q in grams).square(), rtol=1e-3, atol=0.0)
    alone = minkowski(grams[0], torch.zeros_like(grams[0]))
    torch.testing.assert_close(alone, grams[0], rtol=1e-5, atol=1e-9)
    assert float(minkowski(0 * grams[0], 0 * grams[0]).abs().max()) <= 1e-300


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_never_vanish_nor_overflow(dtype):
    sizes = torch.tensor([[0.0, 1e-30, 1.0, 1e10], [0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    t = weights(sizes, -1)
    assert (t > 0).all()
    assert (t >= sizes).all()
    assert (1 / t).isfinite().all()
    assert (t <= sizes * (1 + 1e-5) + 1.1e-6 * sizes.sum(-1, keepdim=True) + 1e-15).all()


def test_a_set_too_small_to_see_is_not_dropped():
    """In float32 a Gram of size 1e-40 has trace 0 after squaring; its weight must not remove it."""
    small, large = torch.eye(2) * 1e-30, torch.eye(2)
    joint = minkowski(small, large)
    assert float(joint[0, 0]) >= 1.0
    line = torch.tensor([[1e-18, 0.0]])
    cover = box_cover(torch.cat([line, torch.eye(2)]), torch.ones(3))
    assert float(support(cover, torch.tensor([[1.0, 0.0]]))) >= 1.0


@pytest.mark.parametrize("squarings", [0, 1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_lambda_max_is_an_upper_bound(seed, squarings):
    g = generator(seed)
    F = randn(g, 3, 8, 1 + seed)
    Q = F @ F.mT * 10.0 ** (10 * seed - 20)
    exact = torch.linalg.eigvalsh(Q)[..., -1]
    bound = lambda_max(Q, squarings)
    assert (bound >= exact * (1 - 1e-12)).all()
    assert (bound <= exact * 8 ** (1 / 2 ** (squarings + 1)) * (1 + 1e-9)).all()
    assert float(lambda_max(0 * Q, squarings).max()) < 1e-300
    narrow = lambda_max(Q.float() * 10.0 ** (20 - 10 * seed), squarings)
    assert (narrow * (1 + 1e-5) >= torch.linalg.eigvalsh(Q * 10.0 ** (20 - 10 * seed))[..., -1]).all()


def test_linear_maps_are_exact():
    g = generator(1)
    F, A, w = randn(g, 2, 4, 4), randn(g, 2, 4, 3), randn(g, 2, 9, 3)
    Q = F @ F.mT
    torch.testing.assert_close(support(sandwich(Q, A), w), (F.mT @ A @ w.mT).norm(dim=-2))
    torch.testing.assert_close(coordinate_radius(Q), F.norm(dim=-1))


@pytest.mark.parametrize("d", [8, 37])
def test_symmetric_products_by_strips_are_the_plain_ones(d, monkeypatch):
    monkeypatch.setattr(domain, "MIRRORED", 8)
    g = generator(d)
    F, A, w = randn(g, 2, 3, d, d), randn(g, d, d), randn(g, 50, d)
    Q = F @ F.mT
    square = symmetric_product(Q, Q)
    assert torch.equal(square, square.mT)
    torch.testing.assert_close(square, Q @ Q)
    torch.testing.assert_close(symmetric_product(A.mT, Q @ A), A.mT @ Q @ A)
    torch.testing.assert_close(symmetric_product(Q[0, 0], Q[0, 0]), Q[0, 0] @ Q[0, 0])
    torch.testing.assert_close(support(Q, w), (w @ F).norm(dim=-1))
    torch.testing.assert_close(support(Q, F.mT), (F.mT @ F).norm(dim=-1))


def test_near_singular_covers_at_gpt2_width():
    """A Gram of rank 3 at d = 768: in its null directions rounding is all there is, and the support stays above it."""
    g = generator(2)
    d = 768
    F = randn(g, d, 3)
    A = randn(g, d, d) / math.sqrt(d)
    exact_F = A.mT @ F
    w = torch.cat([randn(g, 200, d), torch.linalg.svd(exact_F, full_matrices=True)[0][:, 3:203].mT])
    exact = (w @ exact_F).norm(dim=-1)
    for dtype in (torch.float32, torch.float64):
        f, a = F.to(dtype), A.to(dtype)
        Q = rounded_out(sandwich(f @ f.mT, a))
        computed = support(Q[None], w.to(dtype)[None])[0].double()
        assert (computed >= exact).all()
    assert (computed[:200] <= (1 + 1e-4) * exact[:200]).all()  # float32's worst case swamps them: Grams are in float64
    # Without the outward term some direction is lost, or the test would prove nothing.
    gram = A.float().mT @ (F.float() @ F.float().mT) @ A.float()
    bare = ((w.float() @ gram) * w.float()).sum(-1).clamp(min=0).sqrt().double()
    assert (bare < exact).any()


@pytest.mark.parametrize("p", [math.inf, 2.0, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_symbol_sums(seed, p):
    g = generator(seed)
    T = randn(g, 2, 7, 3)
    whole, parts = SymbolSums(p), SymbolSums(p)
    whole.add(T)
    for part in (T[:, :3], T[:, 3:4], T[:, 4:]):
        parts.add(part)
    eps = randn(g, 4000, 7)
    eps = eps.sign() if p == math.inf else eps / torch.linalg.vector_norm(eps, ord=p, dim=-1, keepdim=True)
    eps = torch.cat([eps, torch.eye(7).double(), -torch.eye(7).double()])
    reach = torch.einsum("Nm,bmk->bNk", eps, T)
    w = randn(g, 2, 50, 3)
    for sums in (whole, parts):
        assert (reach.abs().amax(1) <= sums.radius + 1e-9).all()
        assert (torch.einsum("bNk,bwk->bNw", reach, w).amax(1) <= support(sums.cover, w) * (1 + 1e-9)).all()
        assert (reach.square().sum(-1).amax(1) <= sums.square() * (1 + 1e-9)).all()
    torch.testing.assert_close(parts.radius, whole.radius)
    torch.testing.assert_close(dual_norm(T, p, -2), whole.radius)
    dual = {math.inf: T.abs().sum(1), 2.0: T.square().sum(1).sqrt(), 1.0: T.abs().amax(1)}[p]
    torch.testing.assert_close(whole.radius, dual)


def test_a_diagonal_that_rounding_left_below_zero_is_no_extent():
    Q = torch.diag(torch.tensor([4.0, -1e-30, 0.0], dtype=torch.float64))
    found = coordinate_radius(Q)
    assert found.isfinite().all()
    torch.testing.assert_close(found, torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))
