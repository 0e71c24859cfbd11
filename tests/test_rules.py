"""Nodes that a family has no rule for are refused by name, before anything runs."""

from dataclasses import replace

import pytest
import torch

import zonogpt
from builders import attention_block, by_hand, generator, image_model, layer_norm, mlp_block, randn
from zonogpt.errors import ModelError
from zonogpt.methods import METHODS, structured, walk
from zonogpt.methods.operators.executions import EXECUTIONS
from zonogpt.methods.operators.network import BLOCKS
from zonogpt.methods.operators.plan import SYMBOLS
from zonogpt.model.activations import SILU, TANH
from zonogpt.model.ir import Model
from zonogpt.model.nodes import Block, Dense, Gated, Head, Norm, Parallel, Rotation
from zonogpt.verification import certificate

D, F = 6, 8
G = generator(0)
TOKENS = randn(G, 5, D)
ATTENTION, MLP = attention_block(1, D), mlp_block(2, D, F)
RMS = replace(MLP.norm, centred=False)
TURNS = Rotation(torch.ones(6, 1).double(), torch.zeros(6, 1).double())

# Blocks that no family has a rule for, and how a refusal names them.
WITHOUT_RULE = {
    "dense": (Dense(randn(G, D, D), None), "dense"),
    "pooler": (Dense(randn(G, D, D), None, TANH), "dense"),
    "gated": (Block(MLP.norm, Gated(randn(G, D, F), randn(G, D, F), randn(G, F, D), SILU)), "gated mlp"),
    "parallel": (Block(MLP.norm, Parallel((ATTENTION.branch, MLP.branch))), "parallel branches"),
    "grouped": (replace(ATTENTION, branch=replace(ATTENTION.branch, w_k=randn(G, D, 3), w_v=randn(G, D, 3), b_k=None,
                                                  b_v=None, shared_heads=2)), "grouped attention"),
    "rotary": (replace(ATTENTION, branch=replace(ATTENTION.branch, rotation=TURNS)), "rotary attention"),
    "post-norm attention": (replace(ATTENTION, norm_first=False), "post-norm attention"),
    "post-norm mlp": (replace(MLP, norm_first=False), "post-norm mlp"),
    "norm by itself": (layer_norm(G, D), "LayerNorm"),
    "RMSNorm": (replace(MLP, norm=RMS), "RMSNorm"),
    "LayerNorm without variance": (replace(MLP, norm=replace(MLP.norm, scaled=False)), "LayerNorm without variance"),
    "affine norm": (replace(MLP, norm=replace(RMS, scaled=False)), "affine norm"),
    "activation": (replace(MLP, branch=replace(MLP.branch, activation=SILU)), "SiLU"),
}  # fmt: skip
HEADS = {
    "no norm": (None, "no norm before the outputs"),
    "RMSNorm": (Norm(torch.ones(D).double(), None, 1e-5, centred=False), "RMSNorm"),
}


def model_of(*blocks, norm=MLP.norm):
    return by_hand(TOKENS, blocks, Head(norm, "last", randn(generator(3), D, 4), None))


def refused(model, name, monkeypatch, **options):
    """Every method refuses the model, before the network runs or a block begins."""
    spec = zonogpt.embedding_ball(model, [0, 3, 1], [1], 1e-3)
    monkeypatch.setattr(Model, "forward", lambda *_: pytest.fail("the network ran"))
    for method in METHODS:
        with pytest.raises(ModelError, match=f"method {method} has no rule for {name}"):
            zonogpt.verify(model, spec, method=method, on_block=lambda _: pytest.fail("a block began"), **options)
    with pytest.raises(ModelError, match=f"a certificate has no rule for {name}"):
        zonogpt.write_certificate(model, spec, "nowhere", check=False)


@pytest.mark.parametrize("case", WITHOUT_RULE)
def test_blocks_without_a_rule_are_refused_by_name(case, monkeypatch):
    block, name = WITHOUT_RULE[case]
    model = model_of(ATTENTION, block, MLP)
    refused(model, rf"{name} \(block 2 of by hand\)", monkeypatch)
    assert not zonogpt.inspect(model).plans


@pytest.mark.parametrize("case", HEADS)
def test_heads_without_a_rule_are_refused_by_name(case, monkeypatch):
    norm, name = HEADS[case]
    refused(model_of(ATTENTION, MLP, norm=norm), rf"{name} \(head of by hand\)", monkeypatch)


@pytest.mark.parametrize("method", ["E", "A", "F", "M", "D", "ibp"])
@pytest.mark.parametrize("kind", ["attention", "mlp", "LayerNorm", "tanh-GELU"])
def test_a_rule_is_about_real_arithmetic_unless_it_says_otherwise(method, kind, monkeypatch):
    model = model_of(ATTENTION, MLP).converted(torch.device("cpu"), torch.float32)
    model = replace(model, embedding=replace(model.embedding, tokens=TOKENS.float(), positions=TOKENS.float() * 0))
    spec = zonogpt.embedding_ball(model, [0, 3, 1], [1], 1e-9)
    own = METHODS[method].rules
    if method in structured.VARIANTS:
        monkeypatch.setattr(structured, "EXECUTED", own.executed - {kind})
    else:
        less = replace(own, executed=own.executed - {kind})
        monkeypatch.setitem(METHODS, method, replace(METHODS[method], rules=less))
    assert zonogpt.verify(model, spec, method=method).arithmetic == "real"
    with pytest.raises(ModelError, match=f"method {method} has no rule for executions of {kind} in float32"):
        zonogpt.verify(model, spec, method=method, arithmetic="float32")


def test_tables_of_one_family_know_the_same_kinds():
    assert set(BLOCKS) == set(SYMBOLS) >= set(EXECUTIONS)
    assert set(certificate.WRITTEN) == set(certificate.WEIGHTS) <= set(walk.STEPS)
    for method in METHODS.values():
        rules = method.rules
        assert rules.executed <= rules.blocks | rules.norms | {activation.name for activation in rules.activations}


def test_certificates_are_about_what_the_files_of_a_gpt2_can_say():
    """A certificate's digest covers no mask, no choice of what the head reads, and only one epsilon."""
    model = zonogpt.load(image_model())
    spec = zonogpt.image_ball(model, torch.rand(6, 4, generator=generator(5)), 1e-6)
    first, *others = model.blocks
    both_ways = replace(first, branch=replace(first.branch, mask="bidirectional"))
    other_tau = replace(first, norm=replace(first.norm, tau=0.1))
    changed = {
        "bidirectional attention": replace(model, blocks=(both_ways, *others)),
        "a head that reads first": replace(model, head=replace(model.head, read="first")),
        "norms of several epsilons": replace(model, blocks=(other_tau, *others)),
    }
    for what, other in changed.items():
        with pytest.raises(ModelError, match=f"a certificate has no rule for {what}"):
            zonogpt.write_certificate(replace(other, source=None), spec, "nowhere", check=False)
