"""Sequential and fused MLP: the block symbol by symbol, the preactivation bound, and the cost of fusing."""

import pytest
import torch

from builders import mlp_block, zonotope
from chunked import smallest_chunks
from containment import assert_bounded, assert_symbolic_containment, point
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.transforms.gelu import N_PIECES, curvature_bound, gelu_slope
from zonogpt.transforms.structured.layernorm import layernorm_bounds
from zonogpt.transforms.structured.mlp import fused_mlp, preactivation_radius, sequential_mlp

BOTH = pytest.mark.parametrize("transform", [sequential_mlp, fused_mlp])


@BOTH
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("radius", [1e-4, 1e-2, 0.1, 0.5, 3.0])
def test_block_contains_every_output(transform, radius, biases):
    for seed in range(3):
        block, z = mlp_block(seed, biases=biases), zonotope(seed + 30, S=2, radius=radius)
        out, _ = transform(block, z)
        assert_symbolic_containment(block, z, out, seed)


@BOTH
@pytest.mark.parametrize(("m", "q"), [(1, 0), (0, 1)])
def test_single_generator(transform, m, q):
    """With one symbol the bounds are nearly attained: a dropped term shows."""
    for seed in range(6):
        for radius in (0.02, 0.2, 0.6):
            block, z = (
                mlp_block(seed, d=3, hidden=3, scale=1.5),
                zonotope(seed + 40, S=2, d=3, m=m, q=q, radius=radius),
            )
            out, _ = transform(block, z)
            assert_symbolic_containment(block, z, out, seed)


@BOTH
def test_constant_token(transform):
    block, z = mlp_block(1), zonotope(2, S=2, radius=0.1)
    c = z.c.clone()
    c[0] = 0.5
    z = StructuredZonotope(c, z.G, z.L, z.b)
    out, _ = transform(block, z)
    assert_symbolic_containment(block, z, out)


@pytest.mark.parametrize("radius", [1e-3, 0.05, 0.5])
def test_preactivation_radius(radius):
    block, z = mlp_block(5), zonotope(6, S=3, radius=radius)
    norm = layernorm_bounds(block.norm, z)
    change = lambda noise: (block.norm(point(z, noise)) - norm.centre) @ block.branch.w_1  # noqa: E731
    bound = preactivation_radius(block.branch, norm, z)
    assert_bounded(change, bound, z)
    assert (bound <= (norm.r_N + norm.R_N) @ block.branch.w_1.abs() + 1e-12).all()  # never looser than printed


@BOTH
def test_zero_radius_is_exact(transform):
    block, z = mlp_block(1), zonotope(1, radius=0.0)
    out, _ = transform(block, z)
    torch.testing.assert_close(out.c, block(z.c))
    assert float(out.radius.max()) < 1e-12


@BOTH
def test_error_is_second_order(transform):
    block, ratios = mlp_block(2), []
    for radius in (1e-3, 1e-4, 1e-5):
        z = zonotope(3, radius=radius)
        out, _ = transform(block, z)
        ratios.append(float((out.L[:, z.q :].abs().sum(1) + out.b).mean()) / radius**2)
    assert max(ratios) < 1.5 * min(ratios)


@BOTH
def test_generator_images_are_derivatives_in_the_limit(transform):
    block, z = mlp_block(2), zonotope(3, radius=1e-7)
    out, _ = transform(block, z)
    for j in range(z.m):
        torch.testing.assert_close(out.G[j], torch.func.jvp(block, (z.c,), (z.G[j],))[1], rtol=1e-5, atol=1e-13)


def test_sequential_is_tighter_than_fused():
    for seed in range(5):
        block, z = mlp_block(seed), zonotope(seed, radius=0.05)
        assert float(sequential_mlp(block, z)[0].radius.mean()) < float(fused_mlp(block, z)[0].radius.mean())


def test_fused_error_is_below_the_printed_one():
    """The paper's R_M, with |W_1| (r_N + R_N), which forgets the signs of W_1, and the rest as printed."""
    for seed in range(3):
        block, z = mlp_block(seed, d=16, hidden=32), zonotope(seed, d=16, m=4, radius=0.02)
        norm, of = layernorm_bounds(block.norm, z), block.branch
        change = (norm.r_N + norm.R_N) @ of.w_1.abs()
        centre = norm.centre @ of.w_1 + of.b_1
        bend = 0.5 * curvature_bound(centre - change, centre + change) * change.square() @ of.w_2.abs()
        chains = torch.stack([(of.w_1 * slope) @ of.w_2 for slope in gelu_slope(centre)])
        printed = (norm.R_N[:, None] @ chains.abs()).squeeze(1) + bend
        ours = fused_mlp(block, z)[0].b
        assert (ours <= printed + 1e-12).all()
        assert float(ours.mean()) < 0.7 * float(printed.mean())


@BOTH
def test_chunked_equals_plain(transform):
    block, z = mlp_block(4), zonotope(5, radius=0.1)
    plain, _ = transform(block, z)
    with smallest_chunks() as rounds:
        small, _ = transform(block, z)
    assert rounds == [z.m, z.q, z.m, z.q, N_PIECES, z.m, z.q]  # LayerNorm, preactivations, GELU, images
    for field in "cGLb":
        torch.testing.assert_close(getattr(small, field), getattr(plain, field))
