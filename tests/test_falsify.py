"""Counterexamples: in the ball exactly, replayed by Hugging Face's model, saved whole; and never a proof beside one."""

import dataclasses
import importlib
import math
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

import zonogpt
from builders import config, image_model, language_model, text_classifier
from liar import let_method_e_claim_anything
from planted import NAMES, cases
from program import zono
from zonogpt.model.replay import HuggingFaceModel
from zonogpt.search.falsify import falsify, replay, representable
from zonogpt.search.projection import project
from zonogpt.support.tensors import map_tensors

NORMS = (math.inf, 2.0, 1.0)
IMAGE = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))
DIGITS = "zoo:digits"


def exactly_inside(spec, raw):
    pairs = zip(raw.flatten().tolist(), spec.input.anchor.flatten().tolist(), strict=True)
    moves = [abs(Fraction(x) - Fraction(a)) for x, a in pairs]
    radius = Fraction(spec.radius)
    low, high = spec.input.lower, spec.input.upper
    if not bool(((raw >= low) & (raw <= high)).all()):
        return False
    if spec.input.norm == math.inf:
        return max(moves) <= radius
    return sum(moves) <= radius if spec.input.norm == 1 else sum(m * m for m in moves) <= radius * radius


def models():
    yield zonogpt.load(image_model(1)), lambda m, r, p, y=None: zonogpt.image_ball(m, IMAGE, r, y, norm=p)
    for hf in (text_classifier(3), language_model(4)):
        yield (
            zonogpt.load(hf),
            lambda m, r, p, y=None: zonogpt.embedding_ball(m, [3, 5, 1, 12, 7], [1, 3], r, y, norm=p),
        )


@pytest.mark.parametrize("norm", NORMS)
def test_replay_is_what_the_ir_computes(norm):
    """The judge shares no code with the IR: same outputs from both, on perturbed images and embeddings."""
    for model, ball in models():
        spec = ball(model, 0.3, norm)
        judge = model.source
        wide = map_tensors(model, lambda t: t.double())
        noise = torch.randn(4, *spec.input.anchor.shape, generator=torch.Generator().manual_seed(1)).double()
        for raw in project(spec.input, spec.input.anchor + noise):
            ours = wide.forward(spec.input.embed(raw))
            for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
                if spec.input.embed.ids is not None:
                    theirs = judge.on_embeddings(spec.input.embed.ids, spec.input.embed.positions, raw, dtype)
                else:
                    theirs = judge.on_image(raw, dtype)
                torch.testing.assert_close(theirs, ours, rtol=tolerance, atol=tolerance)


