"""Specs: boxes, claims, and every mistake a user can make."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import zonogpt
from builders import generator, image_config, image_model, language_model, randn, text_classifier
from zonogpt.errors import SpecError
from zonogpt.spec.inputs import centre_and_radius

IMAGE = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def images():
    return zonogpt.load(image_model())


@pytest.fixture(scope="module")
def texts():
    return zonogpt.load(text_classifier())


def test_clipped_box_is_lopsided_and_exact(images):
    image = IMAGE.clone()
    image[0, 0], image[0, 1] = 0.0, 1.0
    spec = zonogpt.image_ball(images, image, 0.1)
    assert float(spec.input.lower[0, 0]) == 0.0
    assert float(spec.input.upper[0, 1]) == 1.0
    centre, radius = centre_and_radius(spec.input)
    torch.testing.assert_close(centre[0, 0], torch.tensor(0.05, dtype=torch.float64))
    assert (centre - radius <= spec.input.lower).all()
    assert (centre + radius >= spec.input.upper).all()
    assert torch.equal(spec.input.anchor, image.double())


@pytest.mark.parametrize("make", ["image", "text"])
def test_embedded_set_is_centre_plus_generators(images, texts, make):
    if make == "image":
        spec = zonogpt.image_ball(images, IMAGE, 0.2)
        expected = images.embedding
    else:
        spec = zonogpt.embedding_ball(texts, [3, 5, 1, 7], [1, 3], 0.2)
    box = spec.input
    centre, radius = centre_and_radius(box)
    local = box.embed.local_generators(radius)
    eps = 2 * torch.rand(box.lower.shape, generator=generator(1), dtype=torch.float64) - 1
    raw = centre + radius * eps
    if make == "image":
        noise = expected.patches(eps)
        torch.testing.assert_close(box.embed(raw).float(), expected(raw.float()))
    else:
        noise = torch.zeros(4, 12, dtype=torch.float64)
        noise[[1, 3]] = eps
    torch.testing.assert_close(box.embed(raw), box.embed(centre) + torch.einsum("sq,sqd->sd", noise, local))


def test_embedding_ball_moves_only_its_positions(texts):
    spec = zonogpt.embedding_ball(texts, [3, 5, 1, 7], [2], 0.1)
    clean = texts.embedding(torch.tensor([3, 5, 1, 7])).double()
    torch.testing.assert_close(spec.input.embed(spec.input.anchor), clean)
    moved = spec.input.embed(spec.input.upper) - clean
    expected = torch.zeros_like(moved)
    expected[2] = 0.1
    torch.testing.assert_close(moved, expected)
    assert spec.input.anchor.shape == (1, 12)


def test_padding_after_the_last_token_is_cut(texts):
    spec = zonogpt.embedding_ball(texts, [3, 5, 0, 0], [0], 0.1)
    assert spec.input.embed(spec.input.anchor).shape[0] == 2
    with pytest.raises(SpecError, match="padding"):
        zonogpt.embedding_ball(texts, [3, 5, 0, 0], [2], 0.1)


def test_label_defaults_to_the_prediction(images):
    spec = zonogpt.image_ball(images, IMAGE, 0.1)
    assert spec.label == int(zonogpt.logits(images, IMAGE).argmax())


def test_margin_claim_is_true_minus_rival_in_order():
    spec = zonogpt.image_ball(zonogpt.load(image_model()), IMAGE, 0.1, label=1)
    out = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(spec.claim.margins(out), torch.tensor([4.0, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("bias", [True, False])
def test_functionals_are_the_same_claim(images, bias):
    spec = zonogpt.image_ball(images, IMAGE, 0.1, label=2)
    W, b, pooled = randn(generator(1), 5, 3), randn(generator(2), 3) if bias else None, randn(generator(3), 5)
    head = dataclasses.replace(images.head, weight=W, bias=b)
    for s in (spec, spec.with_claim([[1.0, -2.0, 0.5], [0, 0, 1]], [0.3, -1])):
        rows, offset = s.claim.functionals(head)
        out = pooled @ W if b is None else pooled @ W + b
        torch.testing.assert_close(rows @ pooled + offset, s.claim.margins(out))
        assert (s.claim.functional_sizes(head) >= rows.abs()).all()
        narrow = s.claim.functionals(dataclasses.replace(head, weight=W.float(), bias=None if b is None else b.float()))
        assert {part.dtype for part in narrow} == {torch.float64}
        assert {part.dtype for part in narrow.to(torch.float32)} == {torch.float32}


@pytest.mark.parametrize(
    ("image", "word"),
    [
        (torch.rand(5, 4), r"\(5, 4\)"),
        (torch.rand(1, 6, 4), "shape"),
        (torch.rand(6, 4) + 1, r"\[0, 1\]"),
        (torch.rand(6, 4) - 1, r"\[0, 1\]"),
        (torch.full((6, 4), math.nan), r"\[0, 1\]"),
        (torch.zeros(6, 4, dtype=torch.uint8), "255"),
        ("picture.png", "array"),
        (None, "array"),
    ],
)
def test_bad_images(images, image, word):
    with pytest.raises(SpecError, match=word):
        zonogpt.image_ball(images, image, 0.1)


@pytest.mark.parametrize("radius", [-1e-9, math.nan, math.inf, 10**400, "0.1", None, True])
def test_bad_radius(images, texts, radius):
    with pytest.raises(SpecError, match="radius"):
        zonogpt.image_ball(images, IMAGE, radius)
    with pytest.raises(SpecError, match="radius"):
        zonogpt.embedding_ball(texts, [1], [0], radius)


@pytest.mark.parametrize("label", [-1, 3, 1.5, "cat"])
def test_bad_label(images, label):
    with pytest.raises(SpecError, match="label"):
        zonogpt.image_ball(images, IMAGE, 0.1, label=label)


@pytest.mark.parametrize("positions", [[], [-1], [4], [1, 1], [0.5], 3])
def test_bad_positions(texts, positions):
    with pytest.raises(SpecError, match="position"):
        zonogpt.embedding_ball(texts, [3, 5, 1, 7], positions, 0.1)


@pytest.mark.parametrize("ids", [[], [17], [-1], [1.5], [[1, 2], [3, 4]], list(range(9)), "abc", [True]])
def test_bad_ids(texts, ids):
    with pytest.raises(SpecError):
        zonogpt.embedding_ball(texts, ids, [0], 0.1)


def test_wrong_kind_of_input(images, texts):
    with pytest.raises(SpecError, match="images, not texts"):
        zonogpt.embedding_ball(images, [1], [0], 0.1)
    with pytest.raises(SpecError, match="texts, not images"):
        zonogpt.image_ball(texts, IMAGE, 0.1)


def test_bad_norm_clip_and_claim(images):
    with pytest.raises(SpecError, match="norm"):
        zonogpt.image_ball(images, IMAGE, 0.1, norm=3)
    for clip in ((1.0, 0.0), (0.4, 0.6), None, (0,), ("a", "b")):
        with pytest.raises(SpecError, match="clip"):
            zonogpt.image_ball(images, IMAGE, 0.1, clip=clip)
    spec = zonogpt.image_ball(images, IMAGE, 0.1)
    for rows, offset in (
        ([[1.0, 2.0]], [0.0]),
        ([[1.0, 2.0, 3.0]], [0.0, 1.0]),
        ([[math.nan, 0, 0]], [0.0]),
        ("x", 0),
        ([[1], [2, 3]], [0, 0]),
    ):
        with pytest.raises(SpecError, match="claim"):
            spec.with_claim(rows, offset)


def test_numbers_from_numpy_and_torch_are_welcome(images, texts):
    a = zonogpt.image_ball(images, IMAGE.numpy(), np.float32(0.1), label=torch.tensor(1))
    assert a.label == 1
    b = zonogpt.embedding_ball(texts, np.array([3, 5, 1]), np.array([1, 2]), 0.1, label=np.int64(2))
    assert b.input.embed.positions == (1, 2)


def test_the_ball_is_around_the_image_as_given(images):
    """A float64 image is not rounded to the model's float32 first; the box is rounded outward."""
    image = torch.full((6, 4), 0.1, dtype=torch.float64)
    box = zonogpt.image_ball(images, image, 1e-9).input
    assert torch.equal(box.anchor, image)
    assert (box.lower < image - 0.999e-9).all()
    assert (box.upper > image + 0.999e-9).all()
    assert torch.equal(zonogpt.image_ball(images, image, Fraction(0)).input.lower, image)


