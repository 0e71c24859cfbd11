"""Whole models of every odd shape and scale, small enough to try all vertices of the input box."""

import itertools
import random

import pytest
import torch
from torch import Tensor

import zonogpt
from zonogpt.model.ir import Model, TokenEmbedding
from zonogpt.model.nodes import Attention, Block, Head, Mlp, Norm


def decade(r: random.Random, low: float, high: float) -> float:
    return 10 ** r.uniform(low, high)


def random_model(r: random.Random, g: torch.Generator, length: int | None = None) -> Model:
    """One to three blocks in any order, head width 1 too, weights over several decades, zero and negative gammas.

    With a `length` in tokens, also things that no GPT-2 has: heads of any width, missing biases, and outputs read from
    the first token or with weights of any sign.
    """

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def norm() -> Norm:
        gamma = randn(d) * decade(r, -1, 1)
        if r.random() < 0.1:
            gamma[0] = 0
        return Norm(gamma, some(randn(d) * decade(r, -3, 0)), r.choice([1e-5, 1e-8, 1.0]))

    def some(bias: Tensor) -> Tensor | None:
        return None if length is not None and r.random() < 0.3 else bias

    def attention() -> Block[Attention]:
        of_norm, inner = norm(), d if length is None else heads * r.choice([1, 2, 4])
        w, b, w_o, b_o = s * randn(d, 3 * inner), s * randn(3 * inner), s * randn(inner, d), s * randn(d)
        biases = [some(bias) for bias in (*b.chunk(3), b_o)]
        mask = "causal" if r.random() < 0.7 else "bidirectional"
        return Block(of_norm, Attention(*w.chunk(3, dim=1), w_o, *biases, heads, mask))

    def mlp() -> Block[Mlp]:
        of_norm = norm()
        w_1, b_1, w_2, b_2 = s * randn(d, f), s * randn(f), s * randn(f, d), s * randn(d)
        return Block(of_norm, Mlp(w_1, some(b_1), w_2, some(b_2)))

    d = r.choice([2, 3, 4])
    heads = r.choice([h for h in range(1, d + 1) if d % h == 0])
    f, K, s = r.choice([1, 2, 5]), r.choice([2, 3]), decade(r, -1.5, 1.3)
    blocks = [attention() if r.random() < 0.6 else mlp() for _ in range(r.choice([1, 1, 2, 3]))]
    tokens = randn(5, d) * decade(r, -2, 1)
    if r.random() < 0.2:
        tokens[:3] = 0.1  # constant tokens: LayerNorm at z0 = 0
    reads = ["mean", "last"] if length is None else ["mean", "last", "first", randn(length), randn(length)]
    head = Head(norm(), r.choice(reads), randn(d, K), r.choice([None, randn(K)]))
    embedding = TokenEmbedding(tokens, randn(5, d) * r.choice([0.0, 0.1, 1.0]))
    return Model(embedding, tuple(blocks), head, "GPT2LMHeadModel", "random")


def points(box, g: torch.Generator) -> Tensor:
    """All sign vertices (at most 256), interior points, and points of faces."""
    n = box.lower.numel()
    vertices = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), dtype=torch.float64)
    inside = torch.rand(200, n, generator=g, dtype=torch.float64)
    faces = torch.where(torch.rand(200, n, generator=g) < 0.5, inside.round(), inside)
    t = torch.cat([vertices, inside, faces]).reshape(-1, *box.lower.shape)
    return box.lower + t * (box.upper - box.lower)


@pytest.mark.parametrize("seed", range(60))
def test_no_input_is_below_a_certified_margin(seed):
    r, g = random.Random(seed), torch.Generator().manual_seed(seed)
    model = random_model(r, g)
    ids = [r.randrange(5) for _ in range(r.choice([1, 2, 3, 5]))]
    assert_no_input_is_below(model, ids, r, g)


@pytest.mark.parametrize("seed", range(60))
def test_no_input_is_below_where_no_gpt2_is(seed):
    r, g = random.Random(seed), torch.Generator().manual_seed(seed)
    ids = [r.randrange(5) for _ in range(r.choice([1, 2, 3, 5]))]
    assert_no_input_is_below(random_model(r, g, len(ids)), ids, r, g)


def assert_no_input_is_below(model: Model, ids: list[int], r: random.Random, g: torch.Generator) -> None:
    positions = r.sample(range(len(ids)), r.randint(1, min(len(ids), 8 // model.width)))
    for radius in (decade(r, -6, -2), decade(r, -2, 0), decade(r, 0, 1)):
        spec = zonogpt.embedding_ball(model, ids, positions, radius * float(model.embedding.tokens.abs().mean()))
        true = spec.claim.margins(model.forward(spec.input.embed(points(spec.input, g)))).amin(0)
        for method in zonogpt.METHODS:
            result = zonogpt.verify(model, spec, method=method)
            assert (true >= result.margins - 1e-9 * (1 + true.abs())).all(), (method, radius)
            assert result.status in ("verified", "unknown")