def test_replay_reads_a_directory_as_load_does(tmp_path):
    text_classifier(3).save_pretrained(tmp_path)
    model = zonogpt.load(tmp_path)
    ids, spec = [3, 5, 1, 12], zonogpt.embedding_ball(model, [3, 5, 1, 12, 0, 0], [1], 0.1)  # two are padding
    output = model.source.on_embeddings(
        spec.input.embed.ids[: spec.input.n_tokens], (1,), spec.input.anchor, torch.float64
    )
    torch.testing.assert_close(output.float(), zonogpt.logits(model, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [1e-9, 1e-6, 1e-3, 0.3])
def test_representable_inputs_stay_exactly_inside(norm, radius):
    g = torch.Generator().manual_seed(2)
    for model, ball in models():
        for anchor_is_float32 in (True, False):
            spec = ball(model, radius, norm)
            if not anchor_is_float32 and spec.input.embed.ids is None:
                spec = zonogpt.image_ball(model, torch.rand(6, 4, generator=g, dtype=torch.float64), radius, norm=norm)
            noise = torch.randn(20, *spec.input.anchor.shape, generator=g, dtype=torch.float64)
            for raw in project(spec.input, spec.input.anchor + radius * noise):
                assert exactly_inside(spec, raw)
                snapped = representable(spec.input, raw)
                assert exactly_inside(spec, snapped)
                assert (snapped - raw).abs().max() <= 1e-6
                if anchor_is_float32:
                    assert torch.equal(snapped.float().double(), snapped)


@pytest.mark.parametrize("norm", NORMS)
def test_falsified_is_found_replayed_and_inside(norm):
    for model, ball in models():
        small = ball(model, 1e-6, norm)
        assert zonogpt.verify(model, small, attack=True).status == "verified"
        spec = ball(model, 8.0, norm)
        result = zonogpt.verify(model, spec, attack=True)
        assert result.status == "falsified"
        assert exactly_inside(spec, result.counterexample)
        assert result.counterexample.shape == spec.input.anchor.shape
        assert set(result.replayed) == {"float32", "float64"}
        assert max(result.replayed.values()) <= 0
        assert result.answer != result.label
        wide = map_tensors(model, lambda t: t.double())
        assert int(wide.forward(spec.input.embed(result.counterexample)).argmax()) == result.answer
        again = zonogpt.verify(model, spec, attack=True)
        assert torch.equal(again.counterexample, result.counterexample)  # the same seed
        assert zonogpt.verify(model, spec, attack=True, seed=9).status == "falsified"
        assert zonogpt.Result.from_json(result.to_json()).replayed == result.replayed


class Stubborn(HuggingFaceModel):
    """A judge that answers IMAGE as the model does, and everything else with the same label, by a margin of 1."""

    def __init__(self, net, label):
        super().__init__(net)
        self.label = label

    def on_image(self, image, dtype):
        if torch.equal(image.to(IMAGE), IMAGE):
            return super().on_image(image, dtype)
        return torch.nn.functional.one_hot(torch.tensor(self.label), 3).double()


def test_what_does_not_replay_is_unknown():
    """With an original of other weights, or with none, an input that breaks the claim in the IR does not count."""
    model = zonogpt.load(image_model(1))
    spec = zonogpt.image_ball(model, IMAGE, 8.0, clip=(-9.0, 9.0))
    assert zonogpt.verify(model, spec, attack=True).status == "falsified"
    for source, said in (
        (Stubborn(image_model(1), spec.label), "Hugging Face's model has 1 in float32"),
        (None, "no original"),
    ):
        result = zonogpt.verify(dataclasses.replace(model, source=source), spec, attack=True)
        assert result.status == "unknown"
        assert result.counterexample is None
        assert said in result.reason
    wrong = zonogpt.image_ball(model, IMAGE, 0.1, label=(spec.label + 1) % 3)
    lone = zonogpt.verify(dataclasses.replace(model, source=None), wrong)
    assert (lone.status, lone.counterexample) == ("unknown", None)


def test_a_broken_input_that_is_not_replayed_forbids_a_proof(monkeypatch):
    """If bounds ever contradict an input that was seen, the verdict is not theirs."""
    model = zonogpt.load(image_model(1))
    spec = zonogpt.image_ball(model, IMAGE, 8.0, clip=(-9.0, 9.0))
    let_method_e_claim_anything(monkeypatch, 2)
    assert zonogpt.verify(model, spec).status == "verified"  # by a method that lies
    blind = dataclasses.replace(model, source=None)
    assert zonogpt.verify(blind, spec, attack=True).status == "unknown"
    assert zonogpt.verify(model, spec, attack=True).status == "falsified"


def test_a_break_that_rounding_undoes_is_remembered(monkeypatch):
    """An input breaks the claim, its float32 neighbour does not: no counterexample, and no proof either."""
    module = importlib.import_module("zonogpt.search.falsify")
    model = zonogpt.load(image_model(1))
    spec = zonogpt.image_ball(model, IMAGE, 8.0, clip=(-9.0, 9.0))
    monkeypatch.setattr(module, "representable", lambda box, raw: box.anchor)
    found = falsify(map_tensors(model, lambda t: t.double()), spec, model.source)
    assert found.counterexample is None
    assert found.lowest < 0
    let_method_e_claim_anything(monkeypatch, 2)
    assert zonogpt.verify(model, spec, attack=True).status == "unknown"


def test_near_ties_are_not_falsified_by_rounding():
    """Claims whose margin at the anchor is within 1e-9 of zero: falsified only where float32 and float64 agree."""
    model = zonogpt.load(image_model(1).double())
    spec = zonogpt.image_ball(model, IMAGE, 0.0)
    judge = model.source
    output = model.forward(spec.input.embed(spec.input.anchor))
    narrow = judge.on_image(spec.input.anchor, torch.float32)
    verdicts = []
    for k in range(3):
        for sign in (1.0, -1.0):
            for gap in (1e-9, -1e-9):
                rows = sign * torch.eye(3, dtype=torch.float64)[k : k + 1]
                tie = spec.with_claim(rows, [gap - sign * float(output[k])])
                found, result = replay(model, tie, judge, spec.input.anchor), zonogpt.verify(model, tie)
                broken = gap < 0 and sign * float(narrow[k] - output[k]) + gap <= 0
                assert (found.counterexample is not None) == broken
                assert (result.status == "falsified") == broken
                assert result.status != "verified" or gap > 0
                verdicts.append((gap < 0, broken))
    assert {(True, True), (True, False), (False, False)} == set(verdicts)  # float32 disagrees with some


@pytest.mark.parametrize("norm", NORMS)
def test_deadline_stops_the_search(norm):
    """After the deadline only the anchor is looked at."""
    model = zonogpt.load(image_model(1).double())
    spec = zonogpt.image_ball(model, IMAGE, 0.1, norm=norm)
    clean = float(spec.claim.margins(model.forward(spec.input.embed(spec.input.anchor))).min())
    judge = model.source
    assert falsify(model, spec, judge, deadline=time.perf_counter() - 1.0).lowest == clean
    assert falsify(model, spec, judge, deadline=time.perf_counter() + 600.0).lowest < clean
    assert zonogpt.verify(model, spec, attack=True, timeout=1e-6).status == "timeout"


def test_planted_counterexamples_are_found():
    """At least 95 % of the sixty, each a ball with a known counterexample inside."""
    planted = [case for name in NAMES for case in cases(name)]
    assert len(planted) == 60
    for case in planted:
        assert exactly_inside(case.spec, case.planted)
        margins = case.spec.claim.margins(case.model.forward(case.spec.input.embed(case.planted).to(case.model.dtype)))
        assert float(margins.min()) < -0.1
    missed = [
        (case.name, case.spec.input.norm)
        for case in planted
        if zonogpt.verify(case.model, case.spec, attack=True).status != "falsified"
    ]
    assert len(missed) <= 3, missed


@pytest.mark.parametrize("name", NAMES)
def test_planted_counterexamples_are_never_proved_away(name):
    """No method, whatever its bounds, says verified on any of them."""
    for method in zonogpt.METHODS:
        for case in cases(name):
            result = zonogpt.verify(case.model, case.spec, method=method)
            assert result.status in ("unknown", "falsified"), (method, case.spec.input.norm)
            assert float(result.margins.min()) <= 0


def test_planted_models_are_honest_without_their_trigger():
    """These models are not broken: much smaller balls around the same inputs are proved."""
    for name in ("rows", "text"):
        for case in cases(name)[:2]:
            assert zonogpt.verify(case.model, case.spec.shrunk(1e-4 * case.spec.radius)).status == "verified"


def test_the_command_saves_and_shows_an_image(tmp_path):
    images, _ = zonogpt.zoo.samples("digits")
    np.save(tmp_path / "digit.npy", images[0].numpy())
    base = ("verify", DIGITS, "--image", "digit.npy", "--radius", "0.05")
    assert zono(*base, "--no-hint", cwd=tmp_path).returncode == 10
    run = zono(*base, "--attack", "--counterexample", "found.npz", "--json", "all.json", cwd=tmp_path)
    assert run.returncode == 20, run.stderr
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert lines[0] == "falsified"
    assert "replayed in float32 and float64" in lines[1]
    assert "pixels change" in run.stdout
    assert "saved: found.npz and found.png" in run.stdout
    with np.load(tmp_path / "found.npz", allow_pickle=False) as arrays:
        assert arrays["input"].shape == (28, 28)
        assert np.abs(arrays["change"]).max() <= 0.05
        np.testing.assert_array_equal(arrays["original"], images[0].double().numpy())
        assert max(float(arrays["margin_float32"]), float(arrays["margin_float64"])) <= 0
        model = zonogpt.load(DIGITS)
        assert int(zonogpt.logits(model, arrays["input"]).argmax()) == int(arrays["answer"]) != int(arrays["label"])
    with Image.open(tmp_path / "found.png") as picture:
        assert picture.width > 800
    result = zonogpt.Result.from_json((tmp_path / "all.json").read_text())
    assert result.status == "falsified"
    assert zono(*base, "--attack", "--counterexample", "found.png", cwd=tmp_path).returncode == 2


def test_the_command_saves_and_shows_a_text(tmp_path):
    text_classifier(3, config(pad_token_id=0)).save_pretrained(tmp_path / "model")
    run = zono("verify", "model", "--ids", "3,5,1,12", "--positions", "1,2", "--radius", "6", "--attack",
               "--counterexample", "found.npz", cwd=tmp_path)  # fmt: skip
    assert run.returncode == 20, run.stdout + run.stderr
    assert run.stderr == ""
    assert "token 5 at position 1 moves by" in run.stdout
    assert ", and is then nearest to " in run.stdout
    with np.load(tmp_path / "found.npz", allow_pickle=False) as arrays:
        assert arrays["ids"].tolist() == [3, 5, 1, 12]
        assert arrays["positions"].tolist() == [1, 2]
        assert arrays["change"].shape == (2, 12)
    assert not (tmp_path / "found.png").exists()
