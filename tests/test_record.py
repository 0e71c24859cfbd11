"""The record that --json writes: it matches its schema, can be audited, and is read back with care."""

import copy
import hashlib
import json
import pickle
import subprocess
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from referencing import Registry, Resource

import zonogpt
from builders import generator, image_model, language_model, text_classifier
from named_model import save_named_model
from program import PROGRAM, zono
from zonogpt.spec.embed import patch_map
from zonogpt.spec.inputs import Box
from zonogpt.spec.spec import box_spec

SCHEMAS = Path(zonogpt.__file__).parent / "verification" / "schemas"
CONTENT = {file.name: json.loads(file.read_text()) for file in SCHEMAS.glob("*.json")}
REGISTRY = Registry().with_resources((name, Resource.from_contents(schema)) for name, schema in CONTENT.items())
IMAGES, TEXTS, NEXT = (zonogpt.load(make()) for make in (image_model, text_classifier, language_model))
IMAGE = torch.rand(6, 4, generator=generator(5), dtype=torch.float64)


def valid(name, text):
    record = json.loads(text)
    jsonschema.Draft202012Validator(CONTENT[name], registry=REGISTRY).validate(record)
    return record


def box():
    return box_spec(IMAGES, Box(IMAGE - 1e-6, IMAGE + 1e-6, IMAGE, patch_map(IMAGES)))


def image(radius, **asked):
    return zonogpt.image_ball(IMAGES, IMAGE, radius, **asked)


