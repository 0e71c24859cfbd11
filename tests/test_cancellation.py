"""One quantity at a time is made so large that its rounding outweighs all else: each needs a term of its own.

Sets of one point, arrays held in float32, the network in float64: the output must lie within the step's own bound of
its rounding. In each case the large quantity cancels again, so that no other term can stand in for its term.
"""

import dataclasses
import math

import pytest
import torch

from builders import attention_block, changed, generator, layer_norm, mlp_block, randn
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.rounding import unaccounted
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.support.tensors import map_tensors
from zonogpt.transforms.ellipsoidal.attention import attend
from zonogpt.transforms.ellipsoidal.mlp import mlp_step
from zonogpt.transforms.ellipsoidal.sources import sources
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.queries import Queries
from zonogpt.transforms.structured.attention import fused_attention
from zonogpt.transforms.structured.decomposed_attention import decomposed_attention
from zonogpt.transforms.structured.mlp import fused_mlp, sequential_mlp

LIMIT, BIG, S, D, F = 1 << 30, 3e4, 3, 8, 12


def single(value):
    return map_tensors(value, lambda t: t.float())


def double(value):
    return map_tensors(value, lambda t: t.double())


def large_mean(seed):
    """LayerNorm takes a mean of 3e4 away."""
    g = generator(seed)
    return mlp_block(seed, d=D, hidden=F), randn(g, S, D) + BIG


def large_mean_before_attention(seed):
    return attention_block(seed, d=D, n_heads=2), large_mean(seed)[1]


def common(norm, x):
    """A direction (d,) along which LayerNorm's output is 1 at every token: weights along it cancel against a bias."""
    return torch.linalg.lstsq(norm(x), torch.ones(len(x), 1).double()).solution[:, 0]


def undone(norm, x, seed, size=BIG):
    """Adds weights of size 3e4 that the bias takes away again, exactly, whatever the token."""
    along = common(norm, x)

    def change(w, b):
        large = size * randn(generator(seed + 7), w.shape[1])
        return w + along[:, None] * large, b - large

    return change


def large_hidden_bias(seed):
    """W_1 n + b_1: both of size 3e4, their sum of size one."""
    block, x = mlp_block(seed, d=D, hidden=F), randn(generator(seed), S, D)
    w_1, b_1 = undone(block.norm, x, seed)(block.branch.w_1, block.branch.b_1)
    return changed(block, w_1=w_1, b_1=b_1), x


def large_output_bias(seed):
    """W_2 g + b_2: the same behind GELU."""
    block, x = mlp_block(seed, d=D, hidden=F), randn(generator(seed), S, D)
    x[1:] = x[0]
    of = block.branch
    w_2 = BIG * of.w_2
    hidden = torch.nn.functional.gelu(block.norm(x[:1]) @ of.w_1 + of.b_1, approximate="tanh")
    return changed(block, w_2=w_2, b_2=-(hidden @ w_2)[0]), x


def large_skip(seed):
    """A skip of size 3e4 whose centred part is small: the output keeps it."""
    block, x = mlp_block(seed, d=D, hidden=F), randn(generator(seed), S, D)
    return changed(block, b_2=block.branch.b_2 - BIG), x + BIG


def projected(block, part, change):
    """The block with `change` applied to the weight and bias of queries (q), keys (k) or values (v)."""
    w, b = change(getattr(block.branch, f"w_{part}"), getattr(block.branch, f"b_{part}"))
    return changed(block, **{f"w_{part}": w, f"b_{part}": b})


def attention_case(seed):
    return attention_block(seed, d=D, n_heads=2), randn(generator(seed), S, D)


def large_queries(seed):
    block, x = attention_case(seed)
    return projected(block, "q", undone(block.norm, x, seed)), x


def large_keys(seed):
    block, x = attention_case(seed)
    return projected(block, "k", undone(block.norm, x, seed)), x


def large_values(seed):
    block, x = attention_case(seed)
    return projected(block, "v", undone(block.norm, x, seed)), x


def large_common_value(seed):
    """Values of size 3e4 that all tokens share: W_o sees them, and b_o takes them away."""
    block, x = attention_block(seed, d=D, n_heads=2), randn(generator(seed), S, D)
    shared = BIG * randn(generator(seed + 1), D)
    block = projected(block, "v", lambda w, b: (w, b + shared))
    return changed(block, b_o=block.branch.b_o - shared @ block.branch.w_o), x


def large_scores(seed):
    """Queries and keys of size 300, whose products nearly agree: 9e4 and its rounding go into softmax."""
    block, x = attention_case(seed)
    block = projected(block, "q", lambda w, b: (1e-3 * w, b + 300))
    return projected(block, "k", lambda w, b: (1e-3 * w, b + 300)), x


MLPS = (large_mean, large_hidden_bias, large_output_bias, large_skip)
ATTENTIONS = (large_mean_before_attention, large_queries, large_keys, large_values, large_common_value, large_scores)


def excess_of_e(block, x):
    """How far the block's exact output leaves the set or falls below the adjoint, at the only point x (tokens, d)."""
    n, d = x.shape
    z = EllipsoidalZonotope(x[None], x.new_zeros(1, n, 1, d), x.new_zeros(1, n, d, d), math.inf)
    with torch.no_grad():
        if block.kind == "mlp":
            out, step = mlp_step(block, z, LIMIT)
        else:
            out, step = attend(sources(block, z, Prefix.none(z.c, block.branch), LIMIT), Queries.every(n), LIMIT)
        truth = double(block)(x.double())
        off = (truth - out.c[0].double()).abs()
        by_gram = float((off - out.Q[0].double().diagonal(dim1=-2, dim2=-1).sqrt()).max())
        w = torch.cat([torch.eye(n * d), -torch.eye(n * d)]).reshape(1, -1, n, d).to(x)
        losses = sum(part.double() for part in step.pull(w, LIMIT)[1].values())[0]
        fall = ((out.c[0].double() - truth) * w[0]).sum((1, 2))
        return max(by_gram, float((fall - losses).max()))


@pytest.mark.parametrize("case", MLPS + ATTENTIONS)
def test_method_e(case):
    for seed in range(6):
        assert excess_of_e(*single(case(seed))) <= 0
    with unaccounted():
        assert max(excess_of_e(*single(case(seed))) for seed in range(6)) > 1e-5


STRUCTURED = [(case, f) for case in MLPS for f in (sequential_mlp, fused_mlp)]
STRUCTURED += [(case, f) for case in ATTENTIONS for f in (fused_attention, decomposed_attention)]


@pytest.mark.parametrize(("case", "transform"), STRUCTURED)
def test_papers_methods(case, transform):
    def excess(seed):
        block, x = single(case(seed))
        nothing = torch.zeros(S, D)
        with torch.no_grad():
            out, _ = transform(block, StructuredZonotope(x, x.new_zeros(0, S, D), x.new_zeros(S, 0, D), nothing))
            return float(((double(block)(x.double()) - out.c.double()).abs() - out.radius.double()).max())

    assert max(map(excess, range(6))) <= 0
    with unaccounted():
        assert max(map(excess, range(6))) > 1e-5


def test_layernorm_with_a_tiny_tau():
    """A constant token: only rounding is left after centring, and tau = 1e-12 magnifies it."""
    g = generator(1)
    norm = dataclasses.replace(layer_norm(g, D), tau=1e-12)
    block = dataclasses.replace(mlp_block(1, d=D, hidden=F), norm=norm)
    x = torch.full((S, D), 0.1) + 0 * randn(g, S, D)
    assert excess_of_e(*single((block, x))) <= 0
