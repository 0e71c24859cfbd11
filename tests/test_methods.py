"""Whole methods: sound against an attack on every kind of model, exact at radius 0, ordered as expected."""

import math

import pytest
import torch

import zonogpt
from builders import config, image_config, image_model, language_model, text_classifier
from chunked import smallest_chunks
from containment import assert_symbolic_containment
from zonogpt.methods.structured import TABLE, VARIANTS, pool_limit
from zonogpt.search.descent import attack

METHODS = list(zonogpt.METHODS)
IMAGE = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))


def models():
    wide = image_config(n_embd=8, n_head=1, n_layer=3, num_labels=4)
    return {
        "image": zonogpt.load(image_model(1)),
        "deep image": zonogpt.load(image_model(2, wide)),
        "classifier": zonogpt.load(text_classifier(3)),
        "language": zonogpt.load(language_model(4, config(n_embd=6, n_head=2))),
    }


MODELS = models()


def spec_of(name, radius):
    model = MODELS[name]
    if "image" in name:
        return zonogpt.image_ball(model, IMAGE, radius)
    return zonogpt.embedding_ball(model, [3, 5, 1, 12, 7], [1, 3], radius)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("method", METHODS)
def test_attack_never_goes_below_the_certified_margin(method, name):
    model = MODELS[name]
    for radius in (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0):
        spec = spec_of(name, radius)
        result = zonogpt.verify(model, spec, method=method)
        assert result.margins.isfinite().all()
        attacked = attack(model, spec, restarts=3, steps=12).margins
        assert (attacked >= result.margins - 1e-9).all(), f"radius {radius}"


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("method", METHODS)
def test_radius_zero_gives_the_exact_margins(method, name):
    spec = spec_of(name, 0.0)
    result = zonogpt.verify(MODELS[name], spec, method=method)
    exact = spec.claim.margins(MODELS[name].forward(spec.input.embed(spec.input.anchor).float()))
    torch.testing.assert_close(result.margins.float(), exact, rtol=1e-4, atol=1e-4)
    assert result.status == "verified"


@pytest.mark.parametrize("method", list(VARIANTS))
def test_every_block_of_every_variant_is_contained(method):
    """Symbol by symbol along a real propagation, with reduction between the blocks."""
    model = zonogpt.load(image_model(1).double())
    variant = VARIANTS[method]
    z = variant.initial(zonogpt.image_ball(model, IMAGE, 0.02), 20, torch.float64)
    for block in model.blocks:
        from zonogpt.domains.structured import convert, reduce

        z = convert(reduce(z, 20))
        out, _ = variant.step(block, z)
        assert_symbolic_containment(block, z, out)
        z = out


@pytest.mark.parametrize("method", TABLE)
def test_small_pool_only_widens(method):
    model, spec = MODELS["image"], spec_of("image", 2e-3)
    full = zonogpt.verify(model, spec, method=method)
    small = zonogpt.verify(model, spec, method=method, budget_bytes=1)  # the floor of 64 generators
    assert (small.margins <= full.margins + 1e-9).all()
    assert (attack(model, spec, restarts=2, steps=8).margins >= small.margins - 1e-9).all()


@pytest.mark.parametrize("name", ["image", "classifier"])  # heads that read all tokens, and only the last one
@pytest.mark.parametrize("method", TABLE)
def test_chunked_equals_plain(method, name):
    spec = spec_of(name, 1e-3)
    plain = zonogpt.verify(MODELS[name], spec, method=method)
    with smallest_chunks() as rounds:
        small = zonogpt.verify(MODELS[name], spec, method=method)
    assert max(rounds) > 1
    torch.testing.assert_close(small.margins, plain.margins)


def test_pool_limit_counts_float32_unless_told_otherwise():
    assert pool_limit(28, 768, torch.float64, None) == 6241
    assert pool_limit(28, 768, torch.float64, 1 << 29) == 3120
    assert pool_limit(28, 768, torch.float32, 1 << 29) == 6241
    assert pool_limit(28, 768, torch.float32, 1) == 64


def test_table_names_and_order_of_the_paper():
    assert list(TABLE) == ["A", "F", "M", "D", "A-literal", "F-literal", "M-literal", "D-literal"]
    model = zonogpt.load(zonogpt.zoo.path("digits"))
    images, labels = zonogpt.zoo.samples("digits")
    worst = {name: math.inf for name in TABLE}
    for i in range(4):
        spec = zonogpt.image_ball(model, images[i], 2e-4, label=int(labels[i]))
        for name in TABLE:
            worst[name] = min(worst[name], float(zonogpt.verify(model, spec, method=name).margins.min()))
    for suffix in ("", "-literal"):
        assert worst["A" + suffix] > worst["F" + suffix] > worst["M" + suffix]
        assert worst["A" + suffix] > worst["D" + suffix] > worst["M" + suffix]
    for name in "AFMD":
        assert worst[name] > worst[name + "-literal"]


def test_float32_agrees_with_float64():
    model = zonogpt.load(zonogpt.zoo.path("digits"))
    images, _ = zonogpt.zoo.samples("digits")
    spec = zonogpt.image_ball(model, images[3], 2e-4)
    wide = zonogpt.verify(model, spec)
    narrow = zonogpt.verify(model, spec, dtype="float32")
    assert (narrow.dtype, wide.dtype) == ("float32", "float64")
    torch.testing.assert_close(narrow.margins, wide.margins, rtol=1e-3, atol=1e-3)


def test_linear_claim_bounds_the_same_outputs():
    model = MODELS["image"]
    spec = spec_of("image", 1e-3)
    margins = zonogpt.verify(model, spec).margins
    rows = torch.zeros(2, 3)
    rivals = [k for k in range(3) if k != spec.label]
    for row, rival in enumerate(rivals):
        rows[row, spec.label], rows[row, rival] = 1.0, -1.0
    linear = zonogpt.verify(model, spec.with_claim(rows, [0.0, 0.5]))
    torch.testing.assert_close(linear.margins - torch.tensor([0.0, 0.5]).double(), margins)
    assert linear.label is None
