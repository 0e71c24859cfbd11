"""Tokens before the first that moves: exact up to rounding, propagated once, and never mistaken for another input's."""

import contextlib
import dataclasses
import math

import pytest
import torch

import zonogpt
from builders import (
    attention_block,
    by_hand,
    config,
    generator,
    image_model,
    language_model,
    mlp_block,
    randn,
    text_classifier,
)  # fmt: skip
from trained import trained
from zonogpt.domains.ellipsoidal import coordinate_radius
from zonogpt.domains.rounding import unaccounted
from zonogpt.methods import METHODS, prefixes
from zonogpt.methods.adjoint import backward
from zonogpt.methods.method import Numerics
from zonogpt.methods.prefixes import DIGEST, PrefixCache
from zonogpt.methods.start import around, start
from zonogpt.methods.tape import forward
from zonogpt.methods.walk import Walk
from zonogpt.model.nodes import Head
from zonogpt.support.tensors import moved
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep

LIMIT = 1 << 30


def wide(model):
    return moved(model, model.device, torch.float64)


def late_patches(model, radius=2e-3):
    """An image in which only the last patch moves, for a head that reads all tokens."""
    spec = zonogpt.image_ball(model, torch.rand(6, 4, generator=torch.Generator().manual_seed(5)), radius)
    box = spec.input
    moves = torch.zeros_like(box.anchor)
    moves[4:, 2:] = 1.0
    lower, upper = (torch.where(moves > 0, x, box.anchor) for x in (box.lower, box.upper))
    return dataclasses.replace(spec, input=dataclasses.replace(box, lower=lower, upper=upper))


CASES = {
    "classifier": (text_classifier, lambda model: zonogpt.embedding_ball(model, [3, 5, 1, 12, 7, 2], [3, 4], 2e-3)),
    "language model": (language_model, lambda model: zonogpt.embedding_ball(model, [3, 5, 1, 12, 7, 2], [3, 4], 2e-3)),
    "images": (image_model, late_patches),
}


