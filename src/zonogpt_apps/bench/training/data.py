"""The data of training and of the instances: MNIST's images, SST-2's sentences as GPT-2 tokens.

From a directory (`mnist/` with the four original files, `sst2/` with train.tsv and validation.tsv, `gpt2/` with
vocab.json and merges.txt; files may be gzipped), or without one from Hugging Face's hub.
"""

from __future__ import annotations

import csv
import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zonogpt.datasets.idx import SPLITS, MnistFiles
from zonogpt.errors import OptionError, SpecError
from zonogpt.support.files import read_bytes
from zonogpt_apps.bench.grid import SENTENCE_TOKENS

HUB_MNIST, HUB_SST, HUB_GPT2 = "ylecun/mnist", "stanfordnlp/sst2", "openai-community/gpt2"
PARQUET = {
    (HUB_MNIST, "train"): "mnist/train-00000-of-00001.parquet",
    (HUB_MNIST, "test"): "mnist/test-00000-of-00001.parquet",
    (HUB_SST, "train"): "data/train-00000-of-00001.parquet",
    (HUB_SST, "validation"): "data/validation-00000-of-00001.parquet",
}


@dataclass(frozen=True)
class Images:
    pixels: Tensor  # (n, 28, 28) bytes
    labels: Tensor  # (n,)

    def as_floats(self, index: int) -> Tensor:
        """The image as the model reads it: (28, 28) floats in [0, 1]."""
        return self.pixels[index].float() / 255


@dataclass(frozen=True)
class Sentences:
    texts: list[str]
    ids: list[list[int]]  # no special tokens, no padding
    labels: list[int]


def read_images(data: Path | None, split: str) -> Images:
    """`split` is "train" or "test"."""
    if data is None:
        return _images_from_hub(split)
    files = MnistFiles.open(_folder(data, "mnist"), split)
    return Images(torch.tensor(files.images), torch.tensor(files.labels).long())


def read_sentences(data: Path | None, split: str, tokenizer: Any) -> Sentences:
    """`split` is "train" or "validation". Sentences longer than the models' positions are left out."""
    if data is None:
        table = _parquet(HUB_SST, split)
        found = [(str(text).strip(), int(label)) for text, label in zip(table["sentence"], table["label"], strict=True)]
    else:
        found = _read_tsv(_folder(data, "sst2"), split)
    encoded = tokenizer([text for text, _ in found])["input_ids"]
    kept = [i for i, ids in enumerate(encoded) if 0 < len(ids) <= SENTENCE_TOKENS]
    return Sentences([found[i][0] for i in kept], [encoded[i] for i in kept], [found[i][1] for i in kept])


def read_tokenizer(data: Path | None) -> Any:
    from transformers import AutoTokenizer, GPT2TokenizerFast  # slow

    if data is None:
        try:
            return AutoTokenizer.from_pretrained(HUB_GPT2, trust_remote_code=False)
        except Exception as error:  # whatever the network does
            raise OptionError(f"the tokenizer {HUB_GPT2} could not be fetched; give --data ({error})") from error
    folder = _folder(data, "gpt2")
    if not all((folder / name).is_file() for name in ("vocab.json", "merges.txt")):
        raise SpecError(f"{folder} must hold vocab.json and merges.txt")  # transformers would make up an empty one
    return GPT2TokenizerFast.from_pretrained(folder, local_files_only=True)


def _folder(data: Path, name: str) -> Path:
    if not (data / name).is_dir():
        raise SpecError(f"{data} has no folder {name}; it should hold mnist, sst2 and gpt2")
    return data / name


def _read_tsv(folder: Path, split: str) -> list[tuple[str, int]]:
    """The sentences and labels of a file with a header, then lines of `sentence<TAB>label`; no quoting."""
    plain, packed = folder / f"{split}.tsv", folder / f"{split}.tsv.gz"
    try:
        content = read_bytes(plain if plain.is_file() else packed)
        lines = csv.reader(io.StringIO(content.decode(), newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
        if next(lines, None) != ["sentence", "label"]:
            raise SpecError(f"{folder}, {split}: the first line must be sentence<TAB>label")
        return [(text.strip(), int(label)) for text, label in lines]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SpecError(f"{folder} has no readable {split}.tsv or {split}.tsv.gz: {error}") from error


def _images_from_hub(split: str) -> Images:
    from PIL import Image

    if split not in SPLITS:
        raise OptionError(f"split {split!r} is unknown; there are {' and '.join(SPLITS)}")
    table = _parquet(HUB_MNIST, split)
    pictures = [
        np.asarray(Image.open(io.BytesIO(cell["bytes"]), formats=("PNG",)).convert("L")) for cell in table["image"]
    ]
    return Images(torch.from_numpy(np.stack(pictures)), torch.tensor(table["label"]).long())


def _parquet(repository: str, split: str) -> dict[str, list[Any]]:
    """The columns of a data set on the hub."""
    try:
        from huggingface_hub import hf_hub_download
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise OptionError("data from the hub needs pyarrow: pip install 'zonogpt[bench]', or give --data") from error
    try:
        file = hf_hub_download(repository, PARQUET[repository, split], repo_type="dataset")
    except Exception as error:  # whatever the network does
        raise OptionError(f"{repository} could not be fetched from the hub; give --data ({error})") from error
    columns: dict[str, list[Any]] = read_table(file).to_pydict()
    return columns
