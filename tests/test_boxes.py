"""Input sets that are boxes but not balls: every method's margins are below attained values, the search stays inside,
and a clear error appears wherever a radius is needed."""

import dataclasses
import itertools
import math
import sys

import numpy as np
import pytest
import torch

import zonogpt
from builders import generator, image_model, language_model, text_classifier
from zonogpt.cli.answers.telling import describe
from zonogpt.errors import CertificateError, SpecError
from zonogpt.methods import METHODS
from zonogpt.methods.start import embedded
from zonogpt.search.descent import attack
from zonogpt.search.projection import project, random_starts
from zonogpt.spec.embed import PatchMap, patch_map, token_map
from zonogpt.spec.inputs import Ball, Box, centre_and_noise
from zonogpt.spec.spec import box_spec
from zonogpt.support.tensors import moved
from zonogpt.verification.witness import save_witness

IDS = [3, 5, 1, 12, 7]
IMAGES, TEXTS = zonogpt.load(image_model(1)), zonogpt.load(text_classifier(3))
IMAGE = torch.rand(6, 4, generator=generator(5), dtype=torch.float64)


def image_box(size=2e-3, model=IMAGES):
    """A lopsided box: every pixel has its own distances down and up, and some cannot move."""
    down, up = (size * torch.rand(6, 4, generator=generator(seed), dtype=torch.float64) for seed in (1, 2))
    down[0], up[:, 1], down[:, 1] = 0.0, 0.0, 0.0
    return Box(IMAGE - down, IMAGE + up, IMAGE, patch_map(model))


def text_box(size=2e-3, model=TEXTS, at=(1, 3)):
    """A box in which the last position moves; the others stay, or move one coordinate in one direction."""
    embed = token_map(model, torch.tensor(IDS), at)
    anchor = model.embedding.tokens[torch.tensor(IDS)[list(at)]].double()
    up = torch.zeros_like(anchor)
    up[-1] = size * torch.rand(anchor.shape[1], generator=generator(3), dtype=torch.float64)
    return Box(anchor - up.flip(1), anchor + up, anchor, embed)


CASES = {
    "images": (IMAGES, image_box),
    "texts": (TEXTS, text_box),
    "language model": (
        model := zonogpt.load(language_model(2)),
        lambda size=2e-3: text_box(size, model),
    ),
}


