"""Fused and decomposed attention: every intermediate contract, then the block, symbol by symbol."""

import dataclasses

import pytest
import torch

from builders import attention_block, changed, generator, randn, zonotope
from chunked import smallest_chunks
from containment import Noise, assert_bounded, assert_symbolic_containment, point
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.model.nodes import dense
from zonogpt.transforms.structured.attention import (
    attention_bounds,
    fused_attention,
    recentred_generators,
    rounding_of,
    weighted_median,
)
from zonogpt.transforms.structured.attention_point import attention_point
from zonogpt.transforms.structured.decomposed_attention import _abs_sum, decomposed_attention, operator_radii
from zonogpt.transforms.structured.layernorm import layernorm_bounds

RADII = [1e-4, 1e-2, 0.1, 0.5, 3.0]
# Both masks, widths of all heads together that differ from the tokens', and blocks without biases.
KINDS = {
    "causal": {}, "bidirectional": {"causal": False}, "narrow": {"inner": 2}, "wide": {"inner": 10, "causal": False},
    "without biases": {"biases": False},
}  # fmt: skip


def quantities(block, n):
    """Q, K, V, U, P as exact functions of LayerNorm's output n (..., S, d)."""
    of = block.branch
    Q, K, V = (of.split_heads(dense(n, weight, bias)) for weight, bias in of.projections)
    U = (Q @ K.transpose(-1, -2)) * of.scale
    visible = of.visible(n.shape[-2])
    P = U.masked_fill(~visible, -torch.inf).softmax(-1)
    return {"Q": Q, "K": K, "V": V, "U": U.masked_fill(~visible, 0.0), "P": P}


def linear_part(block, bounds, z, noise: Noise, name: str):
    """J_X (x - c): LayerNorm's kept slope, then the exact derivative of n -> X(n) at LayerNorm's centre."""
    v = point(z, noise) - z.c
    n_dot = bounds.norm.jacobian(v.transpose(0, 1)).transpose(0, 1)
    at = bounds.norm.centre.expand_as(n_dot).clone()
    return torch.func.jvp(lambda n: quantities(block, n)[name], (at,), (n_dot,))[1]


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Q", "K", "V", "U", "P"])
def test_intermediate_bounds(name, kind, radius):
    for seed in range(2):
        block, z = attention_block(seed, **KINDS[kind]), zonotope(seed + 10, radius=radius)
        bounds = attention_bounds(block, z)
        keep = bounds.softmax.sloped[..., None] if name == "P" else 1.0
        centre = quantities(block, bounds.norm.centre)[name]

        def linear(noise, block=block, bounds=bounds, z=z, keep=keep):
            return linear_part(block, bounds, z, noise, name) * keep

        def error(noise, block=block, z=z, centre=centre, linear=linear):
            return quantities(block, block.norm(point(z, noise)))[name] - centre - linear(noise)

        assert_bounded(linear, bounds.f[name], z, seed)
        assert_bounded(error, bounds.R[name], z, seed)


@pytest.mark.parametrize("radius", RADII)
def test_softmax_remainder_and_score_product(radius):
    """The parts of R_U and R_P that are not images of LayerNorm's error: the branch seen as a function of n."""
    block, z = attention_block(3), zonotope(13, radius=radius)
    bounds = attention_bounds(block, z)
    n0 = bounds.norm.centre

    def parts(noise, name):
        n = block.norm(point(z, noise))
        value, slope = torch.func.jvp(lambda x: quantities(block, x)[name], (n0.expand_as(n).clone(),), (n - n0,))
        return quantities(block, n)[name] - value - slope, slope

    assert_bounded(lambda noise: parts(noise, "U")[0], bounds.score_product, z)
    keep = bounds.softmax.sloped[..., None]

    def softmax_error(noise):
        error, slope = parts(noise, "P")
        return error + slope * ~keep

    assert_bounded(softmax_error, bounds.softmax.remainder, z)
    assert_bounded(lambda noise: softmax_error(noise).sum(-1), torch.zeros(2, 4).double(), z)
    change = lambda noise: quantities(block, block.norm(point(z, noise)))["P"] - bounds.point.P  # noqa: E731
    assert_bounded(change, bounds.softmax.total, z)

    def values(noise):
        return quantities(block, block.norm(point(z, noise)))["V"] - bounds.point.V

    assert_bounded(lambda noise: values(noise) @ bounds.point.w_o, bounds.value_change, z)
    of = block.branch
    product = lambda noise: of.join_heads(change(noise) @ values(noise)) @ of.w_o  # noqa: E731
    assert_bounded(product, bounds.value_product, z)


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("radius", RADII)
def test_block_contains_every_output(transform, kind, radius):
    for seed in range(3):
        block, z = attention_block(seed, **KINDS[kind]), zonotope(seed + 20, radius=radius)
        out, _ = transform(block, z)
        assert_symbolic_containment(block, z, out, seed)


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
@pytest.mark.parametrize(("m", "q"), [(0, 4), (4, 0), (0, 0)])
def test_block_with_one_kind_of_generator(transform, m, q):
    block, z = attention_block(5), zonotope(6, m=m, q=q, radius=0.05)
    out, _ = transform(block, z)
    assert_symbolic_containment(block, z, out)


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
def test_one_token_alone_moves(transform):
    """Cross-token parts only: everything at the other tokens comes from one local generator."""
    block, z = attention_block(7, scale=1.0), zonotope(8, m=0, q=2, radius=0.2)
    L = z.L.clone()
    L[[0, 2, 3]] = 0.0
    z = StructuredZonotope(z.c, z.G, L, z.b)
    out, _ = transform(block, z)
    assert_symbolic_containment(block, z, out)


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
def test_peaked_softmax_and_constant_token(transform):
    block, z = attention_block(9, scale=4.0), zonotope(9, radius=0.3)
    c = z.c.clone()
    c[1] = 0.7
    z = StructuredZonotope(c, z.G, z.L, z.b)
    out, _ = transform(block, z)
    assert bool(out.b.isfinite().all())
    assert_symbolic_containment(block, z, out)


