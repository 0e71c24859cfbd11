"""The amplifier: the same code, with arrays held in a type so short that rounding is larger than the set.

Weights and sets are numbers of that type, so the network is exactly the same in float64, where points are sampled and
searched. With rounding bounded the sets contain them; without, they visibly do not.
"""

import dataclasses
import math

import pytest
import torch

import zonogpt
from builders import (
    attention_block,
    changed,
    generator,
    image_config,
    image_model,
    layer_norm,
    mlp_block,
    randn,
    zonotope,
)
from containment import directions
from containment import point as structured_point
from containment import random_noise as structured_noise
from ellipsoidal_containment import BATCH, ellipsoidal, point, random_noise
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.rounding import unaccounted
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.methods import METHODS
from zonogpt.methods.method import Numerics
from zonogpt.support.tensors import map_tensors
from zonogpt.transforms.ellipsoidal.attention import attend
from zonogpt.transforms.ellipsoidal.layernorm import layernorm_step
from zonogpt.transforms.ellipsoidal.mlp import mlp_step
from zonogpt.transforms.ellipsoidal.sources import sources
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.queries import Queries
from zonogpt.transforms.structured.attention import fused_attention
from zonogpt.transforms.structured.decomposed_attention import decomposed_attention
from zonogpt.transforms.structured.mlp import fused_mlp, sequential_mlp

LIMIT = 1 << 30
# The types of centres and of tangents: everything in a short type, or the tangents alone.
HELD = {
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16),
    "float32": (torch.float32, torch.float32),
    "bfloat16 tangents": (torch.float64, torch.bfloat16),
    "float32 tangents": (torch.float64, torch.float32),
}
RADIUS = {"bfloat16": 1e-3, "float16": 1e-3, "float32": 1e-7, "bfloat16 tangents": 0.05, "float32 tangents": 0.05}
# The types in which sets fail without their rounding. In float16 the floors of method E's weights, as large as the root
# of the smallest number, hide the rounding; the tangents' rounding is small beside the second-order errors.
VISIBLE = ("bfloat16", "float32")


def short(value, dtype):
    """`value` with its tensors rounded to that type."""
    return map_tensors(value, lambda t: t.to(dtype))


def wide(value):
    return map_tensors(value, lambda t: t.double())


def held(z, name):
    centre, tangents = HELD[name]
    z = short(short(z, tangents), centre)  # numbers of the shorter type, whatever type holds them
    names = ("G", "L") if hasattr(z, "L") else ("G",)
    return dataclasses.replace(z, **{part: getattr(z, part).to(tangents) for part in names})


def largest_excess(f, z, out, seed):
    """How far f(x) leaves the ellipsoidal zonotope `out`, at the same noise, in units of 1."""
    z, out = wide(z), wide(out)
    g = generator(seed)
    n, d = out.c.shape[1:]
    token = torch.randint(n, (BATCH,), generator=g)
    w = torch.where(torch.arange(BATCH)[:, None] % 2 == 0, randn(g, BATCH, d), torch.eye(d).double()[token % d])
    limit = torch.einsum("Nd,Nde,Ne->N", w, out.Q[0][token], w).sqrt()
    worst = -math.inf
    for trial in range(6):
        noise = random_noise(z, seed + trial)
        rest = f(point(z, noise)) - out.c[0] - torch.einsum("Nm,nmd->Nnd", noise[0], out.G[0])
        worst = max(worst, float(((rest[torch.arange(BATCH), token] * w).sum(-1).abs() - limit).max()))
    return worst


def fallen_below(f, z, out, step, w, seed):
    """How far w . f(x) falls below the adjoint's lower bound."""
    before, losses = step.pull(w, LIMIT)
    loss = sum(part.double() for part in losses.values())
    z, before, w, c = wide(z), before.double(), w.double(), out.c[0].double()
    worst = -math.inf
    for trial in range(6):
        x = point(z, random_noise(z, seed + trial))
        value = ((f(x) - c)[:, None] * w[0]).sum((2, 3))
        linear = ((x - z.c[0])[:, None] * before[0]).sum((2, 3))
        worst = max(worst, float((linear - loss[0] - value).max()))
    return worst


