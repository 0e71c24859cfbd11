"""Sums that lose as much as gamma_k allows: 1 plus many terms, each just too small to change it.

In float32, added one after the other, all the small ones vanish: k units of rounding, as many as the bound allows.
LayerNorm is made constant (gamma = 0), so that nothing else rounds as much; a step's bound of its rounding must cover
it.
"""

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

import zonogpt
from builders import image_config, image_model
from test_cancellation import double, excess_of_e, single
from zonogpt.domains.rounding import unaccounted
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.methods import METHODS
from zonogpt.methods.method import Numerics
from zonogpt.methods.start import start
from zonogpt.model.ir import ImageEmbedding
from zonogpt.model.nodes import Attention, Block, Mlp, Norm
from zonogpt.transforms.structured.attention import fused_attention
from zonogpt.transforms.structured.decomposed_attention import decomposed_attention
from zonogpt.transforms.structured.mlp import fused_mlp, sequential_mlp

K = 128
UNIT = 2.0**-24


def staircase(k=K):
    """1 and k - 1 numbers just below half a unit of 1. The exact sum exceeds 1; in float32, one by one, it is 1."""
    out = torch.full((k,), 0.98 * UNIT, dtype=torch.float64)
    out[0] = 1.0
    return out


def constant_norm(beta):
    return Norm(torch.zeros_like(beta), beta, 1e-5)


def hidden_sum(S=3):
    """W_1 adds up a staircase; GELU and W_2 pass it on to the first feature."""
    w_1 = torch.zeros(K, 2, dtype=torch.float64)
    w_1[:, 0] = 1.0
    w_2 = torch.zeros(2, K, dtype=torch.float64)
    w_2[0, 0] = 1.0
    nothing = torch.zeros(K, dtype=torch.float64)
    block = Block(constant_norm(staircase()), Mlp(w_1, torch.zeros(2, dtype=torch.float64), w_2, nothing))
    return block, torch.zeros(S, K, dtype=torch.float64) + torch.linspace(-1e-3, 1e-3, K).double()


def output_sum(S=3):
    """W_2 adds up a staircase of hidden units that are all equal."""
    d = 4
    w_2 = torch.zeros(K, d, dtype=torch.float64)
    w_2[:, 0] = staircase()
    zero = torch.zeros(d, K, dtype=torch.float64)
    mlp = Mlp(zero, torch.full((K,), 3.0).double(), w_2, torch.zeros(d).double())
    block = Block(constant_norm(torch.ones(d).double()), mlp)
    return block, torch.zeros(S, d, dtype=torch.float64) + torch.linspace(-1e-3, 1e-3, d).double()


