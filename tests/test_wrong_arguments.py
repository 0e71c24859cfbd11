"""What is not a model, a spec, a path or a number: refused by a message that says what is wanted, before any work."""

import dataclasses
import json
import pathlib
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import zonogpt
from builders import image_model, language_model, text_classifier
from zonogpt.datasets.given import Given

IMAGES, TEXTS = zonogpt.load(image_model(1)), zonogpt.load(text_classifier(3))
IMAGE = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))
SPEC = zonogpt.image_ball(IMAGES, IMAGE, 1e-4)
DATA = Given.one("the image", IMAGE, None)


def ball(radius):
    return zonogpt.image_ball(IMAGES, IMAGE, radius)


WRONG = {
    "specs for one": (lambda: zonogpt.verify(IMAGES, [SPEC]), "one spec.*verify_many; got list"),
    "no spec": (lambda: zonogpt.verify(IMAGES, None), "one spec.*image_ball.*got NoneType"),
    "an image for a spec": (lambda: zonogpt.verify(IMAGES, IMAGE), "one spec.*got Tensor"),
    "one spec for several": (lambda: zonogpt.verify_many(IMAGES, SPEC), "specs must be a list; got Spec"),
    "None among specs": (lambda: zonogpt.verify_many(IMAGES, [SPEC, None]), "one spec.*got NoneType"),
    "attack without a spec": (lambda: zonogpt.attack(IMAGES, None), "one spec.*got NoneType"),
    "certificate of specs": (lambda: zonogpt.write_certificate(IMAGES, [SPEC], "x"), "one spec.*got list"),
    "no model": (lambda: zonogpt.verify(None, SPEC), "zonogpt.load; got NoneType"),
    "transformers' model": (lambda: zonogpt.verify(image_model(1), SPEC), "got GPT2ForImageClassification"),
    "attack on it": (lambda: zonogpt.attack(image_model(1), SPEC), "got GPT2ForImageClassification"),
    "image without a model": (lambda: zonogpt.image_ball(None, IMAGE, 1e-3), "zonogpt.load; got NoneType"),
    "ids without a model": (lambda: zonogpt.embedding_ball("zoo:digits", [1], [0], 1e-3), "zonogpt.load; got str"),
    "outputs without a model": (lambda: zonogpt.logits(None, IMAGE), "zonogpt.load; got NoneType"),
    "inspect nothing": (lambda: zonogpt.inspect(None), "zonogpt.load; got NoneType"),
    "data of nothing": (lambda: zonogpt.open_dataset("zoo:digits", None, ""), "zonogpt.load; got NoneType"),
    "a number for data": (lambda: zonogpt.open_dataset(3, IMAGES, ""), "the data must be a path.*got 3"),
    "no such data": (
        lambda: zonogpt.open_dataset("no/such/folder", IMAGES, ""),
        "no file or directory 'no/such/folder'",
    ),
    "a list for data": (lambda: zonogpt.certify(IMAGES, [IMAGE], [1e-3]), "data set.*open_dataset; got list"),
    "data to compare": (lambda: zonogpt.compare(IMAGES, IMAGE, ["E"]), "data set.*open_dataset; got Tensor"),
    "a number for out": (lambda: zonogpt.certify(IMAGES, DATA, [1e-3], out=3), "out must be a path.*got 3"),
    "bytes for out": (lambda: zonogpt.compare(IMAGES, DATA, ["E"], out=b"x"), "out must be a path"),
    "one radius": (lambda: zonogpt.certify(IMAGES, DATA, 1e-3), "radii must be a list; got float 0.001"),
    "radii as text": (lambda: zonogpt.certify(IMAGES, DATA, "1e-3"), "radii must be a list; got str"),
    "positions as a number": (lambda: zonogpt.certify(IMAGES, DATA, [1e-3], positions=3), 'as "last".*got 3'),
    "count as text": (lambda: zonogpt.certify(IMAGES, DATA, [1e-3], count="1"), "count must be an integer; got '1'"),
    "half an example": (lambda: zonogpt.compare(IMAGES, DATA, ["E"], skip=0.5), "skip must be an integer; got 0.5"),
    "methods as text": (lambda: zonogpt.compare(IMAGES, DATA, "E"), "methods must be a list; got str 'E'"),
    "a spec for its function": (lambda: zonogpt.certified_radius(IMAGES, SPEC, 1e-4, 1), "a function.*got Spec"),
    "a function of nothing": (lambda: zonogpt.certified_radius(IMAGES, lambda r: None, 1e-4, 1), "got NoneType"),
    "true seconds": (lambda: zonogpt.verify(IMAGES, SPEC, timeout=True), "timeout.*got True"),
    "true bytes": (lambda: zonogpt.verify(IMAGES, SPEC, budget_bytes=True), "budget.*got True"),
    "two norms": (lambda: zonogpt.image_ball(IMAGES, IMAGE, 1e-3, norm=torch.tensor([1, 2])), "norm tensor"),
    "a true norm": (lambda: zonogpt.image_ball(IMAGES, IMAGE, 1e-3, norm=True), "norm True"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    call, word = WRONG[name]
    with pytest.raises(zonogpt.ZonoGptError, match=word):
        call()


def quantised(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch means to remove it
        return torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8)


@pytest.mark.parametrize(
    ("ids", "word"),
    [
        (torch.tensor([1, 2], dtype=torch.complex64), "complex64"),
        ([1 + 2j], "complex"),
        (torch.tensor([1, 2], device="meta"), "meta device"),
        (torch.tensor([1, 2]).to_sparse(), "sparse"),
        (quantised(torch.ones(2)), "quantised"),
        (np.array([2**63], dtype=np.uint64), r"lie in 0\.\.16"),
        (torch.tensor([1.0, 2.0], dtype=torch.float8_e4m3fn), "float8"),
    ],
)
def test_ids_that_are_none(ids, word):
    for call in (lambda: zonogpt.embedding_ball(TEXTS, ids, [0], 1e-4), lambda: zonogpt.logits(TEXTS, ids)):
        with pytest.raises(zonogpt.SpecError, match=word):
            call()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32"])
def test_ids_of_every_integer_type(dtype):
    spec = zonogpt.embedding_ball(TEXTS, [3, 5, 1], [1], 1e-4)
    assert spec == zonogpt.embedding_ball(TEXTS, torch.tensor([3, 5, 1], dtype=getattr(torch, dtype)), [1], 1e-4)
    assert spec == zonogpt.embedding_ball(TEXTS, np.array([3, 5, 1], dtype=dtype), [1], 1e-4)


@pytest.mark.parametrize(
    ("image", "word"),
    [
        (IMAGE.to(torch.complex64), "complex64"),
        (IMAGE.to("meta"), "meta device"),
        (IMAGE.to_sparse(), "sparse"),
        (quantised(IMAGE), "quantised"),
    ],
)
def test_images_that_are_none(image, word):
    with pytest.raises(zonogpt.SpecError, match=word):
        zonogpt.image_ball(IMAGES, image, 1e-4)


def test_images_of_every_float_type():
    for dtype in (torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float64):
        image = IMAGE.to(dtype)
        assert zonogpt.image_ball(IMAGES, image, 1e-4) == zonogpt.image_ball(IMAGES, image.double(), 1e-4)


# Models


class OwnParameter(nn.Parameter):
    pass


class OwnTensor(torch.Tensor):
    pass


def with_weight(weight):
    net = text_classifier(3)
    net.score.weight = weight(net.score.weight.data)
    return net


OBJECTS = {
    "quantised": (
        lambda: torch.ao.quantization.quantize_dynamic(text_classifier(3), {nn.Linear}, dtype=torch.qint8),
        "score is a torch.*quantized",
    ),
    "meta": (lambda: text_classifier(3).to("meta"), "wte.weight is on the meta device"),
    "one weight on meta": (lambda: with_weight(lambda w: nn.Parameter(w.to("meta"))), "score.weight is on the meta"),
    "bytes": (lambda: with_weight(lambda w: nn.Parameter(w.to(torch.int8), requires_grad=False)), "int8"),
    "a quantised weight": (lambda: with_weight(lambda w: nn.Parameter(quantised(w), requires_grad=False)), "quint8"),
    "a class of parameters": (lambda: with_weight(OwnParameter), "score.weight is a OwnParameter"),
    "a class of tensors": (lambda: with_weight(lambda w: nn.Parameter(w.as_subclass(OwnTensor))), "a OwnTensor"),
    "sparse": (lambda: with_weight(lambda w: nn.Parameter(w.to_sparse())), "sparse"),
    "complex": (lambda: text_classifier(3).to(torch.complex64), "complex64"),
}


@pytest.mark.filterwarnings("ignore")  # torch deprecates its quantisation, and warns of complex modules
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_without_plain_weights(name):
    make, word = OBJECTS[name]
    with pytest.raises(zonogpt.ModelError, match=word):
        zonogpt.load(make())


@pytest.mark.parametrize("name", ["num_attention_heads", "n_head", "hidden_size", "n_layer", "vocab_size"])
def test_sizes_that_are_true(tmp_path, name):
    text_classifier(3).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {name: True}))
    with pytest.raises(zonogpt.ModelError, match=f"{name} = True must be a positive integer"):
        zonogpt.load(tmp_path)


