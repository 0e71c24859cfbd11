"""Every term of a rounding bound is relative to some size: that size is made large, and the bound must grow with it.

Sampling rarely shows that such a term is missing, because the bounds beside it have units to spare.
"""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from builders import attention_block, changed, generator, mlp_block, randn, zonotope
from ellipsoidal_containment import ellipsoidal
from zonogpt.domains.finite import NonFiniteBoundError
from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import gamma, unit
from zonogpt.model.activations import GELU_TANH
from zonogpt.transforms import activations
from zonogpt.transforms.attention_rounding import NormSizes, Skip, attention_rounding, output_rounding
from zonogpt.transforms.ellipsoidal.attention import value_products
from zonogpt.transforms.ellipsoidal.mlp_rounding import hidden_rounding as hidden_rounding_of_e
from zonogpt.transforms.ellipsoidal.norm import norm_step
from zonogpt.transforms.execution import mlp_error
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.softmax import softmax_range
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
