"""Files that a stranger wrote: none runs code, none makes us allocate more than it holds."""

import gzip
import io
import json
import pickle
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import zonogpt
from bench_data import write_tokenizer
from bench_rows import instance_of, row
from builders import image_model, text_classifier
from data_files import idx_bytes
from zonogpt.datasets import idx, pictures
from zonogpt.datasets.idx import read_idx
from zonogpt.datasets.pictures import read_image
from zonogpt.datasets.texts import TextLines
from zonogpt.errors import ModelError, OptionError, SpecError
from zonogpt.model.checkpoint import INDEX, WEIGHTS
from zonogpt.model.tokenizer import Tokenizer
from zonogpt.studies.rows.store import parse
from zonogpt.support import files
from zonogpt_apps.bench.instances import Benchmark
from zonogpt_apps.bench.rows import BenchRow
from zonogpt_apps.bench.training.data import read_sentences

DEEP = "[" * 100_000 + "]" * 100_000
HUGE = 10**11


class Touch:
    """An object that creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return open, (self.file, "w")


@pytest.fixture
def mark(tmp_path):
    """A file that must not appear."""
    file = tmp_path / "code ran"
    yield file
    assert not file.exists()


@pytest.fixture
def python(mark):
    """A module that leaves the mark when it is imported."""
    return f"open({str(mark)!r}, 'w')\nclass Evil: ...\n"


@pytest.fixture
def folder(tmp_path):
    text_classifier().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def little_memory():
    """Code that allocates by a false size fails with MemoryError, which is none of the expected errors."""
    now = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), now[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, now)


def edit(file, **changes):
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | changes))


def replayed(folder):
    """Runs the model through Hugging Face's own, as a counterexample is replayed."""
    model = zonogpt.load(folder)
    inputs = torch.zeros(1, model.width)
    return model.source.on_embeddings(torch.tensor([1, 2]), (0,), inputs, torch.float32)


def test_the_pickle_of_these_tests_runs_code(tmp_path):
    pickle.loads(pickle.dumps(Touch(tmp_path / "ran"))).close()
    assert (tmp_path / "ran").exists()


# Models


def test_pickled_weights_are_never_opened(folder, mark):
    truth = replayed(folder)
    for name in ("pytorch_model.bin", "training_args.bin", "model.pt", ".metadata"):
        (folder / name).write_bytes(pickle.dumps(Touch(mark)))
    assert torch.equal(replayed(folder), truth)
    for name, content in {
        "adapter_model.bin": pickle.dumps(Touch(mark)),
        "adapter_config.json": b'{"peft_type": "LORA", "base_model_name_or_path": "x"}',
    }.items():
        (folder / name).write_bytes(content)
        with pytest.raises(ModelError, match=name):
            zonogpt.load(folder)
        (folder / name).unlink()
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match="pickle"):
        zonogpt.load(folder)


def test_pickle_that_is_called_safetensors(folder, mark):
    (folder / WEIGHTS).write_bytes(pickle.dumps(Touch(mark)))
    with pytest.raises(ModelError, match="safetensors"):
        zonogpt.load(folder)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "../model.safetensors", "{}/model.safetensors", "sub/a.safetensors", ""]
)
def test_index_names_only_safetensors_of_its_folder(folder, mark, tmp_path, name):
    (folder / "sub").mkdir()
    for copy in (folder / "sub" / "a.safetensors", tmp_path / WEIGHTS):  # they are there, and could be read
        copy.write_bytes((folder / WEIGHTS).read_bytes())
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(mark)))
    (folder / INDEX).write_text(json.dumps({"weight_map": {"score.weight": name.format(tmp_path)}}))
    with pytest.raises(ModelError, match="only safetensors files in the same folder"):
        zonogpt.load(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("auto_map", {"AutoConfig": "evil.Evil", "AutoModelForSequenceClassification": "evil.Evil"}),
        ("transformers_weights", "weights.bin"),
        ("attn_implementation", "stranger/kernels"),
        ("per_layer_config", {"0": {"scale_attn_weights": False}}),
    ],
)
def test_what_config_says_besides_the_network_is_not_followed(folder, mark, python, key, value):
    (folder / "evil.py").write_text(python)
    (folder / "weights.bin").write_bytes(pickle.dumps(Touch(mark)))
    edit(folder / "config.json", **{key: value})
    with pytest.raises(ModelError, match=key):
        zonogpt.load(folder)


