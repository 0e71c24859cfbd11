"""inspect(): the paper's numbers, and predictions that hold."""

import math

import pytest
import torch
from transformers import GPT2LMHeadModel

import zonogpt
from builders import config, image_config, language_model
from zonogpt.domains.structured import generator_limit
from zonogpt.errors import OptionError
from zonogpt.inspection import dense_bytes, structured_bytes
from zonogpt.methods.structured import VARIANTS
from zonogpt.methods.tape import forward
from zonogpt.tensors import map_tensors, tensors_in

GIB = 2**30


def wide_image_model(width, heads):
    cfg = image_config(n_embd=width, n_head=heads, n_layer=1, n_positions=28, num_labels=10)
    cfg.image_size, cfg.patch_size = (28, 28), (1, 28)
    return zonogpt.load(zonogpt.GPT2ForImageClassification(cfg))


@pytest.mark.parametrize(("width", "heads", "mnist", "sst"), [(768, 12, 6241, 5461), (1024, 16, 4681, 4096)])
def test_pool_sizes_of_the_appendix(width, heads, mnist, sst):
    assert zonogpt.inspect(wide_image_model(width, heads)).generator_limit == mnist
    text = GPT2LMHeadModel(config(n_embd=width, n_head=heads, n_layer=1, n_positions=48))
    assert zonogpt.inspect(zonogpt.load(text), tokens=32).generator_limit == sst


def test_storage_example_of_the_paper():
    assert structured_bytes(512, 768) / GIB == 2.25
    assert dense_bytes(512, 768) / GIB == 1152
    text = zonogpt.load(GPT2LMHeadModel(config(n_embd=768, n_head=12, n_layer=1, n_positions=512)))
    found = zonogpt.inspect(text)
    assert (found.structured_input_bytes / GIB, found.dense_input_bytes / GIB) == (2.25, 1152)


def test_bundled_model():
    found = zonogpt.inspect(zonogpt.load(zonogpt.zoo.path("digits")))
    assert (found.tokens, found.width, found.n_layers, found.inputs) == (7, 64, 2, 784)
    assert found.n_parameters == 108_426
    assert found.n_parameters * 4 < 2_000_000
    assert set(found.plans) == set(zonogpt.METHODS)


@pytest.mark.parametrize("method", list(VARIANTS))
@pytest.mark.parametrize("budget", [None, 300_000])
def test_predicted_generator_counts_are_what_happens(method, budget):
    """The plan's counts against a propagation in which every pixel moves."""
    from zonogpt.domains.structured import reduce, settled
    from zonogpt.methods.structured import pool_limit

    model = map_tensors(zonogpt.load(zonogpt.zoo.path("digits")), lambda t: t.double())
    plan = zonogpt.inspect(model, budget_bytes=budget).plans[method]
    limit = pool_limit(7, 64, torch.float64, budget)
    assert plan.limit == limit
    variant = VARIANTS[method]
    z = variant.initial(zonogpt.image_ball(model, torch.full((28, 28), 0.5), 1e-4), limit, torch.float64)
    most = z.q
    for block in model.blocks:
        z = reduce(variant.step(block, settled(z))[0], limit)
        most = max(most, z.q)
    assert (z.m, most) == (plan.shared, plan.local)


def test_predicted_tape_of_method_e_is_what_a_run_leaves_behind():
    model = map_tensors(zonogpt.load(zonogpt.zoo.path("digits")), lambda t: t.double())
    spec = zonogpt.image_ball(model, torch.full((28, 28), 0.5), 1e-4)
    with torch.no_grad():
        tape = forward(model, [spec], torch.float64, 1 << 28, None)
    weights = {t.untyped_storage().data_ptr() for t in tensors_in(model)}
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_in(tape)}
    left = sum(size for at, size in memory.items() if at not in weights)
    plan = zonogpt.inspect(model).plans["E"]
    assert math.isclose(left, plan.tape_bytes, rel_tol=0.05)
    assert plan.peak_bytes > plan.tape_bytes


def test_depth_does_not_raise_the_prediction_once_the_pool_binds():
    peaks = set()
    for layers in (2, 4, 12):
        cfg = image_config(n_embd=64, n_head=4, n_layer=layers, n_positions=28)
        cfg.image_size, cfg.patch_size = (28, 28), (1, 28)
        model = zonogpt.load(zonogpt.GPT2ForImageClassification(cfg))
        peaks.add(zonogpt.inspect(model, budget_bytes=1 << 24).plans["A"].peak_bytes)
    assert len(peaks) == 1


def test_tied_head_counts_once():
    tied, untied = (zonogpt.load(language_model(cfg=config(tie_word_embeddings=t))) for t in (True, False))
    assert zonogpt.inspect(untied).n_parameters - zonogpt.inspect(tied).n_parameters == 17 * 12


def test_bad_options():
    images, text = wide_image_model(64, 4), zonogpt.load(language_model())
    for model, options in (
        (images, {"tokens": 3}), (text, {"tokens": 9}), (text, {"tokens": 0}), (text, {"positions": 9}),
        (text, {"dtype": "int8"}),
        (text, {"budget_bytes": 0}),
    ):  # fmt: skip
        with pytest.raises(OptionError):
            zonogpt.inspect(model, **options)
    assert zonogpt.inspect(text, tokens=4, positions=2).inputs == 24
    assert generator_limit(1, 1, 1) == 64