SPECS = {
    "image": (IMAGES, lambda: image(1e-6), {}),
    "unknown": (IMAGES, lambda: image(0.5), {"hint": True}),
    "falsified": (IMAGES, lambda: image(1.0), {"attack": True}),
    "timeout": (IMAGES, lambda: image(0.5), {"timeout": 1e-9}),
    "float32": (IMAGES, lambda: image(1e-6), {"arithmetic": "float32", "dtype": "float32"}),
    "estimated": (IMAGES, lambda: image(1e-6), {"method": "crown"}),
    "box": (IMAGES, box, {}),
    "rows": (IMAGES, lambda: image(1e-6).with_claim([[1, 0, 0], [0, 1, 0]], [0, 0], [[0, 1]]), {}),
    "budget": (IMAGES, lambda: image(1e-6), {"budget_bytes": 1 << 28}),
    "top k": (IMAGES, lambda: image(1e-6, top_k=2), {}),
    "text": (TEXTS, lambda: zonogpt.embedding_ball(TEXTS, [3, 5, 1], [1, 2], 1e-6, norm=2), {"seed": 7}),
    "next token": (NEXT, lambda: zonogpt.embedding_ball(NEXT, [3, 5, 1], [1], 1e-6, norm=1), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_result_is_as_the_schema_says(name):
    model, make, options = SPECS[name]
    result = zonogpt.verify(model, make(), **options)
    record = valid("result.json", result.to_json())
    assert record["options"] | options == record["options"]
    assert result == zonogpt.Result.from_json(result.to_json())
    assert zonogpt.Result.from_json(result.to_json()).to_json() == result.to_json()
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again == result
        assert again.about == result.about


def test_the_schema_notices_what_is_not_one():
    """So a reader may rely on the schema."""
    text = zonogpt.verify(IMAGES, image(1e-6)).to_json()
    for change in ({"status": "proved"}, {"more": 1}, {"margins": ["many"]}, {"seconds": -1}, {"label": "0"}):
        with pytest.raises(jsonschema.ValidationError):
            valid("result.json", json.dumps(json.loads(text) | change))


def test_a_record_names_files_as_sha256sum_does(tmp_path):
    save_named_model(tmp_path, pad_token_id=329)
    run = zono("verify", tmp_path, "--text", "a good film", "--words", "good", "--radius", "1e-7", "--json", "-")
    record = valid("result.json", run.stdout)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(record["model"]["files"])
    for name, digest in record["model"]["files"].items():
        said = subprocess.run(["sha256sum", tmp_path / name], capture_output=True, text=True, check=True).stdout
        assert said.split()[0] == digest
    ids = record["input"]["ids"]
    assert record["input"]["digest"] == hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
    assert "".join(record["input"]["tokens"]) == "a good film"
    assert [moved["token"] for moved in record["input"]["moved"]] == [" good"]


def test_shards_are_named_too(tmp_path):
    text_classifier().save_pretrained(tmp_path, max_shard_size="5KB")
    model = zonogpt.load(tmp_path)
    spec = zonogpt.embedding_ball(model, [1, 2], [1], 1e-7)
    files = zonogpt.verify(model, spec).about["model"]["files"]
    assert len(files) > 3
    assert {"config.json", "model.safetensors.index.json"} <= set(files)


def test_a_file_that_changed_since_has_no_digest(tmp_path):
    text_classifier().save_pretrained(tmp_path)
    model = zonogpt.load(tmp_path)
    result = zonogpt.verify(model, zonogpt.embedding_ball(model, [1, 2], [1], 1e-7))
    text_classifier(9).save_pretrained(tmp_path)
    record = valid("result.json", result.to_json())
    assert record["model"]["files"] is None
    assert "has changed since" in record["model"]["files_changed"]
    assert (
        record["model"]["digest"]
        == valid("result.json", zonogpt.verify(model, zonogpt.embedding_ball(model, [1, 2], [1], 1e-8)).to_json())[
            "model"
        ]["digest"]
    )  # what was verified is what was loaded


def test_digests_tell_inputs_and_sets_apart():
    about = [zonogpt.verify(IMAGES, spec).about["input"] for spec in (image(1e-6), image(2e-6))]
    assert about[0]["digest"] == about[1]["digest"]
    assert about[0]["digest"] == hashlib.sha256(IMAGE.numpy().astype("<f8").tobytes()).hexdigest()
    assert about[0]["set_digest"] != about[1]["set_digest"]
    clipped = zonogpt.verify(IMAGES, image(1e-6, clip=(-1, 2))).about["input"]
    assert clipped["digest"] == about[0]["digest"]


def broken_records():
    whole = json.loads(zonogpt.verify(IMAGES, image(1e-6)).to_json())
    yield from ("", "nonsense", "[]", "3", "null", "{}", '{"schema": "zonogpt-result-0"}', "[" * 10**5, "\x00")
    for name in whole:
        yield json.dumps({key: value for key, value in whole.items() if key != name})
    for name, wrong in (("status", "proved"), ("margins", 3), ("margins", ["x"]), ("margins", [None]), ("label", "0"),
                        ("label", True), ("radius", "1"), ("seconds", None), ("peak_bytes", 1.5), ("ledger", [1]),
                        ("ledger", [{}]), ("counterexample", [["x"]]), ("replayed", [1]), ("stopped", "later"),
                        ("guarantee", "sure"), ("reason", 3), ("unknown", 1), ("model", 3),
                        ("margins", [-1.0, 1.0]), ("margins", ["nan", 1.0]), ("margins", []), ("stopped", "timeout"),
                        ("status", "falsified"), ("radius", -3),
                        ("input", None)):  # fmt: skip
        yield json.dumps(whole | {name: wrong})


@pytest.mark.parametrize("text", broken_records())
def test_garbage_is_refused(text):
    with pytest.raises(zonogpt.RecordError):
        zonogpt.Result.from_json(text)


@pytest.mark.parametrize("wrong", [None, 3, b"{}", ["{}"]])
def test_what_is_no_text_is_refused(wrong):
    with pytest.raises(zonogpt.RecordError):
        zonogpt.Result.from_json(wrong)


def test_studies_and_several_results_are_as_their_schemas_say(tmp_path):
    save_named_model(tmp_path, pad_token_id=329)
    text = ("--text", "a good film", "--positions", "all", "--each")
    run = zono("verify", tmp_path, *text, "--radius", "1e-7", "--json", "-")
    assert len(valid("results.json", run.stdout)["results"]) == 3, run.stderr
    run = zono("radius", tmp_path, *text, "--tolerance", "1", "--json", "-")
    study = valid("study.json", run.stdout)
    assert len(study["rows"]) == 6
    run = zono("certify", "zoo:digits", "--data", "zoo:digits", "--count", "1", "--radius", "1e-4", "--json", "-")
    assert valid("study.json", run.stdout)["table"][0]["certified"] == 1
    assert run.stderr.startswith("certified 1 of 1 at radius 0.0001")


def test_standard_input_is_read(tmp_path):
    save_named_model(tmp_path, pad_token_id=329)
    image_model().save_pretrained(tmp_path / "images")
    np.save(tmp_path / "image.npy", IMAGE.numpy())

    def piped(content, *args):
        return subprocess.run([PROGRAM, "verify", *map(str, args)], input=content, capture_output=True)

    run = piped(b"a good film\n", tmp_path, "--text", "-", "--words", "good", "--radius", "1e-7")
    assert run.returncode == 0, run.stderr
    run = piped(b"3,5,1\n", tmp_path, "--ids", "-", "--positions", "1", "--radius", "1e-7")
    assert run.returncode == 0, run.stderr
    run = piped((tmp_path / "image.npy").read_bytes(), tmp_path / "images", "--image", "-", "--radius", "1e-7")
    assert run.returncode == 0, run.stderr