def scores_of(part):
    """Queries (0) or keys (1) that are a staircase's sum, times a large constant: the scores of different heads' keys.

    Many heads of few features: their own products round little. Position enters through the values' bias only, so one
    token must differ: its LayerNorm is constant too, and the score error would be common to all keys. Hence gamma is
    not zero at the last feature, which tells tokens apart.
    """
    e, d = 2, K
    beta = staircase()
    beta[-1] = 0.0
    gamma = torch.zeros(d, dtype=torch.float64)
    gamma[-1] = 1.0
    w, b = torch.zeros(3, d, d, dtype=torch.float64), torch.zeros(3, d, dtype=torch.float64)  # queries, keys, values
    w[part, : d - 1, 0] = 1.0  # the staircase, in the first feature of the first head
    w[1 - part, d - 1, 0] = 200.0  # tokens differ in the other factor
    b[1 - part, 0] += 1.0
    w[2, d - 1, 0] = 1.0
    w_o = torch.zeros(d, d, dtype=torch.float64)
    w_o[0, 0] = 1.0
    nothing = torch.zeros(d, dtype=torch.float64)
    block = Block(Norm(gamma, beta, 1e-5), Attention(*w, w_o, *b, nothing, d // e))
    x = torch.zeros(3, d, dtype=torch.float64)
    x[:, -1] = torch.tensor([0.5, 1.0, -2.0]).double()
    return block, x


CASES = {
    "hidden": (hidden_sum, (sequential_mlp, fused_mlp)),
    "output": (output_sum, (sequential_mlp, fused_mlp)),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_cover_what_a_staircase_loses(name):
    case, transforms = CASES[name]
    block, x = single(case())
    with torch.no_grad():
        lost = float((block(x).double() - double(block)(x.double())).abs().max())
        assert lost > 0.8 * K * UNIT  # else this machine adds up in another order, and the test proves less
        assert excess_of_e(block, x) <= 0
        with unaccounted():
            assert excess_of_e(block, x) > 0.5 * K * UNIT
        for transform in transforms:
            out, _ = transform(block, point(x))
            assert float(((double(block)(x.double()) - out.c.double()).abs() - out.radius.double()).max()) <= 0


def point(x):
    S, d = x.shape
    return StructuredZonotope(x, x.new_zeros(0, S, d), x.new_zeros(S, 0, d), x.new_zeros(S, d))


@pytest.mark.parametrize("part", [0, 1])
def test_scores_cover_what_a_staircase_loses(part):
    block, x = single(scores_of(part))
    with torch.no_grad():
        assert excess_of_e(block, x) <= 0
        for transform in (fused_attention, decomposed_attention):
            out, _ = transform(block, point(x))
            assert float(((double(block)(x.double()) - out.c.double()).abs() - out.radius.double()).max()) <= 0


def test_embeddings_cover_what_a_staircase_loses():
    """Pixels of one, weights of a staircase: held in float64, the loss is 2^-53 for each of 16 pixels."""
    cfg = image_config(n_embd=4, n_head=2, n_layer=1)
    cfg.image_size, cfg.patch_size = (8, 8), (8, 8)
    model = zonogpt.load(image_model(1, cfg).double())
    steps = torch.full((64,), 0.98 * 2.0**-53, dtype=torch.float64)
    steps[0] = 1.0
    weight = steps[:, None].expand(64, 4).contiguous()
    embedding = model.embedding
    assert isinstance(embedding, ImageEmbedding)
    model = dataclasses.replace(model, embedding=dataclasses.replace(embedding, weight=weight))
    spec = zonogpt.image_ball(model, torch.ones(8, 8), 0.0, label=0)
    exact = sum(Fraction(float(w)) for w in steps)
    begin = start(model, [spec], torch.float64, 1)
    extent = begin.z.Q[0, 0].diagonal().sqrt()
    for k in range(4):
        truth = exact + Fraction(float(embedding.bias[k])) + Fraction(float(embedding.positions[0, k]))
        assert abs(Fraction(float(begin.z.c[0, 0, k])) - truth) <= Fraction(float(extent[k]))
    lost = abs(Fraction(float((torch.ones(1, 64).double() @ weight)[0, 0])) - exact)
    assert lost > Fraction(30 * 2.0**-53)


@pytest.mark.parametrize("method", ["E", "A", "ibp"])
def test_heads_cover_what_a_staircase_loses(method):
    """A claim over 64 outputs that are all nearly one: rows are sums over the outputs, and lose in float64."""
    cfg = image_config(n_embd=4, n_head=2, n_layer=1, num_labels=64)
    model = zonogpt.load(image_model(1, cfg).double())
    steps = torch.full((64,), 0.98 * 2.0**-53, dtype=torch.float64)
    steps[0] = 1.0
    norm = Norm(torch.zeros(4).double(), torch.tensor([1.0, 0.0, 0.0, 0.0]).double(), 1e-5)
    weight = torch.zeros(4, 64, dtype=torch.float64)
    weight[0] = 1.0
    head = dataclasses.replace(model.head, norm=norm, weight=weight, bias=None, read="last")
    model = dataclasses.replace(model, head=head)
    spec = zonogpt.image_ball(model, torch.ones(6, 4), 0.0, label=0)
    total = sum(Fraction(float(w)) for w in steps)
    for sign in (1.0, -1.0):
        claim = spec.with_claim(sign * steps[None], [0.0])
        with torch.no_grad():
            margin = float(METHODS[method].bound_many(model, [claim], Numerics(), None)[0].margins[0])
        assert math.isfinite(margin)
        assert Fraction(margin) <= int(sign) * total