def points_of(box, n=300):
    """Corners, random points and faces of the box, as raw inputs (n, ...)."""
    g = generator(7)
    share = torch.rand(n, *box.anchor.shape, generator=g, dtype=torch.float64)
    share[: n // 2] = share[: n // 2].round()  # corners
    share[n // 2 : 2 * n // 3] = (2 * share[n // 2 : 2 * n // 3] - 0.5).clamp(0, 1)
    return box.lower + share * (box.upper - box.lower)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_margins_are_below_everything_that_is_attained(name, method):
    model, make = CASES[name]
    wide = model.converted(model.device, torch.float64)
    for size in (1e-10, 2e-3, 0.05):
        if method in ("crown", "covenn", "deepz") and size == 0.05:
            continue
        spec = box_spec(model, make(size))
        result = zonogpt.verify(model, spec, method=method)
        attained = spec.claim.margins(wide.forward(spec.input.embed(points_of(spec.input)))).amin(0)
        found = zonogpt.attack(model, spec, steps=15)
        assert (result.margins <= torch.minimum(attained, found.margins)).all()
        assert result.radius is None
        assert result.status == "verified" or size > 1e-10
        assert (result.status == "verified") <= (found.lowest > 0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_executions_in_float32_are_within_the_margins(name, dtype):
    model, make = CASES[name]
    spec = box_spec(model, make(1e-3))
    points = points_of(spec.input)
    points = torch.minimum(torch.maximum(points.float().double(), spec.input.lower), spec.input.upper).float()
    points = points[((points.double() >= spec.input.lower) & (points.double() <= spec.input.upper)).flatten(1).all(1)]
    narrow = model.converted(model.device, torch.float32)
    executed = spec.claim.margins(narrow.forward(spec.input.embed(points.double()).float()).double())
    for method in ("E", "A", "ibp"):
        result = zonogpt.verify(model, spec, method=method, arithmetic="float32", dtype=dtype)
        assert len(points) == 0 or (executed.amin(0) >= result.margins).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_the_box_of_a_ball_has_the_margins_of_the_ball(name, method):
    """Bit for bit: an l_inf ball is the box it is clipped to."""
    model, make = CASES[name]
    ids, at = make().embed.ids, make().embed.positions
    spec = zonogpt.image_ball(model, IMAGE, 1e-3) if ids is None else zonogpt.embedding_ball(model, ids, at, 1e-3)
    ball = spec.input
    box = Box(ball.lower, ball.upper, ball.anchor, ball.embed)
    mine = box_spec(model, box)
    assert torch.equal(
        zonogpt.verify(model, mine, method=method).margins,
        zonogpt.verify(model, spec, method=method).margins,
    )


@pytest.mark.parametrize("name", CASES)
def test_corners_one_by_one(name):
    """All corners of a box of few moving numbers; the attack finds the lowest of them, or lower."""
    model, make = CASES[name]
    box = make(0.05)
    moving = (box.upper > box.lower).flatten().nonzero().flatten()[:8]
    lower, upper = box.anchor.clone(), box.anchor.clone()
    lower.view(-1)[moving], upper.view(-1)[moving] = box.lower.view(-1)[moving], box.upper.view(-1)[moving]
    spec = box_spec(model, dataclasses.replace(box, lower=lower, upper=upper))
    corners = lower.expand(2 ** len(moving), *lower.shape).clone().flatten(1)
    for k, bits in enumerate(itertools.product((False, True), repeat=len(moving))):
        corners[k, moving] = torch.where(torch.tensor(bits), upper.flatten()[moving], lower.flatten()[moving])
    wide = model.converted(model.device, torch.float64)
    attained = spec.claim.margins(wide.forward(spec.input.embed(corners.view(-1, *lower.shape))))
    found = zonogpt.attack(model, spec, restarts=6, steps=30)
    assert found.lowest <= float(attained.min()) + 1e-9
    for method in METHODS:
        assert (zonogpt.verify(model, spec, method=method).margins <= attained.amin(0)).all()


@pytest.mark.parametrize("name", CASES)
def test_the_search_stays_inside(name):
    model, make = CASES[name]
    box = make(0.3)
    starts = random_starts(box, 20, generator(0))
    assert ((starts == box.lower) | (starts == box.upper)).all()  # corners
    far = project(box, box.anchor + torch.randn(20, *box.anchor.shape, generator=generator(1), dtype=torch.float64))
    found = zonogpt.attack(model, box_spec(model, box), steps=10)
    for points in (starts, far, found.input):
        assert ((points >= box.lower) & (points <= box.upper)).all()
    inside = points_of(box)
    torch.testing.assert_close(project(box, inside), inside, rtol=0, atol=1e-15)


def test_a_counterexample_in_a_box(tmp_path):
    spec = box_spec(IMAGES, image_box(0.8))
    assert zonogpt.verify(IMAGES, spec).status == "unknown"
    result = zonogpt.verify(IMAGES, spec, attack=True)
    assert result.status == "falsified"
    assert "an input of the box breaks the claim" in result.reason
    assert ((result.counterexample >= spec.input.lower) & (result.counterexample <= spec.input.upper)).all()
    assert int(zonogpt.logits(IMAGES, result.counterexample.clamp(0, 1)).argmax()) != spec.label
    save_witness(spec, result, tmp_path / "w.npz")
    assert not {"radius", "norm"} & set(np.load(tmp_path / "w.npz").files)


def test_what_a_box_has_no_radius_for(tmp_path):
    for model, make in CASES.values():
        spec = box_spec(model, make(1.0))
        assert spec.radius is None
        with pytest.raises(SpecError, match="radius of a ball"):
            spec.shrunk(1e-3)
        with pytest.raises(SpecError, match="radius of a ball"):
            zonogpt.certified_radius(model, lambda radius, spec=spec: spec, 1e-6, 1.0)
        with pytest.raises(CertificateError, match="a box without a radius"):
            zonogpt.write_certificate(model, spec, tmp_path / "c")
        result = zonogpt.verify(model, spec)  # asked for a hint, as by default
        assert (result.status, result.radius, result.certified_radius) == ("unknown", None, None)
        assert zonogpt.Result.from_json(result.to_json()) == result
        assert ", a box, method E" in describe(result)


def test_a_box_and_a_ball_in_one_batch():
    ball, box = zonogpt.embedding_ball(TEXTS, IDS, [3], 1e-3), box_spec(TEXTS, text_box(1e-3))
    together = zonogpt.verify_many(TEXTS, [ball, box])
    for spec, result in zip((ball, box), together, strict=True):
        torch.testing.assert_close(result.margins, zonogpt.verify(TEXTS, spec).margins, rtol=1e-12, atol=0)
    assert [result.radius for result in together] == [1e-3, None]


def test_tokens_before_the_first_that_moves():
    box = text_box()
    assert box.first_moving() == 3  # position 1 is allowed to move, but does not in this box
    still = dataclasses.replace(box, lower=box.anchor, upper=box.anchor)
    assert still.first_moving() <= 1
    whole = dataclasses.replace(box, lower=box.lower - 1e-3)
    assert whole.first_moving() == 1
    assert zonogpt.verify(TEXTS, box_spec(TEXTS, still)).status == "verified"
    pixels = image_box()
    assert pixels.first_moving() == 0
    late = torch.where(torch.arange(6)[:, None] >= 4, pixels.upper, pixels.anchor)
    assert dataclasses.replace(pixels, lower=pixels.anchor, upper=late).first_moving() == 4


def test_only_balls_have_norm_and_radius():
    box, ball = image_box(), zonogpt.image_ball(IMAGES, IMAGE, 0.1, norm=2).input
    assert (box.ball, ball.ball) == (None, ball)
    assert (box.p, ball.p) == (math.inf, 2.0)
    assert not hasattr(box, "norm")
    assert not hasattr(box, "radius")
    assert isinstance(ball, Ball)
    centre, scale, p = centre_and_noise(box)
    assert p == math.inf
    assert ((centre - scale <= box.lower) & (centre + scale >= box.upper)).all()


def test_bad_boxes():
    box = image_box()
    other = zonogpt.load(image_model(8))
    for wrong, word in (
        (dataclasses.replace(box, lower=box.upper, upper=box.lower), "lower <= anchor <= upper"),
        (dataclasses.replace(box, anchor=box.upper + 1), "lower <= anchor <= upper"),
        (dataclasses.replace(box, lower=box.lower * math.nan), "lower <= anchor <= upper"),
        (dataclasses.replace(box, lower=box.lower[:3]), r"\(6, 4\)"),
        (dataclasses.replace(box, lower=box.lower.float()), "float64"),
        (dataclasses.replace(box, embed=patch_map(other)), "another model"),
    ):
        with pytest.raises(SpecError, match=word):
            box_spec(IMAGES, wrong)
    text = text_box()
    with pytest.raises(SpecError, match="tokens embed to"):
        box_spec(
            TEXTS, dataclasses.replace(text, anchor=text.anchor.flip(0), lower=text.anchor - 9, upper=text.anchor + 9)
        )
    with pytest.raises(SpecError, match="another model"):
        box_spec(IMAGES, text)
    with pytest.raises(SpecError, match="another model"):
        box_spec(TEXTS, box)
    with pytest.raises(SpecError, match="another model"):
        zonogpt.verify(other, box_spec(IMAGES, box))
    with pytest.raises(SpecError, match="images, not texts"):
        token_map(IMAGES, torch.tensor(IDS), (1,))
    with pytest.raises(SpecError, match="texts, not images"):
        patch_map(TEXTS)


def test_equal_boxes_are_equal():
    assert image_box() == image_box()
    assert image_box() != image_box(3e-3)
    assert text_box() == moved(text_box(), torch.device("cpu"), torch.float64)
    ball = zonogpt.image_ball(IMAGES, IMAGE, 0.1).input
    assert ball != Box(ball.lower, ball.upper, ball.anchor, ball.embed)


def test_positions_given_twice_are_refused():
    """Both embeddings would be added at one token, and only one of them bounded."""
    model = zonogpt.load(text_classifier(1))
    ids = torch.tensor([3, 5, 7])
    for positions in ((1, 1), (), (3,), (-1,)):
        with pytest.raises(SpecError, match="positions must be distinct"):
            token_map(model, ids, positions)


@pytest.mark.parametrize("norm", [2.0, 1.0, math.inf])
def test_radii_that_overflow_when_they_are_rounded_are_refused(norm):
    """A projection with zeros: infinity times zero is no number, and must not be taken for a pixel that stays."""
    net = image_model(1)
    with torch.no_grad():
        net.projection.weight[:, 0] = 0.0
    model, image = zonogpt.load(net), torch.full((6, 4), 0.5)
    with pytest.raises(SpecError, match="radius must lie in"):
        zonogpt.image_ball(model, image, sys.float_info.max, norm=norm)
    for radius in (math.nan, math.inf, sys.float_info.max):
        ball = zonogpt.image_ball(model, image, 1e-3, norm=norm).input
        with pytest.raises(SpecError, match="radius must lie in"):
            box_spec(model, dataclasses.replace(ball, radius=radius))
    assert zonogpt.verify(model, zonogpt.image_ball(model, image, 1e300, norm=norm)).status != "verified"


def test_generators_that_are_no_numbers_are_not_left_out(monkeypatch):
    spec = zonogpt.image_ball(zonogpt.load(image_model(1)), torch.full((6, 4), 0.5), 1e-3)
    monkeypatch.setattr(PatchMap, "local_generators", lambda self, radius: torch.full((4, 6, 8), math.nan).double())
    symbols = embedded(spec.input, "real")
    assert len(symbols.generators) == 24
    assert symbols.generators.isnan().all()


@pytest.mark.parametrize("method", ["E", "A", "ibp", "deepz"])
@pytest.mark.parametrize("norm", [2.0, 1.0])
def test_balls_of_which_a_token_cannot_move(method, norm):
    model = zonogpt.load(text_classifier(1))
    ball = zonogpt.embedding_ball(model, [3, 5, 7], [0, 1], 0.05, norm=norm).input
    frozen = dataclasses.replace(ball, lower=ball.lower.clone(), upper=ball.upper.clone())
    frozen.lower[0], frozen.upper[0] = ball.anchor[0], ball.anchor[0]
    whole, part = (zonogpt.verify(model, box_spec(model, box), method=method) for box in (ball, frozen))
    assert (part.margins >= whole.margins - 1e-9).all()
    found = attack(model, box_spec(model, frozen))
    assert (found.margins >= part.margins - 1e-9).all()