def step_of(block, z):
    if block.kind == "mlp":
        return mlp_step(block, z, LIMIT)
    return attend(sources(block, z, Prefix.none(z.c, block.branch), LIMIT), Queries.every(z.n_tokens), LIMIT)


def ellipsoidal_case(kind, name, seed):
    d = 4 if "bfloat16" in name else 8
    block = attention_block(seed, d=d, n_heads=2) if kind == "attention" else mlp_block(seed, d=d, hidden=2 * d)
    centre, tangents = HELD[name]
    block = short(short(block, tangents), centre)
    z = ellipsoidal(seed + 5, n=3, d=d, m=3, radius=RADIUS[name], error=1e-3 * RADIUS[name])
    z = held(z, name)
    with torch.no_grad():
        out, step = step_of(block, z)
    return wide(block), z, out, step


@pytest.mark.parametrize("kind", ["attention", "mlp"])
@pytest.mark.parametrize("name", HELD)
def test_sets_of_method_e_hold_with_their_rounding_and_fail_without(name, kind):
    seeds = range(8)
    for seed in seeds:
        f, z, out, _ = ellipsoidal_case(kind, name, seed)
        assert largest_excess(f, z, out, seed) <= 0
    with unaccounted():
        worst = max(
            largest_excess(f, z, out, seed) for seed in seeds for f, z, out, _ in [ellipsoidal_case(kind, name, seed)]
        )
    if name in VISIBLE:
        assert worst > 0.5 * RADIUS[name]