def test_tokenizer_with_code_is_refused(folder, python, monkeypatch):
    write_tokenizer(folder)
    assert Tokenizer.beside(folder, "it").read("ab").ids
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers would ask, and a user might say yes
    (folder / "evil.py").write_text(python)
    edit(
        folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, tokenizer_class="Evil"
    )
    edit(folder / "config.json", auto_map={"AutoConfig": "evil.Evil"}, num_labels=HUGE)
    with pytest.raises(SpecError, match="tokenizer"):
        Tokenizer.beside(folder, "it").read("ab")


@pytest.mark.parametrize("name", ["num_labels", "n_positions", "vocab_size", "n_embd", "n_layer", "n_head", "n_inner"])
@pytest.mark.parametrize("size", [HUGE, 40])
def test_sizes_in_config_are_those_of_the_weights(folder, little_memory, name, size):
    config = json.loads((folder / "config.json").read_text())
    for also in ("id2label", "label2id"):  # they would contradict num_labels
        config.pop(also, None)
    (folder / "config.json").write_text(json.dumps(config | {"num_labels": 3, name: size}))
    with pytest.raises(ModelError, match=r"larger than every weight|config asks for|has no weight|not a transformer"):
        zonogpt.load(folder)


def test_image_model_without_a_token_table_allocates_none(tmp_path):
    hf = image_model()
    hf.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors["transformer.wte.weight"]
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    edit(tmp_path / "config.json", vocab_size=max(t.numel() for t in tensors.values()))
    replay = zonogpt.load(tmp_path).source
    image = torch.rand(6, 4)
    assert torch.equal(replay.on_image(image, torch.float32), hf(image[None]).logits[0].double())
    assert replay._in(torch.float32).config.vocab_size == 1


def test_safetensors_promise_no_more_than_they_hold(folder, little_memory):
    promise = {"transformer.wte.weight": {"dtype": "F32", "shape": [HUGE, 12], "data_offsets": [0, HUGE * 48]}}
    for header in (json.dumps(promise).encode(), DEEP.encode()):
        for length in (len(header), 1 << 60):
            (folder / WEIGHTS).write_bytes(struct.pack("<Q", length) + header)
            with pytest.raises(ModelError, match="not a readable safetensors file"):
                zonogpt.load(folder)


# Images


def npy(kind, shape, content=bytes(64)):
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}}}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def test_arrays_of_objects_are_not_unpickled(tmp_path, mark):
    file = tmp_path / "image.npy"
    np.save(file, np.array([[Touch(mark)]], dtype=object), allow_pickle=True)
    packed = io.BytesIO()
    np.savez(packed, a=np.array([Touch(mark)], dtype=object))
    for content in (file.read_bytes(), pickle.dumps(Touch(mark)), packed.getvalue()):
        file.write_bytes(content)
        with pytest.raises(SpecError, match=r"not a readable \.npy"):
            read_image(file)


@pytest.mark.parametrize("kind", ["<f8", "|V0", "|u1"])
@pytest.mark.parametrize("shape", [(HUGE,), (2**62, 2**62), (2**70,), (-1,)])
@pytest.mark.filterwarnings("error")
def test_arrays_promise_no_more_than_they_hold(tmp_path, little_memory, kind, shape):
    (tmp_path / "image.npy").write_bytes(npy(kind, shape))
    with pytest.raises(SpecError, match=r"not a readable \.npy"):
        read_image(tmp_path / "image.npy")


@pytest.mark.filterwarnings("error")
def test_arrays_are_of_numbers_and_bounded(tmp_path, monkeypatch):
    (tmp_path / "image.npy").write_bytes(npy("<c16", (4,)))
    with pytest.raises(SpecError, match="complex128"):
        read_image(tmp_path / "image.npy")
    (tmp_path / "image.npy").write_bytes(npy("|u1", (8, 8)))
    assert read_image(tmp_path / "image.npy").shape == (8, 8)
    monkeypatch.setattr(pictures, "MOST_PIXELS", 63)
    with pytest.raises(SpecError, match="at most 63"):
        read_image(tmp_path / "image.npy")


