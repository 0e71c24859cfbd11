"""Certificates: all that are written are valid, and none that was tampered with is."""

import ast
import hashlib
import json
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import zonogpt
import zonogpt_check
from builders import config, language_model
from certified import contents, folders, proofs, rewritten
from program import zono
from zonogpt.verification.certificate import CertificateError, model_digest, write_certificate
from zonogpt_check.check import check
from zonogpt_check.model import read_model
from zonogpt_check.sets import InvalidError, UnreadableError

MODELS = 100


def place_of(file, folder):
    """The line at which the checker stops."""
    with pytest.raises((InvalidError, UnreadableError)) as caught:
        check(file, folder)
    return str(caught.value)


def test_a_hundred_certificates_are_valid():
    for proof in proofs(MODELS):
        assert re.match(r"(output \d+ is the largest|\d+ linear claims hold) for ", check(proof.file, proof.folder))


# Every way to tamper: a function of the arrays, the description and a number; and where the checker must stop.


def shrink(pattern, factor=0.9):
    def tamper(arrays, about, k):
        names = sorted(name for name in arrays if re.fullmatch(pattern, name))
        name = names[k % len(names)]
        arrays[name] = arrays[name] * factor
        return re.escape(name)

    return tamper


def one_direction(arrays, about, k):
    """The last token's ellipsoid, too short in one direction; this token always moves."""
    names = sorted(name for name in arrays if re.fullmatch(r"block .*\.Q", name))
    name = names[k % len(names)]
    Q = arrays[name].copy()
    token = len(Q) - 1
    values, vectors = np.linalg.eigh(Q[token])
    Q[token] -= 0.1 * values[-1] * np.outer(vectors[:, -1], vectors[:, -1])
    Q[token] = (Q[token] + Q[token].T) / 2
    arrays[name] = Q
    return re.escape(f"{name}[{token}]")


def lopsided(arrays, about, k):
    """A Gram that is not symmetric: Cholesky's algorithm would read one half only."""
    names = sorted(name for name in arrays if name.endswith(".Q"))
    name = names[k % len(names)]
    Q = arrays[name].copy()
    Q[:, 0, 1] -= 1.0
    arrays[name] = Q
    return re.escape(name) + r"\[.*\] is not symmetric"


def other_slope(arrays, about, k):
    names = sorted(name for name in arrays if name.endswith(".slope"))
    name = names[k % len(names)]
    slope = arrays[name].copy()
    slope.flat[k % slope.size] += 0.2
    arrays[name] = slope
    return re.escape(name.replace("slope", "half"))


def other_mid(arrays, about, k):
    names = sorted(name for name in arrays if name.endswith(".mid"))
    name = names[k % len(names)]
    arrays[name] = arrays[name] + 0.05
    return re.escape(name.replace("mid", "half"))


def other_input(arrays, about, k):
    """Another image or text, with a digest of its own."""
    if "ids" in about["input"]:
        at = about["input"]["positions"][0]
        about["input"]["ids"][at] = (about["input"]["ids"][at] + 1 + k) % 17
    else:
        for name in ("anchor", "lower", "upper"):
            if f"input.{name}" in arrays:
                arrays[f"input.{name}"] = arrays[f"input.{name}"] + 0.01
    names = [f"input.{name}" for name in ("anchor", "lower", "upper") if f"input.{name}" in arrays]
    about["input"]["sha256"] = input_digest(about["input"], [arrays[name] for name in names])
    return r"input[.:]"


def larger_radius(arrays, about, k):
    about["input"]["radius"] = about["input"]["radius"] * 1.5 + 1e-3
    names = [f"input.{name}" for name in ("anchor", "lower", "upper") if f"input.{name}" in arrays]
    about["input"]["sha256"] = input_digest(about["input"], [arrays[name] for name in names])
    return r"(input\.lower|block 1 \(attention\)\.)"


def input_digest(about, arrays):
    state = hashlib.sha256(
        json.dumps([about["norm"], about["radius"], about.get("ids"), about.get("positions")]).encode()
    )
    for array in arrays:
        state.update(json.dumps(array.shape).encode() + array.tobytes())
    return state.hexdigest()


def other_label(arrays, about, k):
    about["claim"]["label"] = (about["claim"]["label"] + 1) % 3
    return r"(head|block \d+ \(\w+\)|input)\.loss|claim\.margins"