def with_weights(block, **factors):
    """The block with weights and biases scaled, of queries (q), keys (k) and values (v)."""
    names = {f"{part}_{name}": factor for name, factor in factors.items() for part in "wb"}
    return changed(block, **{name: factor * getattr(block.branch, name) for name, factor in names.items()})


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
@pytest.mark.parametrize("radius", [0.05, 0.3, 0.8])
def test_values_alone(transform, radius):
    """Without queries and keys softmax is constant, and other tokens get nothing but images of values."""
    for seed in range(4):
        block, z = (
            with_weights(attention_block(seed, d=3, n_heads=1), q=0.0, k=0.0),
            zonotope(seed, d=3, m=1, q=1, radius=radius),
        )
        out, _ = transform(block, z)
        assert_symbolic_containment(block, z, out, seed)


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
@pytest.mark.parametrize("radius", [0.02, 0.1])
def test_product_alone(transform, radius):
    """Equal tokens with values zero at the centre: softmax's error is multiplied by zero and dP dV is what is left."""
    for seed in range(4):
        block, z = (
            with_weights(attention_block(seed, d=3, n_heads=1), q=6.0, k=1.0),
            zonotope(seed, d=3, m=2, q=1, radius=radius),
        )
        z = StructuredZonotope(z.c[:1].expand(4, 3).clone(), z.G, z.L, z.b)
        block = changed(block, b_v=-(block.norm(z.c[0]) @ block.branch.w_v))
        out, _ = transform(block, z)
        assert_symbolic_containment(block, z, out, seed)


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
@pytest.mark.parametrize("kind", KINDS)
def test_zero_radius_is_exact(transform, kind):
    block, z = attention_block(1, **KINDS[kind]), zonotope(1, radius=0.0)
    out, _ = transform(block, z)
    torch.testing.assert_close(out.c, block(z.c))
    assert float(out.radius.max()) < 1e-11


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
def test_error_is_second_order_for_shared_generators(transform):
    block = attention_block(2)
    ratios = []
    for radius in (1e-3, 1e-4, 1e-5):
        z = zonotope(3, q=0, radius=radius)
        out, _ = transform(block, z)
        ratios.append(float((out.L.abs().sum(1) + out.b).mean()) / radius**2)
    assert max(ratios) < 1.5 * min(ratios)


