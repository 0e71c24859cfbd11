"""verify_many: a spec's margins do not depend on the other specs of its batch."""

import random

import pytest
import torch

import zonogpt
from builders import generator, image_model, language_model, text_classifier

METHODS = ("E", "A", "F", "M", "D", "ibp", "crown", "deepz", "covenn")


def specs_of(model, seed, count):
    """Specs of images; or of beginnings of one text, of many lengths, in which one token or another moves: they share
    the tokens before it, and shorter ones are padded."""
    rng, g = random.Random(seed), generator(seed)
    text = [rng.randrange(1, 17) for _ in range(8)]
    for _ in range(count):
        radius, n = 10 ** -rng.uniform(3, 6), rng.randrange(3, 9)
        if isinstance(model.embedding, zonogpt.model.ir.ImageEmbedding):
            yield zonogpt.image_ball(model, torch.rand(model.embedding.image_size, generator=g), radius)
        else:
            yield zonogpt.embedding_ball(model, text[:n], [rng.randrange(n)], radius)


def most_different(model, specs, **options):
    """The largest relative difference between margins in a batch and alone."""
    together = zonogpt.verify_many(model, specs, **options)
    alone = [zonogpt.verify_many(model, [spec], **options)[0] for spec in specs]
    pairs = [(one.margins, many.margins) for one, many in zip(alone, together, strict=True)]
    return max(float(((one - many).abs() / one.abs()).max()) for one, many in pairs)


@pytest.mark.parametrize("make", [text_classifier, language_model, image_model])
@pytest.mark.parametrize("arithmetic", ["real", "float32"])
def test_a_batch_changes_no_margin(make, arithmetic):
    for seed in range(3):
        model = zonogpt.load(make(seed))
        specs = list(specs_of(model, seed, 12))
        assert most_different(model, specs, arithmetic=arithmetic) < 1e-12
        assert most_different(model, specs, arithmetic=arithmetic, dtype="float32") < 1e-6


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_batch_changes_no_margin_of_other_methods(method):
    model = zonogpt.load(text_classifier())
    specs = list(specs_of(model, 0, 6))
    for dtype in ("float64", "float32"):
        assert most_different(model, specs, method=method, dtype=dtype) < 1e-12


def test_padding_changes_no_margin_as_on_a_gpu(monkeypatch):
    """On a GPU, a batch has sequences of different lengths and numbers of moving tokens, and the rest is padding."""
    from zonogpt.methods import ellipsoidal

    monkeypatch.setitem(ellipsoidal.LEAST_MOVING, "cpu", 0.3)
    monkeypatch.setitem(ellipsoidal.TOGETHER, "cpu", 256)
    for seed in range(3):
        model = zonogpt.load(text_classifier(seed))
        specs = list(specs_of(model, seed, 12))
        for arithmetic in ("real", "float32"):
            assert most_different(model, specs, arithmetic=arithmetic) < 1e-10