def test_an_object_with_a_true_size():
    net = text_classifier(3)
    net.config.num_attention_heads = True
    with pytest.raises(zonogpt.ModelError, match="= True must be a positive integer"):
        zonogpt.load(net)


# Paths


def test_paths_are_strings_or_paths(tmp_path):
    for kind in (str, pathlib.Path):
        data = zonogpt.open_dataset(kind("zoo:digits"), zonogpt.load("zoo:digits"), kind("zoo:digits"))
        assert len(data) == 20
        found = zonogpt.certify(IMAGES, DATA, [1e-4], attack=False, out=kind(tmp_path / kind.__name__))
        assert len(found.rows) == 1
        assert (tmp_path / kind.__name__ / "rows.jsonl").exists()
        zonogpt.compare(IMAGES, DATA, ["ibp"], out=kind(tmp_path / f"{kind.__name__} compared"))
        assert (tmp_path / f"{kind.__name__} compared" / "rows.jsonl").exists()


# Inference mode


def test_inference_mode():
    """Everything works in inference mode, and what is made in it works outside."""
    with torch.inference_mode():
        model = zonogpt.load(language_model(4))
        spec = zonogpt.embedding_ball(model, [3, 5, 1], [1], 8.0)
        inside = zonogpt.verify(model, spec, attack=True)
        small = zonogpt.verify(model, zonogpt.embedding_ball(model, [3, 5, 1], [1], 1e-6))
        assert zonogpt.attack(model, spec).broken
        assert zonogpt.certified_radius(IMAGES, ball, 1e-6, 8.0, tolerance=10.0).attacked <= 8.0
        assert zonogpt.certify(IMAGES, DATA, [8.0]).rows[0].broken
    assert (inside.status, small.status) == ("falsified", "verified")
    outside = zonogpt.verify(model, spec, attack=True)
    assert torch.equal(outside.counterexample, inside.counterexample)
    with torch.no_grad():
        assert zonogpt.attack(model, spec) == zonogpt.attack(model, spec)
    for method in zonogpt.METHODS:
        assert zonogpt.verify(model, spec.shrunk(1e-9), method=method).margins.isfinite().all()