def png(width, height):
    """A valid picture without the pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [5_000, 10_000, 100_000])  # Pillow says nothing, warns, refuses
@pytest.mark.filterwarnings("error")
def test_pictures_are_bounded_in_pixels(tmp_path, side):
    (tmp_path / "image.png").write_bytes(png(side, side))
    with pytest.raises(SpecError, match=r"x \d+; more than|exceeds limit of 178956970"):
        read_image(tmp_path / "image.png")


def test_pictures_are_of_the_formats_named(tmp_path, monkeypatch):
    """Pillow goes by content, not by name, and would pass PostScript to a system program."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *a, **k: pytest.fail("Ghostscript was started"))
    file = tmp_path / "image.png"
    Image.new("L", (28, 28)).save(file, "eps")
    with pytest.raises(SpecError, match="not a readable picture"):
        read_image(file)


# MNIST's files and texts


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("sizes", [(2**32 - 1,) * 3, (2**20, 28, 28), (0, 2**32 - 1, 2**32 - 1), (1, 1, 2)])
def test_idx_files_hold_what_they_promise(tmp_path, little_memory, suffix, sizes):
    content = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in sizes) + b"\x01" * all(sizes)
    file = tmp_path / f"images{suffix}"
    file.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(SpecError, match=r"promises|cannot be read"):
        read_idx(file, dimensions=3)


def test_packed_files_are_bounded_unpacked(tmp_path, monkeypatch):
    """Unpacked, they are a thousand times as large as packed."""
    bomb = tmp_path / "images.gz"
    bomb.write_bytes(gzip.compress(idx_bytes(np.zeros((1000, 28, 28)))))
    assert bomb.stat().st_size < 10_000
    assert read_idx(bomb, 3).shape == (1000, 28, 28)
    monkeypatch.setattr(idx, "MOST_BYTES", 1 << 16)
    with pytest.raises(SpecError, match="more than 65536 are not read"):
        read_idx(bomb, 3)
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "train.tsv.gz").write_bytes(gzip.compress(b"sentence\tlabel\n" + b"a" * (1 << 20) + b"\t1\n"))
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 16)
    with pytest.raises(SpecError, match="more than 65536 bytes"):
        read_sentences(tmp_path, "train", None)


def test_texts_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 16)
    (tmp_path / "texts").write_text("1,2,3\n" * (1 << 14))
    with pytest.raises(SpecError, match="more than 65536 bytes"):
        TextLines.open(tmp_path / "texts", "no model")


# JSON


def test_deep_and_large_json_is_refused(folder, tmp_path, monkeypatch):
    config = folder / "config.json"
    content = config.read_text()
    config.write_text(DEEP)
    with pytest.raises(ModelError, match="nested too deeply"):
        zonogpt.load(folder)
    config.write_text(content)
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    (folder / INDEX).write_text(DEEP)
    with pytest.raises(ModelError, match="nested too deeply"):
        zonogpt.load(folder)
    (tmp_path / "instances.jsonl").write_text(DEEP)
    with pytest.raises(SpecError, match="nested too deeply"):
        Benchmark.read(tmp_path)
    with pytest.raises(OptionError, match="line 1 is damaged"):
        parse(f"{DEEP}\n{row().to_json()}\n".encode(), tmp_path / "rows.jsonl", BenchRow)
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    with pytest.raises(ModelError, match="more than 100 bytes"):
        zonogpt.load(folder)


@pytest.mark.parametrize("name", ["../inputs/a.png", "/etc/hostname", "inputs/../../a.png", ""])
def test_inputs_of_a_benchmark_lie_in_its_directory(tmp_path, name):
    line = json.loads(instance_of(row()).to_json())
    (tmp_path / "instances.jsonl").write_text(json.dumps(line))
    assert len(Benchmark.read(tmp_path).instances) == 1
    (tmp_path / "instances.jsonl").write_text(json.dumps(line | {"input": name}))
    with pytest.raises(SpecError, match="no file in the instances' directory"):
        Benchmark.read(tmp_path)