@pytest.mark.parametrize("kind", ["attention", "mlp"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_adjoints_of_method_e_hold_with_their_rounding_and_fail_without(name, kind):
    def fall(seed):
        f, z, out, step = ellipsoidal_case(kind, name, seed)
        w = short(randn(generator(seed), 1, 8, 3, z.c.shape[-1]), z.c.dtype)
        w[:, 4:] = -w[:, :4]
        return fallen_below(f, z, out, step, w, seed)

    assert max(fall(seed) for seed in range(8)) <= 0
    with unaccounted():
        worst = max(fall(seed) for seed in range(8))
    if name in VISIBLE:
        assert worst > 0.5 * RADIUS[name]


@pytest.mark.parametrize("kind", ["attention", "mlp"])
@pytest.mark.parametrize("name", ["bfloat16 tangents", "float32 tangents"])
def test_tangents_are_off_by_less_than_is_said(name, kind):
    """Linear images in the short type against those in float64, at the worst signs of all symbols."""
    for seed in range(8):
        _, z, out, _ = ellipsoidal_case(kind, name, seed)
        exact_z = dataclasses.replace(z, G=z.G.double())
        block, *_ = ellipsoidal_case(kind, name, seed)
        with torch.no_grad():
            step = step_of(block, exact_z)
        lost = (out.G.double() - step[0].G).abs().sum(2)
        added = out.Q.diagonal(dim1=-2, dim2=-1).sqrt()
        assert float(lost.max()) > 1e-3 * torch.finfo(z.G.dtype).eps * RADIUS[name]
        assert (lost <= added).all()


STRUCTURED = {
    "fused attention": fused_attention,
    "decomposed attention": decomposed_attention,
    "sequential mlp": sequential_mlp,
    "fused mlp": fused_mlp,
}


def structured_excess(kind, name, seed):
    d = 4 if "bfloat16" in name else 8
    block = attention_block(seed, d=d, n_heads=2) if "attention" in kind else mlp_block(seed, d=d, hidden=2 * d)
    block = short(short(block, HELD[name][1]), HELD[name][0])
    z = held(zonotope(seed, S=3, d=d, m=2, q=2, radius=RADIUS[name]), name)
    with torch.no_grad():
        out, _ = STRUCTURED[kind](block, z)
    f, z, out = wide(block), wide(z), wide(out)
    w = directions(*z.c.shape, seed)
    support = torch.einsum("bsd,sqd->bsq", w, out.L[:, z.q :]).abs().sum((1, 2)) + (w.abs() * out.b).sum((1, 2))
    kept = dataclasses.replace(out, L=out.L[:, : z.q])
    worst = -math.inf
    for trial in range(6):
        noise = structured_noise(z, seed + trial)
        rest = f(structured_point(z, noise)) - structured_point(kept, noise)
        worst = max(worst, float(((rest * w).sum((1, 2)) - support).max()))
    return worst


@pytest.mark.parametrize("kind", STRUCTURED)
@pytest.mark.parametrize("name", HELD)
def test_sets_of_the_papers_methods_hold_with_their_rounding_and_fail_without(name, kind):
    assert max(structured_excess(kind, name, seed) for seed in range(8)) <= 0
    with unaccounted():
        worst = max(structured_excess(kind, name, seed) for seed in range(8))
    if name in VISIBLE:
        assert worst > 0.5 * RADIUS[name]


@pytest.mark.parametrize("method", ["E", "A", "F", "M", "D", "ibp"])
def test_margins_of_a_whole_model_held_in_float32(method):
    """From the embedding to the claim: a ball a hundredth of the size of what float32 rounds."""
    net = zonogpt.load(image_model(3, image_config(n_embd=8, n_head=2, n_layer=1)))
    exact, g = wide(net), generator(1)
    model = net if method == "E" else exact  # the others hold centres in float64, or choose the types themselves

    def excess(spec):
        x = torch.rand(64, *net.embedding.image_size, generator=generator(2)).double()
        points = spec.input.lower + x * (spec.input.upper - spec.input.lower)
        truth = spec.claim.margins(exact.forward(spec.input.embed(points))).amin(0)
        with torch.no_grad():
            margins = METHODS[method].bound_many(model, [spec], Numerics(torch.float32), None)[0].margins.double()
        assert (margins > -math.inf).all()
        return float((margins - truth).max())

    images = torch.rand(10, *net.embedding.image_size, generator=g).float()
    specs = [zonogpt.image_ball(net, image, 1e-9) for image in images]
    assert max(map(excess, specs)) <= 0


@pytest.mark.parametrize("transform", [fused_attention, decomposed_attention])
@pytest.mark.parametrize("scale", [1e-6, 1e-8, 1e-9])
def test_tangents_that_underflow_are_not_lost(transform, scale):
    """W_v of size 2^-126, W_o of size 2^122: the values' tangents underflow in float32, and W_o brings them back."""
    d, n, m = 8, 3, 3
    block = attention_block(1, d=d, n_heads=2)
    of = block.branch
    block = changed(block, w_v=of.w_v * 2.0**-126, b_v=of.b_v * 2.0**-126, w_o=of.w_o * 2.0**122)
    g = generator(3)
    c, G = randn(g, n, d), (scale * randn(g, m, n, d)).float()
    z = StructuredZonotope(c, G, torch.zeros(n, 0, d), torch.zeros(n, d).double())
    with torch.no_grad():
        out, _ = transform(block, z)
    reach = out.L.double().abs().sum(1) + out.b
    for signs in torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * m):
        moved = torch.einsum("m,mnd->nd", signs, G.double())
        rest = block(c + moved) - out.c - torch.einsum("m,mnd->nd", signs, out.G.double())
        assert (rest.abs() <= reach).all()


@pytest.mark.parametrize("size", [1.0, 1e10, 1e21, 1e22])
def test_tangents_of_layernorm_at_large_tokens(size):
    """J in float32 has factors of size 1 / (d x^2), unless they are taken apart; the error's Gram covers the rest."""
    g = generator(4)
    d, n, m = 8, 2, 3
    norm = layer_norm(g, d)
    c = size * randn(g, 1, n, d)
    G = (1e-8 * size * randn(g, 1, n, m, d)).float()
    nothing = torch.zeros(1, n, d, d).double()
    short_step = layernorm_step(norm, EllipsoidalZonotope(c, G, nothing, math.inf), LIMIT)
    exact_step = layernorm_step(norm, EllipsoidalZonotope(c, G.double(), nothing, math.inf), LIMIT)
    lost = (short_step.jacobian(G).double() - exact_step.jacobian(G.double())).abs().sum(2)
    assert (lost <= short_step.error_gram.diagonal(dim1=-2, dim2=-1).sqrt()).all()
    assert float(short_step.jacobian(G).abs().max()) > 1e-10
