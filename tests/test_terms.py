"""Every term of a rounding bound is relative to some size: that size is made large, and the bound must grow with it.

Sampling rarely shows that such a term is missing, because the bounds beside it have units to spare.
"""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from builders import attention_block, changed, generator, layer_norm, mlp_block, randn, zonotope
from ellipsoidal_containment import ellipsoidal
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.finite import NonFiniteBoundError
from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import gamma, unit
from zonogpt.model.activations import GELU_TANH
from zonogpt.transforms import activations
from zonogpt.transforms.attention_rounding import (
    NormSizes,
    Skip,
    attention_rounding,
    head_rounding,
    output_rounding,
)
from zonogpt.transforms.ellipsoidal.attention import value_products
from zonogpt.transforms.ellipsoidal.layernorm import layernorm_step, scalar_remainders
from zonogpt.transforms.ellipsoidal.layernorm_rounding import ErrorScalars, enclosure_rounding
from zonogpt.transforms.ellipsoidal.layernorm_rounding import output_rounding as norm_output_rounding
from zonogpt.transforms.ellipsoidal.mlp_rounding import hidden_rounding as hidden_rounding_of_e
from zonogpt.transforms.ellipsoidal.norm import norm_step
from zonogpt.transforms.execution import mlp_error
from zonogpt.transforms.norm_point import norm_point, units
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.softmax import softmax_range
from zonogpt.transforms.structured.attention import recentring_rounding
from zonogpt.transforms.structured.attention_point import attention_point
from zonogpt.transforms.structured.layernorm import layernorm_bounds, layernorm_range
from zonogpt.transforms.structured.mlp import fused_mlp
from zonogpt.transforms.structured.mlp_rounding import hidden_rounding

WIDE = torch.float64


def with_units(monkeypatch, **units):
    """GELU's bounds, as if it were computed with a larger error."""
    row = dataclasses.replace(activations.ACTIVATIONS[GELU_TANH], **units)
    monkeypatch.setitem(activations.ACTIVATIONS, GELU_TANH, row)


def test_an_activation_that_errs_more_is_allowed_more(monkeypatch):
    block, g = mlp_block(1), generator(2)
    n, hidden = randn(g, 3, 6).abs(), randn(g, 3, 12).abs()
    with_units(monkeypatch, executed_units=1 << 20)
    error = mlp_error(block.branch, hidden, n, torch.zeros_like(n), n)
    assert (error >= (1 << 20) * unit(torch.float32) * hidden @ block.branch.w_2.abs()).all()


def test_a_slope_that_is_off_by_more_bends_more(monkeypatch):
    block, z = mlp_block(1), zonotope(2, S=2, radius=1e-6)
    plain, _ = fused_mlp(block, z)
    with_units(monkeypatch, slope_units=1 << 40)
    wider, _ = fused_mlp(block, z)
    assert (wider.b > 1e2 * plain.b).all()


@pytest.mark.parametrize("method", ["structured", "ellipsoidal"])
def test_a_large_bias_is_what_the_preactivation_rounds(method):
    block = mlp_block(1)
    block = changed(block, b_1=1e9 * block.branch.b_1)
    if method == "structured":
        z = zonotope(2, S=2)
        rounding = hidden_rounding(block.branch, layernorm_bounds(block.norm, z), z)
    else:
        z = ellipsoidal(2, n=2, d=6)
        rounding = hidden_rounding_of_e(block.branch, norm_step(block.norm, z, 1 << 26), z)
    assert (rounding.off >= gamma(6, WIDE) * block.branch.b_1.abs()).all()


def test_what_layernorm_loses_is_lost_in_queries_keys_and_values():
    block, z = attention_block(1), zonotope(2, S=3)
    norm = layernorm_bounds(block.norm, z)
    point = attention_point(block.branch, norm.centre)
    lost = torch.full_like(norm.centre, 0.25)
    prefix = Prefix.none(norm.centre, block.branch)
    found = attention_rounding(point, prefix, NormSizes(norm.centre, norm.reach, lost), WIDE, z.m + z.q)
    for off, weight in ((found.Q, block.branch.w_q), (found.K, block.branch.w_k), (found.V, block.branch.w_v)):
        assert (off >= block.branch.split_heads(lost @ weight.abs())).all()


def test_the_skip_rounds_in_the_type_of_the_tangents():
    """A block that only passes on its input, with tangents held in bfloat16."""
    block, z = attention_block(1), zonotope(2, S=3)
    point = attention_point(block.branch, layernorm_bounds(block.norm, z).centre)
    nothing = torch.zeros_like(point.O)
    found = output_rounding(point, nothing, nothing, nothing, Skip(0 * z.c, z.radius), torch.bfloat16)
    assert (found >= unit(torch.bfloat16) * z.radius).all()