def test_one_output_keeps_its_sign():
    model = zonogpt.load(image_model(0, image_config(num_labels=1)))
    spec = zonogpt.image_ball(model, IMAGE, 1e-5)
    assert spec.label is None
    assert float(spec.claim.margins(zonogpt.logits(model, IMAGE).double())) > 0
    assert zonogpt.verify(model, spec).status == "verified"
    with pytest.raises(SpecError, match="one output"):
        zonogpt.image_ball(model, IMAGE, 1e-5, label=0)


def test_language_model_claims_are_over_the_vocabulary():
    model = zonogpt.load(language_model())
    spec = zonogpt.embedding_ball(model, [3, 5, 1], [1], 1e-6)
    assert spec.claim.n_rows == 16


def test_a_spec_keeps_its_own_copy_of_what_it_was_given(images):
    """An array that the caller fills again must not change a spec built before."""
    buffer = IMAGE.double().clone()
    for norm in (math.inf, 2.0, 1.0):
        for radius in (0.0, 0.1):
            spec = zonogpt.image_ball(images, buffer, radius, norm=norm)
            before = [t.clone() for t in (spec.input.anchor, spec.input.lower, spec.input.upper)]
            buffer.fill_(0.5)
            for old, new in zip(before, (spec.input.anchor, spec.input.lower, spec.input.upper), strict=True):
                assert torch.equal(old, new)
            buffer.copy_(IMAGE)
    rows, offset = torch.ones(1, 3).double(), torch.ones(1).double()
    claim = zonogpt.image_ball(images, IMAGE, 0.1).with_claim(rows, offset).claim
    rows.zero_()
    offset.zero_()
    assert float(claim.rows.sum()) == 3.0
    assert float(claim.offset) == 1.0