def raised_margin(arrays, about, k):
    margins = arrays["claim.margins"].copy()
    margins[k % len(margins)] *= 1.001
    arrays["claim.margins"] = margins
    return r"claim\.margins"


def missing(arrays, about, k):
    name = sorted(arrays)[(7 * k) % len(arrays)]
    del arrays[name]
    return re.escape(f"{name}: is missing")


def surplus(arrays, about, k):
    arrays["block 9 (mlp).Q"] = np.zeros(3)
    return "'block 9"


def not_a_number(arrays, about, k):
    names = sorted(name for name in arrays if arrays[name].dtype == np.float64 and arrays[name].size)
    name = names[(5 * k) % len(names)]
    array = arrays[name].copy()
    array.flat[k % array.size] = np.nan
    arrays[name] = array
    return re.escape(name) + r"\[.*\] is not finite"


def moved_centre(arrays, about, k):
    names = sorted(name for name in arrays if re.fullmatch(r"(input|block .*)\.c", name))
    name = names[k % len(names)]
    arrays[name] = arrays[name] + 1e-3
    return re.escape(name.removesuffix("c")) + "(Q|norm)"


TAMPERED = [
    shrink(r"block .*\.Q"), one_direction, lopsided, other_slope, other_mid, other_input, larger_radius, other_label,
    raised_margin, missing, surplus, not_a_number, moved_centre,
    shrink(r"block .*\)\.half"), shrink(r"block .*\.norm\.half"), shrink(r".*\.norm\.delta"),
    shrink(r".*\.norm\.largest"), shrink(r".*\.radius"), shrink(r".*\.R_U"), shrink(r".*\.W"),
    shrink(r".*\.loss\.(layernorm|gelu|softmax|scores|product)"),
]  # fmt: skip


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda f: getattr(f, "__name__", "?"))
def test_two_hundred_tampered_certificates_are_rejected_at_their_place(tamper):
    """Ten of each of 21 kinds, all with a digest that fits."""
    moving = [proof for proof in proofs(MODELS) if contents(proof.file)[1]["input"]["radius"] >= 1e-5]
    for k, proof in enumerate(moving[:: len(moving) // 10][:10]):
        arrays, about = contents(proof.file)
        expected = tamper(arrays, about, k)
        assert re.match(expected, place_of(rewritten(proof.file, arrays, about), proof.folder)), (k, expected)


def test_any_changed_byte_is_noticed(tmp_path):
    proof = proofs(MODELS)[0]
    whole = proof.file.read_bytes()
    rng = np.random.default_rng(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    for at in [*range(0, header, 97), *rng.integers(header, len(whole), 40)]:
        changed = bytearray(whole)
        changed[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "c").write_bytes(changed)
        place_of(tmp_path / "c", proof.folder)
    for length in (0, 7, 100, header, len(whole) - 1):
        (tmp_path / "c").write_bytes(whole[:length])
        place_of(tmp_path / "c", proof.folder)
    (tmp_path / "c").write_bytes(whole + b"0")
    place_of(tmp_path / "c", proof.folder)


def test_a_changed_weight_is_noticed_even_if_the_certificate_says_its_digest(tmp_path):
    for k, proof in enumerate(proofs(MODELS)[:: MODELS // 10]):
        folder = tmp_path / str(k)
        shutil.copytree(proof.folder, folder)
        tensors = load_file(folder / "model.safetensors")
        names = sorted(name for name in tensors if re.search(r"h\.\d\.(attn|mlp|ln).*weight", name))
        name = names[(3 * k) % len(names)]
        tensors[name] = tensors[name].copy()
        tensors[name].flat[0] += 0.01
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        assert place_of(proof.file, folder).startswith("model: these are not the weights")
        arrays, about = contents(proof.file)
        about["model"] = read_model(folder).digest()
        layer = int(re.search(r"h\.(\d)", name)[1])
        kind = 2 if "mlp" in name or "ln_2" in name else 1
        assert place_of(rewritten(proof.file, arrays, about), folder).startswith(f"block {2 * layer + kind} (")


def test_a_directory_that_means_two_networks_is_refused(tmp_path):
    """transformers and the checker might each pick another one."""
    proof = proofs(MODELS)[0]
    changes = {"num_attention_heads": 2}, {"num_hidden_layers": 1}, {"n_head": 0}, {"n_layer": 1e999}
    for k, change in enumerate(changes):
        folder = tmp_path / str(k)
        shutil.copytree(proof.folder, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UnreadableError):
            check(proof.file, folder)
    for k, name in enumerate(("h.0.ln_1.weight", "transformer.h.7.ln_1.weight", "unknown")):
        folder = tmp_path / f"more {k}"
        shutil.copytree(proof.folder, folder)
        tensors = load_file(folder / "model.safetensors")
        tensors[name] = np.ones_like(tensors["transformer.h.0.ln_1.weight"])
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(UnreadableError, match="two tensors of one name" if k == 0 else "has no place"):
            check(proof.file, folder)


def test_both_sides_know_a_model_by_the_same_digest():
    for folder in folders().values():
        assert model_digest(zonogpt.load(folder)) == read_model(folder).digest()


def test_without_room_for_a_certificate_none_is_written(tmp_path):
    model = zonogpt.load(folders()["image"])
    spec = zonogpt.image_ball(model, torch.full(model.embedding.image_size, 0.5), 0.3)
    with pytest.raises(CertificateError, match="the lowest margin is -"):
        write_certificate(model, spec, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_linear_claim(tmp_path):
    model = zonogpt.load(folders()["text"])
    spec = zonogpt.embedding_ball(model, [1, 2, 3], [1], 1e-4)
    value = zonogpt.logits(model, [1, 2, 3]).double()
    holds = spec.with_claim(
        [[1.0, 0.0, 0.0], [0.5, -2.0, 1.0]], [0.1 - value[0], 0.1 - value @ torch.tensor([0.5, -2, 1]).double()]
    )
    write_certificate(model, holds, tmp_path / "c")
    assert check(tmp_path / "c", folders()["text"]).startswith("2 linear claims (sha256 ")


def test_many_rows_go_back_in_parts_and_keep_their_numbers(tmp_path):
    net = language_model(4, config(vocab_size=149))
    net.save_pretrained(tmp_path / "net")
    model = zonogpt.load(tmp_path / "net")
    spec = zonogpt.embedding_ball(model, [3, 5, 1], [1], 1e-5)
    write_certificate(model, spec, tmp_path / "c")
    check(tmp_path / "c", tmp_path / "net")
    arrays, about = contents(tmp_path / "c")
    for name, change in (("claim.margins", 1.1), ("block 2 (mlp).loss.gelu", 0.9), ("input.loss.input", 0.9)):
        for row in (0, 63, 64, 128, 147):
            changed = arrays[name].copy()
            changed[row] *= change
            file = rewritten(tmp_path / "c", arrays | {name: changed}, about)
            assert place_of(file, tmp_path / "net").startswith(f"{name}[{row}] is too ")


def test_names_are_meant_as_they_are():
    """Weights may be called transformer.x; lines of a proof may not."""
    proof = proofs(MODELS)[0]
    arrays, about = contents(proof.file)
    file = rewritten(proof.file, {f"transformer.{name}": array for name, array in arrays.items()}, about)
    assert "is missing" in place_of(file, proof.folder)


def test_the_checker_stands_alone():
    """numpy, safetensors and Python's own library: no torch, and nothing of the prover."""
    folder = Path(zonogpt_check.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                root = name.split(".")[0]
                assert root in ("numpy", "safetensors", "zonogpt_check") or root in sys.stdlib_module_names, (
                    file,
                    name,
                )
    code = "import sys, zonogpt_check.__main__; print('torch' in sys.modules or 'zonogpt' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_on_the_command_line(tmp_path):
    model = folders()["text"]
    ball = ("--ids", "1,2,3", "--positions", "1")
    done = zono("verify", model, *ball, "--radius", "1e-4", "--certificate", tmp_path / "c")
    assert done.returncode == 0
    assert f"certificate: {tmp_path / 'c'}" in done.stdout
    done = zono("check", tmp_path / "c", model)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "valid")
    assert "tokens [1, 2, 3] with every embedding at position 1 within 0.0001 (l_inf)" in done.stdout
    assert "between" not in done.stdout  # nothing is cut off
    assert f"model sha256 {read_model(model).digest()}" in done.stdout
    changed = bytearray((tmp_path / "c").read_bytes())
    changed[-1] ^= 1
    (tmp_path / "c").write_bytes(changed)
    done = zono("check", tmp_path / "c", model)
    assert (done.returncode, done.stdout) == (1, "invalid\nfile: the digest is not that of its content\n")
    (tmp_path / "c").write_text("no certificate")
    assert zono("check", tmp_path / "c", model).returncode == 2
    done = zono("verify", model, *ball, "--radius", "10", "--certificate", tmp_path / "d", "--no-hint")
    assert (done.returncode, (tmp_path / "d").exists()) == (10, False)
    assert "no certificate: nothing was proved" in done.stdout
    for other in (("--method", "A"), ("--arithmetic", "float32")):
        done = zono("verify", model, *ball, "--radius", "1e-4", "--certificate", tmp_path / "d", *other)
        assert (done.returncode, (tmp_path / "d").exists()) == (2, False)
        assert "method E, about the network in real arithmetic" in done.stderr


class Hostile:
    """A pickle that would leave a trace if it were opened."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_a_strangers_files_run_nothing_and_allocate_nothing(tmp_path):
    proof, trace = proofs(MODELS)[0], tmp_path / "trace"
    arrays, about = contents(proof.file)
    nested = proof.file.with_suffix(".nested")
    huge = (1 << 62).to_bytes(8, "little") + b"{}"
    claimed = json.dumps({"a": {"dtype": "F64", "shape": [1 << 40], "data_offsets": [0, 1 << 43]}}).encode()
    metadata = {"__metadata__": {"format": "zonogpt certificate 2", "digest": "0" * 64, "about": "[" * 100_000}}
    header = json.dumps(metadata).encode()
    for content in (
        pickle.dumps(Hostile(trace)),
        huge,
        len(claimed).to_bytes(8, "little") + claimed,
        len(header).to_bytes(8, "little") + header,
    ):
        nested.write_bytes(content)
        place_of(nested, proof.folder)
    for hostile in ([], "x", {"model": about["model"]}, about | {"input": []}, about | {"claim": {"label": True}}):
        place_of(rewritten(proof.file, arrays, hostile), proof.folder)
    empty = arrays | {"claim.rows": np.zeros((0, 1 << 40), dtype=np.int64)}
    assert "claim.rows: is I64" in place_of(rewritten(proof.file, empty, about), proof.folder)
    for name in ("claim.rows", "block 1 (attention).Q"):
        wrong = arrays | {name: arrays[name][..., None]}
        place_of(rewritten(proof.file, wrong, about), proof.folder)

    folder = tmp_path / "model"
    shutil.copytree(proof.folder, folder)
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(trace)))
    assert "no GPT-2 that can be read" in place_of(proof.file, folder)
    for name in ("../model.safetensors", "pytorch_model.bin", str(tmp_path / "model.safetensors")):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        assert "outside of it, or no safetensors" in place_of(proof.file, folder)
    assert not trace.exists()


@pytest.mark.slow
def test_a_hundred_certificates_of_the_bundled_model(tmp_path):
    model, folder = zonogpt.load("zoo:digits"), zonogpt.zoo.path("digits")
    images, labels = zonogpt.zoo.samples("digits")
    for image, label in zip(images, labels.tolist(), strict=True):
        for radius in (1e-5, 1e-4, 5e-4, 1e-3, 2e-3):
            write_certificate(model, zonogpt.image_ball(model, image, radius), tmp_path / "c")
            assert check(tmp_path / "c", folder).startswith(
                f"output {label} is the largest for every image within {radius!r}"
            )


@pytest.mark.parametrize("positions", [[-1], [], [1, 1], [3]])
def test_positions_that_are_none_of_the_text_are_refused(positions, tmp_path):
    """The digest of the input is that of these positions: nothing else is wrong."""
    model = zonogpt.load(folders()["text"])
    write_certificate(model, zonogpt.embedding_ball(model, [3, 5, 7], [1], 1e-9), tmp_path / "c")
    arrays, about = contents(tmp_path / "c")
    said = about["input"] | {"positions": positions}
    names = [f"input.{name}" for name in ("anchor", "lower", "upper")]
    arrays |= {name: arrays[name].repeat(len(positions), 0) for name in names}
    said["sha256"] = input_digest(said, [arrays[name] for name in names])
    with pytest.raises((InvalidError, UnreadableError), match=r"these are not positions|zero-size array"):
        check(rewritten(tmp_path / "c", arrays, about | {"input": said}), folders()["text"])