@pytest.mark.parametrize("inner", [6, 2, 10])
def test_generator_images_are_derivatives(inner):
    """At a small radius: the kept generators are exactly J_A G_j, and J_A emb_s(L_sk) at token s."""
    block, z = attention_block(2, inner=inner), zonotope(3, radius=1e-4)
    out, _ = fused_attention(block, z)
    for j in range(z.m):
        torch.testing.assert_close(out.G[j], torch.func.jvp(block, (z.c,), (z.G[j],))[1])
    crossed = torch.zeros_like(z.c)
    for s in range(z.n_tokens):
        for k in range(z.q):
            v = torch.zeros_like(z.c)
            v[s] = z.L[s, k]
            image = torch.func.jvp(block, (z.c,), (v,))[1]
            torch.testing.assert_close(out.L[s, k], image[s])
            image[s] = 0
            crossed += image.abs()
    assert (out.b >= crossed - 1e-15).all()
    assert (out.b <= crossed + 0.05 * crossed.mean()).all()  # the rest is second order


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
def test_chunked_equals_plain(transform):
    block, z = attention_block(4), zonotope(5, radius=0.1)
    plain, _ = transform(block, z)
    with smallest_chunks() as rounds:
        small, _ = transform(block, z)
    assert rounds.count(z.m) >= 2  # the loop over the shared generators
    assert rounds.count(z.q) >= 2  # the loop over the local ones
    for field in "cGb":
        torch.testing.assert_close(getattr(small, field), getattr(plain, field))
    torch.testing.assert_close(small.L[:, : z.q + 6], plain.L[:, : z.q + 6])
    # A weighted median may have an interval of minimisers, all with the same radius.
    torch.testing.assert_close(small.radius, plain.radius)


def test_chunked_radii_equal_plain():
    """The radii of every operator in variants D and M: in the block's output another bound may hide one of them."""
    block, z = attention_block(4), zonotope(5, radius=0.1)
    norm = layernorm_bounds(block.norm, z)
    p = attention_point(block.branch, norm.centre)
    off = rounding_of(p, norm, z)
    plain = operator_radii(p, p, norm, z, off)
    with smallest_chunks():
        small = operator_radii(p, p, norm, z, off)
    for field in dataclasses.fields(plain):
        if field.name != "softmax":
            torch.testing.assert_close(getattr(small, field.name), getattr(plain, field.name), msg=field.name)


def test_never_looser_than_printed():
    """Our f_P, R_P and R_A against the paper's formulas, which take absolute values of every weight."""
    for seed in range(4):
        block, z = attention_block(seed), zonotope(seed, radius=0.02)
        bounds = attention_bounds(block, z)
        out, _ = fused_attention(block, z)
        p, norm, of = bounds.point, bounds.norm, block.branch
        f_Q, f_K, f_V = (of.split_heads(norm.r_N @ w.abs()) for w, _ in of.projections)
        R_Q, R_K, R_V = (of.split_heads(norm.R_N @ w.abs()) for w, _ in of.projections)
        T = lambda x: x.transpose(-1, -2)  # noqa: E731
        f_U = (f_Q @ T(p.K.abs()) + p.Q.abs() @ T(f_K)) * of.scale
        R_UN = (R_Q @ T(p.K.abs()) + p.Q.abs() @ T(R_K)) * of.scale
        R_Ux = (f_Q + R_Q) @ T(f_K + R_K) * of.scale
        f_P = p.P * (f_U + (p.P * f_U).sum(-1, keepdim=True))
        R_U = R_UN + R_Ux
        M = (f_U + R_U).masked_fill(~p.visible, 0).amax(-1, keepdim=True)
        R_P = p.P * (R_U + (p.P * R_U).sum(-1, keepdim=True)) + 2 * p.P * torch.exp(2 * M) * M**2
        R_P = torch.minimum(R_P, torch.maximum(p.P, 1 - p.P) + f_P).masked_fill(~p.visible, 0)
        assert (bounds.f["P"] <= f_P + 1e-15).all()
        assert (bounds.R["P"] <= R_P + 1e-15).all()
        R_A = of.join_heads(R_P @ p.V.abs() + p.P @ R_V + (f_P + R_P) @ (f_V + R_V)) @ of.w_o.abs()
        ours = out.L[:, z.q :].abs().sum(1) + out.b
        assert float(ours.mean()) <= float(R_A.mean()) + float(crossed_part(block, z).mean())


def crossed_part(block, z):
    """The paper's cross-token interval, by brute force."""
    crossed = torch.zeros_like(z.c)
    for s in range(z.n_tokens):
        for k in range(z.q):
            v = torch.zeros_like(z.c)
            v[s] = z.L[s, k]
            image = torch.func.jvp(block, (z.c,), (v,))[1].abs()
            image[s] = 0
            crossed += image
    return crossed


