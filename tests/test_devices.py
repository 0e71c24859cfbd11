"""Everything that takes a device works on one that is not the CPU: nothing there meets a tensor of the CPU."""

import dataclasses
import math

import pytest
import torch

import zonogpt
from builders import image_model, language_model, text_classifier
from second_device import THERE, Elsewhere, second_device
from zonogpt.datasets.given import Given
from zonogpt.search.falsify import falsify
from zonogpt.support.tensors import moved, tensors_in
from zonogpt.verification.options import Options
from zonogpt.verification.session import Session
from zonogpt.verification.witness import moved_tokens, save_witness
from zonogpt_apps.bench.work import one_claim

IMAGE = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))
IDS = [3, 5, 1, 12, 7]
MODELS = {
    "images": zonogpt.load(image_model(1)),
    "texts": zonogpt.load(text_classifier(3)),
    "language": zonogpt.load(language_model(4)),
}
SMALL, MIDDLE, LARGE = 1e-7, 0.05, 8.0  # proved, in between, broken


@pytest.fixture
def device():
    with second_device() as there:
        yield there


def ball(model, radius, norm=math.inf):
    if "Image" in model.architecture:
        return zonogpt.image_ball(model, IMAGE, radius, norm=norm)
    return zonogpt.embedding_ball(model, IDS, [1, 3], radius, norm=norm)


def same(a, b):
    """Results of the same run, here and there."""
    assert a.status == b.status
    torch.testing.assert_close(a.margins, b.margins, rtol=1e-9, atol=1e-9)
    assert (a.counterexample is None) == (b.counterexample is None)
    assert (a.answer, a.certified_radius) == (b.answer, b.certified_radius)
    assert type(b.margins) is torch.Tensor