def test_a_bias_larger_than_all_else_rounds():
    g = generator(1)
    x, weight, bias = 1e-6 * randn(g, 4, 3).float(), randn(g, 3, 50).float(), 1e6 * randn(g, 50).float()
    box = Interval(x, x).dense(weight, bias)
    exact = x.double() @ weight.double() + bias.double()
    assert (box.lower.double() <= exact).all()
    assert (exact <= box.upper.double()).all()
    assert (box.upper > box.lower).all()


def test_rows_of_softmax_in_float32_contain_those_of_float64():
    U = 8 * torch.randn(200, 40, generator=generator(1))
    visible = torch.ones(40, dtype=torch.bool)
    box = softmax_range(Interval(U, U), visible)
    exact = U.double().softmax(-1)
    assert (box.lower.double() <= exact).all()
    assert (exact <= box.upper.double()).all()


def test_the_range_of_layernorm_rounds_relative_to_its_ends():
    """In float32, of numbers of size 30: one feature of two thousand stands out."""
    z = 1e3 + torch.rand(1, 2000, generator=generator(1))
    a = torch.tensor([1e3])
    low, high = layernorm_range(z, z, a, a, 1e-5)
    exact = z.double() / a.double().sqrt()
    assert (low.double() <= exact).all()
    assert (exact <= high.double()).all()


def test_input_of_gelu_that_is_not_finite_is_named():
    block = mlp_block(1)
    block = changed(block, b_1=block.branch.b_1.clone().fill_(torch.inf))
    with pytest.raises(NonFiniteBoundError) as error:
        fused_mlp(block, zonotope(2, S=2))
    assert error.value.step == "GELU input"


def test_products_of_values_that_move_along_one_line():
    """Across the line their Gram is only the rounding of its sums, and must still dominate the exact one."""
    H, S, e = 2, 9, 4
    for seed in range(8):
        g = generator(seed)
        total, line = torch.rand(1, H, S, S, generator=g), torch.randn(1, H, 1, e, generator=g)
        moved = line * torch.rand(1, H, S, 1, generator=g)
        grams, P = moved[..., None] * moved[..., None, :], torch.full((1, H, S, S), 1 / S)
        point = SimpleNamespace(first=0, P=P, hidden=torch.zeros(1, H, S, S, dtype=torch.bool))
        step, weights = SimpleNamespace(total=total, residual=total), []
        found = value_products(point, step, torch.zeros(1, H, S, S, S), grams, weights.append).double()
        t, total, grams = weights[0].double(), total.double(), grams.double()
        exact = torch.einsum("bhin,bhnef->bhief", t, grams)
        share = (total.square() / t).sum(-1)[..., None, None]
        assert torch.linalg.eigvalsh(found - 0.99 * share * exact).min() >= 0


def test_the_inverse_root_is_off_by_its_own_units():
    """Where nothing moves and z0 = 0, in bfloat16, only that is left: relative to rho_0 (1 + alpha_1 / alpha_0)."""
    d, a0, short = 4, torch.tensor([0.3], dtype=torch.bfloat16), torch.bfloat16
    nothing = torch.zeros_like(a0)
    own = gamma(units(d), short) * float(a0) ** -0.5
    for bound in scalar_remainders(nothing, a0, float(a0), d, nothing, nothing):
        assert float(bound) >= own
    much = 1e3 * torch.ones_like(a0)  # of |z0 . D|
    low, high, change = scalar_remainders(nothing, a0, float(a0), d, much, nothing)
    least = own * (1 + 2 * float(much) / d / float(a0))
    assert float(low) >= least
    assert float(high) >= least
    assert float(change) >= least


