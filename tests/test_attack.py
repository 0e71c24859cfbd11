"""The gradient search: inside the set to the last bit, as good as brute force, repeatable, and right about rows."""

import dataclasses
import math
from fractions import Fraction

import pytest
import torch

import zonogpt
from builders import config, image_model, language_model, text_classifier
from zonogpt.search.descent import attack
from zonogpt.search.projection import onto_l1_ball, project, random_starts
from zonogpt.spec.claims import LinearClaim
from zonogpt.spec.inputs import Ball

NORMS = (math.inf, 2.0, 1.0)
IMAGE = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))
IMAGE[0] = 0.0  # at the edge of the clip
MODEL = zonogpt.load(image_model(1))
TEXT = zonogpt.load(text_classifier(3))


def exactly_inside(spec, raw):
    """Whether `raw` lies within the box and the true ball around the anchor, in rational arithmetic."""
    if not bool(((raw >= spec.input.lower) & (raw <= spec.input.upper)).all()):
        return False
    pairs = zip(raw.flatten().tolist(), spec.input.anchor.flatten().tolist(), strict=True)
    moves = [abs(Fraction(x) - Fraction(a)) for x, a in pairs]
    radius = Fraction(spec.radius)
    if spec.input.norm == math.inf:
        return max(moves) <= radius
    return sum(moves) <= radius if spec.input.norm == 1 else sum(m * m for m in moves) <= radius * radius


def specs(radius, norm):
    yield MODEL, zonogpt.image_ball(MODEL, IMAGE, radius, norm=norm)
    yield TEXT, zonogpt.embedding_ball(TEXT, [3, 5, 1, 12, 7], [1, 3], radius, norm=norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.0, 1e-14, 1e-7, 1e-3, 0.3, 5.0])
def test_result_is_exactly_in_the_set_and_attains_its_margin(norm, radius):
    for model, spec in specs(radius, norm):
        found = attack(model, spec, restarts=3, steps=8)
        assert found.input.shape == spec.input.anchor.shape
        assert (found.margins.dtype, found.margins.device.type) == (torch.float64, "cpu")
        assert exactly_inside(spec, found.input)
        wide = zonogpt.load(image_model(1).double()) if model is MODEL else zonogpt.load(text_classifier(3).double())
        attained = spec.claim.margins(wide.forward(spec.input.embed(found.input))).min()
        assert float(attained) == pytest.approx(found.lowest, abs=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_projection_of_anything_is_exactly_in_the_set(norm):
    g = torch.Generator().manual_seed(0)
    for _, spec in specs(0.37, norm):
        points = spec.input.anchor + 3 * torch.randn(40, *spec.input.anchor.shape, generator=g, dtype=torch.float64)
        inside = project(spec.input, points)
        assert all(exactly_inside(spec, point) for point in inside)
        torch.testing.assert_close(project(spec.input, inside), inside)  # what is inside stays


def test_l1_projection_is_the_nearest_point():
    moves = torch.tensor([[3.0, -1.0, 0.5], [0.1, 0.2, -0.1]], dtype=torch.float64)
    expected = torch.tensor([[2.0, 0.0, 0.0], [0.1, 0.2, -0.1]], dtype=torch.float64)
    torch.testing.assert_close(onto_l1_ball(moves, 2.0), expected)


@pytest.mark.parametrize("norm", NORMS)
def test_not_worse_than_random_search_and_not_better_than_a_proof(norm):
    g = torch.Generator().manual_seed(1)
    for model, spec in specs(0.05, norm):
        found = attack(model, spec)
        noise = torch.randn(2000, *spec.input.anchor.shape, generator=g, dtype=torch.float64)
        points = project(spec.input, spec.input.anchor + (noise.sign() if norm == math.inf else noise))
        outputs = model.forward(spec.input.embed(points).to(model.dtype)).double()
        assert (found.margins <= spec.claim.margins(outputs).amin(0) + 1e-5).all()
        assert (found.margins >= zonogpt.verify(model, spec).margins - 1e-9).all()


def test_radius_zero_gives_the_clean_margins():
    for model, spec in specs(0.0, math.inf):
        clean = spec.claim.margins(model.forward(spec.input.embed(spec.input.anchor).to(model.dtype))).double()
        found = attack(model, spec, restarts=2, steps=3)
        torch.testing.assert_close(found.margins, clean, rtol=1e-4, atol=1e-4)
        assert torch.equal(found.input, spec.input.anchor)


@pytest.mark.parametrize(("norm", "radius"), [(math.inf, 0.3), (2.0, 2.0), (1.0, 20.0)])
def test_breaks_a_digit_and_the_model_agrees(norm, radius):
    model = zonogpt.load(zonogpt.zoo.path("digits"))
    images, labels = zonogpt.zoo.samples("digits")
    found = attack(model, zonogpt.image_ball(model, images[0], radius, int(labels[0]), norm=norm), steps=15)
    assert found.broken
    assert int(zonogpt.logits(model, found.input).argmax()) != int(labels[0])


def test_linear_model_gets_its_exact_minimum():
    """A weighted sum of the pixels has a known lowest value in each ball: minus the dual norm of the weights."""
    spec = zonogpt.image_ball(MODEL, IMAGE, 0.1, clip=(-1.0, 2.0))

    claim = LinearClaim(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))

    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    class Sum(zonogpt.Model):  # a stand-in with the parts of Model that the search uses
        blocks, head, n_outputs, width, n_heads, hidden = (), MODEL.head, 1, 1, 1, 0
        dtype, device = torch.float64, torch.device("cpu")

        def __init__(self):
            pass

        def converted(self, device, dtype):
            return self

        def forward(self, x):
            return x

    class Weighted:  # the parts of an EmbedMap that the search uses
        n_tokens = 1

        def __call__(self, raw):
            return (raw * weight).sum((-1, -2))[..., None]

    for norm, dual in ((math.inf, weight.abs().sum()), (2.0, weight.norm()), (1.0, weight.abs().max())):
        ball = Ball(spec.input.lower, spec.input.upper, spec.input.anchor, Weighted(), 0.1, norm)
        planted = dataclasses.replace(spec, input=ball, claim=claim)
        lowest = (spec.input.anchor * weight).sum() - 0.1 * dual
        assert attack(Sum(), planted, steps=60).lowest == pytest.approx(float(lowest), abs=2e-3)