def test_the_second_device_refuses_to_mix(device):
    here, there = torch.ones(3), torch.ones(3, device="hpu")
    assert isinstance(there, Elsewhere)
    assert (here.device, there.device) == (torch.device("cpu"), THERE)
    for mixed in (
        lambda: here + there,
        lambda: there @ here,
        lambda: torch.cat([there, here]),
        lambda: here[there.long()],
        lambda: there.index_add(0, torch.zeros(3, dtype=torch.long), there),
        lambda: torch.equal(there, here),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert isinstance((there * 2)[torch.tensor([0, 2])].min(0).values, Elsewhere)
    assert isinstance(there + torch.tensor(1.0), Elsewhere)  # one number is a number
    assert isinstance(here.to(there), Elsewhere)
    assert not isinstance(there.cpu() + here, Elsewhere)
    leaf = there.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad((leaf * leaf).sum(), leaf)
    assert isinstance(gradient, Elsewhere)
    assert gradient.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", zonogpt.METHODS)
def test_every_method(method, name, device):
    model = MODELS[name]
    for radius in (SMALL, MIDDLE):
        spec = ball(model, radius)
        there = zonogpt.verify(model, spec, method=method, device=device)
        same(zonogpt.verify(model, spec, method=method), there)
        assert there.device == "hpu"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", [math.inf, 2.0, 1.0])
def test_attack(norm, name, device):
    """The model on the CPU and the work on the device, or both there; the spec built with either model."""
    model = MODELS[name]
    at = moved(model, device, model.dtype)
    for radius in (SMALL, LARGE):
        spec = ball(model, radius, norm)
        result = zonogpt.verify(model, spec, attack=True)
        assert result.status == ("falsified" if radius == LARGE else "verified")
        same(result, zonogpt.verify(model, spec, attack=True, device=device))
        same(result, zonogpt.verify(at, ball(at, radius, norm), attack=True))
    same(result, zonogpt.verify(at, spec, attack=True, device="cpu"))


@pytest.mark.parametrize("name", MODELS)
def test_batches_of_specs_from_both_devices(name, device):
    model = MODELS[name]
    at = moved(model, device, model.dtype)
    specs = [ball(net, radius) for net in (model, at) for radius in (SMALL, MIDDLE)]
    if name != "images":  # of several lengths, with tokens before the first that moves
        specs += [zonogpt.embedding_ball(net, IDS[:4], [2], MIDDLE) for net in (model, at)]
    alone = [zonogpt.verify(model, spec) for spec in specs]
    for net, wanted in ((model, device), (at, "cpu"), (at, None)):
        for a, b in zip(alone, zonogpt.verify_many(net, specs, device=wanted), strict=True):
            same(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_float32_arithmetic_and_claims_of_ones_own(name, device):
    model = MODELS[name]
    rows = torch.eye(model.n_outputs)[:1] - torch.eye(model.n_outputs)[1:2]
    for radius in (SMALL, LARGE):
        spec = ball(moved(model, device, model.dtype), radius).with_claim(rows, [0.0])  # made on the CPU
        same(
            zonogpt.verify(model, spec, arithmetic="float32", attack=True),
            zonogpt.verify(model, spec, arithmetic="float32", attack=True, device=device),
        )
        zonogpt.verify(model, spec, device=device, dtype="float32")


@pytest.mark.parametrize("name", MODELS)
def test_searches_take_a_spec_from_anywhere(name, device):
    """One claim of many is a matrix made on the CPU: `bench run --attack` replayed it beside a model on the GPU."""
    model = MODELS[name]
    net = moved(model, device, torch.float64)
    for spec in (one_claim(ball(net, LARGE), 0), ball(model, LARGE)):
        assert zonogpt.attack(net, spec).broken
        assert falsify(net, spec, model.source).counterexample is not None
        assert Session.open(net, Options()).search(spec, Options()).counterexample is not None
        assert falsify(moved(model, torch.device("cpu"), torch.float64), spec, model.source).lowest < 0


@pytest.mark.parametrize("name", ["images", "texts"])
def test_runs_over_data(name, device):
    model = MODELS[name]
    data = Given.one("the input", IMAGE if name == "images" else IDS, None)
    radii = (SMALL, LARGE)
    rows = [zonogpt.certify(model, data, radii, device=at).rows for at in (None, device)]
    assert [(row.status, row.broken) for row in rows[0]] == [(row.status, row.broken) for row in rows[1]]
    assert rows[1][-1].broken
    radius = zonogpt.certified_radius(model, lambda r: ball(model, r), SMALL, LARGE, tolerance=10.0, device=device)
    assert 0 < radius.certified < radius.attacked < math.inf
    found = zonogpt.compare(model, data, ("E", "A", "attack"), low=SMALL, high=LARGE, tolerance=10.0, device=device)
    assert [row.status for row in found.rows] == ["done"] * 3


@pytest.mark.parametrize("name", MODELS)
def test_certificates(name, device, tmp_path):
    model = MODELS[name]
    here = zonogpt.write_certificate(model, ball(model, SMALL), tmp_path / "here")
    at = moved(model, device, model.dtype)
    there = zonogpt.write_certificate(at, ball(at, SMALL), tmp_path / "there")
    torch.testing.assert_close(there, here)
    assert (tmp_path / "there").stat().st_size == (tmp_path / "here").stat().st_size


@pytest.mark.parametrize("name", MODELS)
def test_counterexamples_are_saved(name, device, tmp_path):
    model = moved(MODELS[name], device, MODELS[name].dtype)
    spec = ball(model, LARGE)
    result = zonogpt.verify(model, spec, attack=True)
    assert save_witness(spec, result, tmp_path / "found.npz")
    if name != "images":
        assert moved_tokens(model, spec, result.counterexample)


@pytest.mark.parametrize("name", MODELS)
def test_specs_and_inspection(name, device):
    model = moved(MODELS[name], device, MODELS[name].dtype)
    spec = ball(model, MIDDLE)
    assert all(isinstance(t, Elsewhere) for t in tensors_in(spec) if t.is_floating_point())
    assert all(isinstance(t, Elsewhere) for t in tensors_in(spec.shrunk(SMALL)) if t.is_floating_point())
    assert zonogpt.inspect(model).width == model.width
    assert len(zonogpt.logits(model, IMAGE if name == "images" else IDS)) == model.n_outputs
    other = MODELS["texts" if name == "images" else "images"]
    with pytest.raises(zonogpt.SpecError, match="another model"):
        zonogpt.verify(dataclasses.replace(model, embedding=other.embedding), spec)