@pytest.mark.parametrize("arithmetic", ["real", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_against_a_run_that_carries_all_tokens(case, arithmetic):
    build, make = CASES[case]
    model = zonogpt.load(build(3).double())
    spec = make(model)
    with torch.no_grad():
        some = forward(Walk(model, LIMIT, arithmetic), [spec], torch.float64)
        every = forward(Walk(model, LIMIT, arithmetic, every_token=True), [spec], torch.float64)
        assert 0 < some.start.before == every.start.z.n_tokens - some.start.z.n_tokens
        margins = [backward(tape)[0] for tape in (some, every)]
    # In the first, the rounding of executions is bounded for each key and value alone, not for all of them together.
    near, least = (1e-4, 1e-6) if arithmetic == "real" else (0.1, 0.02)
    torch.testing.assert_close(*margins, rtol=near, atol=least)


def test_a_head_that_reads_all_tokens_believes_the_sets_of_those_before(monkeypatch):
    """If these sets were as wide as here, no point of them would bring a margin below its bound."""
    model = zonogpt.load(image_model(3).double())
    spec = late_patches(model, 1e-9)
    exact = prefixes.BatchPrefix.at_the_head

    def widened(self):
        z = exact(self)
        return dataclasses.replace(z, Q=z.Q + 1e-4 * torch.eye(model.width, dtype=torch.float64))

    monkeypatch.setattr(prefixes.BatchPrefix, "at_the_head", widened)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        tape = forward(Walk(model, LIMIT), [spec], torch.float64)
        margins = backward(tape)[0][0]
        x = spec.input.embed(spec.input.anchor)
        for block in model.blocks:
            x = block(x)
        for _ in range(20):
            off = torch.randn(tape.start.before, model.width, dtype=torch.float64, generator=g)
            moved_x = x.clone()
            moved_x[: tape.start.before] += 1e-2 * off / torch.linalg.vector_norm(off, dim=-1, keepdim=True)
            assert (spec.claim.margins(model.head(moved_x)) >= margins).all()


@pytest.mark.parametrize("accounted", [True, False])
def test_keys_and_values_of_still_tokens_hold_what_float32_rounds(accounted):
    """In float32, keys and values are within their bounds of the truth, and outside of bounds without rounding."""
    escaped = 0
    for seed in range(8):
        exact = zonogpt.load(text_classifier(seed, config(n_embd=16, n_head=2, n_layer=2, pad_token_id=0))).converted(
            torch.device("cpu"), torch.float64
        )
        model = moved(exact, exact.device, torch.float32)
        spec = zonogpt.embedding_ball(exact, [3, 5, 1, 12, 7, 2], [5], 1e-6)
        memory = PrefixCache(model)
        with torch.no_grad(), contextlib.nullcontext() if accounted else unaccounted():
            before = memory.of([spec], start(model, [spec], torch.float32, 1), LIMIT)
        x = spec.input.embed(spec.input.anchor)[:5]
        for t, block in enumerate(exact.blocks):
            if block.kind == "attention":
                seen, of = before.seen(t), block.branch
                for w, radius in ((of.w_k, seen.K), (of.w_v, seen.V)):
                    off = of.split_heads((block.norm(x) - seen.n[0].double()) @ w).abs()
                    escaped += int((off > radius[0].double()).sum())
            x = block(x)
    assert (escaped == 0) == accounted


def test_keys_and_values_of_still_tokens_hold_executions_in_float32():
    """Executions of the embedding and of earlier blocks: the states of float32, and their images by exact weights."""
    for seed in range(8):
        net = zonogpt.load(text_classifier(seed, config(n_embd=16, n_head=2, n_layer=2, pad_token_id=0)))
        exact, short = (moved(net, net.device, dtype) for dtype in (torch.float64, torch.float32))
        ids = [3, 5, 1, 12, 7, 2]
        spec = zonogpt.embedding_ball(exact, ids, [5], 1e-6)
        with torch.no_grad():
            before = PrefixCache(exact, "float32").of([spec], start(exact, [spec], torch.float64, 1, "float32"), LIMIT)
        x = short.embedding(torch.tensor(ids))[:5]
        for t, block in enumerate(exact.blocks):
            if block.kind == "attention":
                seen, of = before.seen(t), block.branch
                for w, radius in ((of.w_k, seen.K), (of.w_v, seen.V)):
                    off = (block.norm(x.double()) - seen.n[0]) @ w
                    assert (of.split_heads(off).abs() <= radius[0]).all(), t
            x = short.blocks[t](x)


@pytest.mark.parametrize("kind", ["attention", "mlp"])
def test_each_block_before_is_executed_in_float32(kind, monkeypatch):
    """One block of a kind before an attention block, and an exact embedding, so that nothing else is off."""
    net = zonogpt.load(text_classifier(2, config(n_embd=16, n_head=2, n_layer=2, pad_token_id=0)))
    blocks = next(block for block in net.blocks if block.kind == kind), net.blocks[2]
    net = dataclasses.replace(net, blocks=blocks)
    exact, short = (moved(net, net.device, dtype) for dtype in (torch.float64, torch.float32))
    spec = zonogpt.embedding_ball(exact, [3, 5, 1, 12, 7, 2], [5], 1e-6)
    x = spec.input.embed(spec.input.anchor).float()
    monkeypatch.setattr(prefixes, "embedded_centre", lambda box, arithmetic: (x.double(), torch.zeros_like(x).double()))
    with torch.no_grad():
        begin = start(exact, [spec], torch.float64, 1, "float32")
        seen = PrefixCache(exact, "float32").of([spec], begin, LIMIT).seen(1)
    executed, of = exact.blocks[1].norm(short.blocks[0](x)[:5].double()), exact.blocks[1].branch
    for w, radius in ((of.w_k, seen.K), (of.w_v, seen.V)):
        off = (executed - seen.n[0]) @ w
        assert (of.split_heads(off).abs() <= radius[0]).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_set_around_a_centre_holds_the_box_and_what_the_cast_rounds(dtype):
    c = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for size in (0.0, 1e-9, 1e-2):
        z = around(c, torch.full_like(c, size), dtype, torch.zeros(2, 3, 1, 4, dtype=dtype), math.inf)
        assert ((c - z.c.double()).abs() + size <= coordinate_radius(z.Q).double()).all()


def sentences(model, norm=math.inf, radii=(1e-3, 2e-3)):
    """Specs of two sentences that begin alike and two that do not; in each, several tokens move in turn."""
    texts = ([3, 5, 1, 7, 7, 2], [3, 5, 1, 4, 7], [8, 5, 1, 4, 7], [2, 2, 6])
    places = ((5, 4), (4, 1), (2,), (1, 0))
    return [
        zonogpt.embedding_ball(model, ids, [at], radius, norm=norm)
        for ids, ats in zip(texts, places, strict=True)
        for at in ats
        for radius in radii
    ]


def counted(monkeypatch):
    """A list that records the groups that go through the network, each by its sequences' lengths."""
    seen = []
    through = PrefixCache._through_the_network

    def count(self, group, limit, tick):
        seen.append([len(name) // DIGEST for name in group])
        return through(self, group, limit, tick)

    monkeypatch.setattr(PrefixCache, "_through_the_network", count)
    return seen


def test_each_beginning_goes_through_the_network_once(monkeypatch):
    """Once, whatever moves after it and however far; a beginning that is part of a longer one shares that."""
    model, seen = trained("text"), counted(monkeypatch)
    specs = sentences(model) + sentences(model, 2.0)
    zonogpt.verify_many(model, specs)
    assert sorted(seen) == [[1], [2], [4], [5]]


def test_those_that_fit_go_together(monkeypatch):
    model, seen = trained("text"), counted(monkeypatch)
    monkeypatch.setattr("zonogpt.methods.ellipsoidal.TOGETHER", {"cpu": 10})
    zonogpt.verify_many(model, sentences(model))
    assert sorted(seen) == [[2, 1], [5, 4]]


@pytest.mark.parametrize("together", [1, 10, 100])
@pytest.mark.parametrize("arithmetic", ["real", "float32"])
def test_nobody_gets_another_inputs_beginning(monkeypatch, together, arithmetic):
    monkeypatch.setattr("zonogpt.methods.ellipsoidal.TOGETHER", {"cpu": together})
    if arithmetic == "real":  # in float32 it matters which tokens are among those that move
        monkeypatch.setattr("zonogpt.methods.ellipsoidal.LEAST_MOVING", {"cpu": 0.0})
    for model in (trained("text"), zonogpt.load(language_model(3))):
        specs = sentences(model)
        many = zonogpt.verify_many(model, specs, arithmetic=arithmetic)
        for spec, result in zip(specs, many, strict=True):
            alone = zonogpt.verify(model, spec, arithmetic=arithmetic)
            near = 1e-6 if arithmetic == "real" else 1e-4  # padding makes sums longer, on paper
            torch.testing.assert_close(result.margins, alone.margins, rtol=near, atol=1e-9)


def test_a_short_memory_costs_time_only(monkeypatch):
    """The oldest is forgotten, and propagated again when it is asked for."""
    model, seen = wide(trained("text")), counted(monkeypatch)
    specs = sentences(model, radii=(1e-3,))
    long, other = specs[0], specs[2]
    memory = PrefixCache(model, most_tokens=5)
    memory.expect(specs)
    with torch.no_grad():
        for spec in (long, long, other, long):
            tape = forward(Walk(model, LIMIT), [spec], torch.float64, memory)
            again = forward(Walk(model, LIMIT), [spec], torch.float64)
            assert torch.equal(backward(tape)[0], backward(again)[0])
    alone = [[5], [5], [4], [5]]
    assert seen == [[5], *alone[:1], *alone[1:2], [4], [4], [5], [5]]


def overflowing(model, token):
    """The model with an embedding that no LayerNorm survives."""
    tokens = model.embedding.tokens.clone()
    tokens[token, ::2], tokens[token, 1::2] = 1e200, -1e200
    return dataclasses.replace(model, embedding=dataclasses.replace(model.embedding, tokens=tokens))


@pytest.mark.parametrize("together", [1, 100])
def test_a_beginning_that_overflows_takes_nobody_along(monkeypatch, together):
    """The sequences that are propagated with it, and those that are part of it, do not fail."""
    monkeypatch.setattr("zonogpt.methods.ellipsoidal.TOGETHER", {"cpu": together})
    model = overflowing(wide(trained("text")), 8)
    texts = (([3, 5, 1, 7], None), ([3, 5, 1, 8, 7], 0), ([2, 4, 6, 1, 1], None))
    specs = [zonogpt.embedding_ball(model, ids, [len(ids) - 1], 1e-3, label=label) for ids, label in texts]
    many = zonogpt.verify_many(model, specs)
    for spec, result in zip(specs, many, strict=True):
        alone = zonogpt.verify(model, spec)
        assert (result.status, result.reason) == (alone.status, alone.reason)
        torch.testing.assert_close(result.margins, alone.margins, rtol=1e-9, atol=1e-12)
    assert "block 1 (attention)" in many[1].reason
    assert all(many[i].margins.isfinite().all() for i in (0, 2))


def test_longer_ones_are_not_carried_where_memory_is_short(monkeypatch):
    """The plan of an input counts only its own beginning."""
    model, seen = wide(trained("text")), counted(monkeypatch)
    short, long = (zonogpt.embedding_ball(model, ids, [len(ids) - 1], 1e-3) for ids in ([3, 5, 1], [3, 5, 1, 7, 7, 2]))
    monkeypatch.setattr(prefixes, "free_bytes", lambda device: 0)
    memory = PrefixCache(model, most_tokens=100)
    memory.expect([short, long])
    with torch.no_grad():
        forward(Walk(model, LIMIT), [short], torch.float64, memory)
        forward(Walk(model, LIMIT), [long], torch.float64, memory)
    assert seen == [[2], [5]]


def test_no_beginning_is_taken_for_another_that_was_not_found(monkeypatch):
    """If embedding were not repeatable, no beginning would be found again, and none mistaken for another."""
    model = wide(trained("text"))
    specs = sentences(model, radii=(1e-3,))
    expected = [METHODS["E"].bound_many(model, [spec], Numerics(), None)[0].margins for spec in specs]
    exact, calls = prefixes.embedded_centre, iter(range(10**6))

    def restless(box, arithmetic):
        tokens, off = exact(box, arithmetic)
        return tokens * (1 + next(calls) * 2.0**-50), off

    monkeypatch.setattr(prefixes, "embedded_centre", restless)
    with torch.no_grad():
        method = METHODS["E"].for_run(model, specs, Numerics())
        together = method.bound_many(model, specs, Numerics(), None)
    for margins, bounds in zip(expected, together, strict=True):
        torch.testing.assert_close(bounds.margins, margins, rtol=1e-6, atol=1e-9)


def test_what_is_remembered_for_one_model_or_arithmetic_is_no_others():
    model = wide(trained("text"))
    spec = sentences(model)[0]
    method = METHODS["E"].for_run(model, [spec], Numerics())
    for other, arithmetic in ((model, "float32"), (dataclasses.replace(model, name="other"), "real")):
        with pytest.raises(ValueError, match="another model"):
            method.bound_many(other, [spec], Numerics(arithmetic=arithmetic), None)


def test_time_is_watched_while_they_are_propagated():
    model = wide(trained("text"))
    spec = sentences(model)[0]
    seen = []
    with torch.no_grad():
        METHODS["E"].bound_many(model, [spec], Numerics(), seen.append)
    blocks = len(model.blocks)
    still = [p.block for p in seen if p.part == "still tokens"]
    assert still == list(range(1, blocks))  # after the last attention nobody sees them
    assert [p.part for p in seen[: len(still)]] == ["still tokens"] * len(still)
    assert [p.block for p in seen if p.part == "forward"] == list(range(1, blocks + 1))


def test_what_the_first_tokens_lose_at_the_head_is_no_gain(monkeypatch):
    """A loss may come out negative, but as a part of rounding, which `up` treats as a size, it must not."""
    g = generator(5)
    head = Head(mlp_block(2).norm, "mean", randn(g, 6, 3), None)
    model = by_hand(randn(g, 5, 6), (attention_block(1), mlp_block(2)), head)
    spec = zonogpt.embedding_ball(model, [0, 3, 1, 2], [3], 1e-3)
    monkeypatch.setattr(LayerNormStep, "loss", lambda step, w, limit: -torch.ones(w.shape[:2], dtype=torch.float64))
    assert (forward(Walk(model, LIMIT), [spec], torch.float64).rounding >= 0).all()