def test_many_rows_and_small_memory(monkeypatch):
    """Of 199 rivals 64 get restarts, all are looked at; small chunks only cost time."""
    import zonogpt.search.descent as module

    model = zonogpt.load(language_model(4, config(vocab_size=200)))
    spec = zonogpt.embedding_ball(model, [3, 5, 1], [2], 0.05)
    found = attack(model, spec, restarts=2, steps=5)
    assert found.margins.shape == (199,)
    assert found.margins.isfinite().all()
    monkeypatch.setattr(module, "MEMORY_BYTES", 1)
    again = attack(model, spec, restarts=2, steps=5)
    assert again.margins.shape == (199,)
    assert again.lowest == pytest.approx(found.lowest, abs=0.05)


def test_same_seed_same_answer_and_float32():
    model, spec = next(specs(0.1, 2.0))
    a, b = (attack(model, spec, seed=7) for _ in range(2))
    assert torch.equal(a.margins, b.margins)
    assert torch.equal(a.input, b.input)
    starts = [random_starts(spec.input, 3, torch.Generator().manual_seed(seed)) for seed in (7, 8)]
    assert not torch.equal(*starts)
    narrow = attack(model, spec, seed=7, dtype=torch.float32)
    assert narrow.lowest == pytest.approx(a.lowest, abs=1e-3)
    assert exactly_inside(spec, narrow.input)


@pytest.mark.parametrize("options", [{"restarts": 0}, {"steps": 0}, {"steps": 2.5}, {"restarts": True}])
def test_bad_options(options):
    with pytest.raises(zonogpt.OptionError):
        attack(MODEL, zonogpt.image_ball(MODEL, IMAGE, 0.1), **options)


@pytest.mark.parametrize("norm", NORMS)
def test_a_search_tells_how_much_of_it_is_done(norm):
    """From the first step to the last, in all norms, however many points move together."""
    told = []
    attack(MODEL, zonogpt.image_ball(MODEL, IMAGE, 1e-3, norm=norm), restarts=3, steps=4, on_share=told.append)
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] == 1.0