@pytest.mark.parametrize("far", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("seed", range(8))
def test_the_jacobian_of_a_deviation_misses_what_the_centre_misses(seed, far):
    """c nearly constant and in bfloat16: z0 is mostly rounding, with a mean, and Delta as long as one likes."""
    g, d = generator(seed), 6
    c = (1 + 1e-2 * randn(g, 1, d)).bfloat16()
    at = norm_point(layer_norm(g, d), c)
    z0, rho, k = at.z0.double(), at.rho.double()[:, None], at.k.double()[:, None]
    miss = c.double() - c.double().mean() - z0
    assert (miss.abs() <= at.missing.double()).all()
    deviation = far * torch.cat([torch.ones(1, d).double(), randn(g, 50, d)]).bfloat16()
    said = at.slack(deviation).double()
    moved = deviation.double()
    # J of the centred deviation and of `miss`, less J as it is applied to the deviation: z0 . 1 is not zero.
    off = rho * miss - k * z0 * ((z0 * miss).sum(-1, keepdim=True) - moved.mean(-1, keepdim=True) * z0.sum())
    assert (off.abs() <= said).all()
    size, lost, length = z0.norm(), at.missing.double().norm(), moved.norm(dim=-1, keepdim=True)
    formula = rho * at.missing.double() + k * lost * (size * z0.abs() + length * (z0.abs() + size))
    assert (said >= 0.999 * formula).all()


def test_what_the_centre_misses_is_in_the_change_of_the_inverse_root():
    """The adjoint's forms are of the deviation, not of D: D rho_1 holds `missing` times the bound of rho_1."""
    g, d = generator(1), 6
    norm, c = layer_norm(g, d), (1 + 1e-2 * randn(g, 1, 1, d)).bfloat16()
    at = norm_point(norm, c)
    nothing, delta = torch.zeros_like(c), torch.full((1, 1), 1e4, dtype=torch.bfloat16)
    z = EllipsoidalZonotope(c, nothing[:, :, None], torch.zeros(1, 1, d, d).bfloat16(), math.inf)
    scalars = ErrorScalars(shift=0 * delta, bend=nothing, delta=delta)
    said = norm_output_rounding(at, z, delta > 0, scalars, nothing, torch.bfloat16)
    assert (said >= (norm.gamma.abs() * at.missing * delta[..., None]).bfloat16()).all()


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float32])
def test_what_enclosures_of_layernorm_are_formed_from_rounds(narrow):
    """Relative to the sizes that error, linear part and range add up, and what the step itself rounds besides."""
    g, d = generator(2), 5
    norm, c = layer_norm(g, d), randn(g, 1, 2, d)
    z = EllipsoidalZonotope(
        c, (0.01 * randn(g, 1, 2, 3, d)).to(narrow), 1e-4 * torch.eye(d).double().expand(1, 2, d, d), 2.0
    )
    step = layernorm_step(norm, z, 1 << 26)
    w = randn(g, 1, 4, 2, d)
    raw = (w * norm.gamma).transpose(1, 2)
    found, length = enclosure_rounding(step, w, raw), raw.norm(dim=-1)
    carried = (w.abs() * step.rounding[:, None]).sum(-1).transpose(1, 2)
    lost = gamma(6 * d + z.m + 32, narrow) * length
    far = z.radius.norm(dim=-1)
    ball = gamma(3 * d + 12, WIDE) * length * (step.ball + step.x_hat.norm(dim=-1))[..., None]
    for said, part, besides in (
        (found.error, lost * step.size[..., None], carried),
        (found.linear, lost * (step.a0.rsqrt() * far)[..., None], 0 * carried),
        (found.range, ball, carried),
    ):
        assert (said >= (part + besides) * (1 - 1e-12)).all()
    # All of it reaches the loss.
    louder = dataclasses.replace(step, rounding=step.rounding + 1.0)
    assert (louder.pull(w, 1 << 26)[1] - step.pull(w, 1 << 26)[1] >= 0.999 * w.abs().sum((2, 3))).all()


def test_what_log_softmax_rounds_key_by_key():
    """Of scores that are all zero, and of a key whose own score is zero beside a large one."""
    block, S = attention_block(1, causal=False), 3
    n = randn(generator(2), S, 6)
    n[0] = 0.0
    for changes in ({"w_q": 0 * block.branch.w_q, "b_q": None}, {"b_k": None}):
        attention = changed(block, **changes).branch
        point = attention_point(attention, n)
        sizes = NormSizes(n, torch.zeros_like(n))
        found = attention_rounding(point, Prefix.none(n, attention), sizes, WIDE, 0).scores
        pairs = (point.Q.abs() @ point.K.abs().mT) * attention.scale
        largest = pairs.amax(-1, keepdim=True)
        assert (found >= 0.999 * gamma(8, WIDE) * (largest + math.log(S) + 1)).all()
        assert (pairs[..., 0] == 0).all()


def test_rows_that_do_not_add_up_to_one_leave_twice_the_doubt():
    """Of all that values are multiplied with; and of the value that the papers' methods take off a row."""
    block, z = attention_block(1), zonotope(2, S=3)
    norm = layernorm_bounds(block.norm, z)
    point = attention_point(block.branch, norm.centre)
    doubtful = dataclasses.replace(point, doubt=torch.full_like(point.doubt, 0.1))
    r = attention_rounding(
        point, Prefix.none(norm.centre, block.branch), NormSizes(norm.centre, norm.reach), WIDE, z.m + z.q
    )
    coefficients = point.P + 0.5
    heads = head_rounding(doubtful, r, coefficients, 0 * point.P, WIDE)
    sizes = coefficients @ point.V.abs() + coefficients.sum(-1, keepdim=True) * point.O.abs()
    assert (heads >= 0.2 * sizes).all()
    off = recentring_rounding(0 * point.P, doubtful, WIDE)
    assert (off >= 0.2 * point.VW.abs().amax(1).sum(0)).all()