# Equality


def test_results_and_specs_are_equal_by_value():
    result = zonogpt.verify(IMAGES, SPEC)
    assert result == zonogpt.Result.from_json(result.to_json())
    assert result != dataclasses.replace(result, margins=result.margins + 1e-9)
    assert result != dataclasses.replace(result, reason="another")
    assert ball(1e-4) == SPEC
    assert hash(SPEC) == hash(ball(1e-4))
    assert ball(2e-4) != SPEC
    assert zonogpt.image_ball(IMAGES, IMAGE, 1e-4, norm=2) != SPEC
    assert zonogpt.image_ball(IMAGES, 1 - IMAGE, 1e-4) != SPEC
    claims = [SPEC.with_claim([[1.0, 0.0, 0.0]], [offset]) for offset in (0.0, 0.0, 1.0)]
    assert claims[0] == claims[1]
    assert claims[0] != claims[2]
    assert claims[0] != SPEC
    assert SPEC != "a spec"
    assert result in [None, result]
    assert len({SPEC, ball(1e-4), claims[0]}) == 2


def test_models_are_equal_to_themselves_only():
    other = zonogpt.load(image_model(1))
    assert IMAGES == IMAGES
    assert other != IMAGES
    assert IMAGES.blocks != other.blocks
    assert IMAGES in [TEXTS, IMAGES]
    assert len({IMAGES, other, TEXTS}) == 3