def test_recentred_generators_contain_zero_sum_errors():
    g = generator(1)
    H, S, d = 2, 5, 4
    R, VW = torch.rand(H, S, S, generator=g, dtype=torch.float64).tril(), randn(g, H, S, d)
    generators = recentred_generators(R, VW)
    e = (2 * torch.rand(4000, H, S, S, generator=g, dtype=torch.float64) - 1) * R
    e = e - e.sum(-1, keepdim=True) * R / R.sum(-1, keepdim=True)  # rows sum to zero
    e = e * (R / e.abs().clamp(min=1e-30)).clamp(max=1).where(R > 0, 1).amin(-1, keepdim=True)  # and stay inside R
    assert float(e.sum(-1).abs().max()) < 1e-12
    value = torch.einsum("bhij,hjd->bid", e, VW)
    for w in [*torch.eye(d, dtype=torch.float64), *randn(g, 6, d)]:
        assert ((value @ w).abs() <= (generators @ w).abs().sum(1) + 1e-12).all()
    # Recentring pays, and no other centre would pay more: one of the values is always best.
    assert float(generators.abs().sum()) < float(torch.einsum("hij,hjd->", R, VW.abs()))
    by_centre = torch.stack([torch.einsum("hij,hjd->hid", R, (VW - VW[:, k, None]).abs()) for k in range(S)])
    torch.testing.assert_close(generators.abs().sum(1), by_centre.amin(0).sum(0))


def test_weighted_median_is_optimal():
    g = generator(2)
    values, weights = randn(g, 3, 7, 4), torch.rand(3, 7, 4, generator=g, dtype=torch.float64)
    cost = lambda a: (weights * (values - a[:, None]).abs()).sum(1)  # noqa: E731
    best = cost(weighted_median(values, weights))
    for k in range(7):
        assert (best <= cost(values[:, k]) + 1e-12).all()


def with_constant(block, part: str):
    """The block with queries or keys that do not move: their weights are zero, their bias stays."""
    return block if part == "none" else changed(block, **{f"w_{part}": 0 * getattr(block.branch, f"w_{part}")})


@pytest.mark.parametrize("radius", [0.01, 0.5])
@pytest.mark.parametrize(
    ("constant", "causal"), [("none", True), ("none", False), ("q", True), ("k", True), ("zero", False)]
)
def test_decomposed_operators(radius, constant, causal):
    """At every operator: what the shared and own-token symbols leave is within the interval, and kept within kept."""
    block, z = attention_block(11, causal=causal), zonotope(12, radius=radius)
    if constant == "zero":  # equal tokens, queries and keys zero at the centre: only their product moves scores
        z = StructuredZonotope(z.c[:1].expand_as(z.c).clone(), z.G, z.L, z.b)
        n = block.norm(z.c[0])
        block = changed(block, **{f"b_{part}": -(n @ getattr(block.branch, f"w_{part}")) for part in "qkv"})
    else:
        block = with_constant(block, constant)
    norm = layernorm_bounds(block.norm, z)
    p = attention_point(block.branch, norm.centre)
    off = rounding_of(p, norm, z)
    r = operator_radii(p, p, norm, z, off)
    kept = {"Q": r.kept_Q, "K": r.kept_K, "V": r.kept_V, "U": r.kept_U, "P": r.kept_P * r.softmax.sloped[..., None]}
    interval = {"Q": r.b_Q, "K": r.b_K, "V": r.b_V, "U": r.b_U, "P": r.b_P}

    def kept_linear(noise, name):
        """Row i (the query's token) from the shared symbols and token i's own local ones only."""
        rows = []
        for i in range(z.n_tokens):
            own = torch.zeros_like(noise[1])
            own[:, i] = noise[1][:, i]
            n_dot = norm.jacobian((point(z, (noise[0], own)) - z.c).transpose(0, 1)).transpose(0, 1)
            at = norm.centre.expand_as(n_dot).clone()
            rows.append(torch.func.jvp(lambda n: quantities(block, n)[name], (at,), (n_dot,))[1][:, :, i])
        linear = torch.stack(rows, dim=2)
        return linear * r.softmax.sloped[..., None] if name == "P" else linear

    for name in "QKVUP":
        centre = quantities(block, norm.centre)[name]

        def left(noise, name=name, centre=centre):
            change = quantities(block, block.norm(point(z, noise)))[name] - centre
            return change - kept_linear(noise, name)

        assert_bounded(lambda noise, name=name: kept_linear(noise, name), kept[name], z)
        assert_bounded(left, interval[name], z)
    assert_bounded(lambda noise: quantities(block, block.norm(point(z, noise)))["P"] - p.P, r.softmax.total, z)


def test_sums_of_tangents_are_rounded_up_in_their_own_type():
    tangents = torch.randn(50, 4000, generator=generator(1))
    found = _abs_sum(tangents, 1)
    assert found.dtype == torch.float32
    assert (found.double() >= tangents.double().abs().sum(1)).all()
