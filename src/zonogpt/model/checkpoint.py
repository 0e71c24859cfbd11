"""Reads what save_pretrained writes: config.json and safetensors, whole or in shards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from zonogpt.errors import ModelError
from zonogpt.model import zoo
from zonogpt.support.files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
             "added_tokens.json")  # fmt: skip
SHARD = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)  # a file in the same folder, and not a pickle
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def find(source: str | Path) -> Path:
    """The local directory of a model: a path as it is, zoo:NAME, or a hub name through Hugging Face's cache."""
    if str(source).startswith(zoo.PREFIX):
        return zoo.path(str(source).removeprefix(zoo.PREFIX))
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"{source} is a file; give the directory that save_pretrained wrote")
    if not HUB_NAME.fullmatch(str(source)) or str(source).startswith("."):
        raise ModelError(f"there is no directory {source}; give one that save_pretrained wrote, or a name on the hub")
    try:
        # .bin weights are left out on purpose: they are pickles, and refused below.
        return Path(snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors", "merges.txt"]))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{source} is not a directory here, and the hub could not deliver a model of that name: {reason}"
        ) from error


def refuse_adapters(folder: Path) -> None:
    """ModelError if an adapter lies beside the weights: transformers would load it, and verify would not see it."""
    found = sorted(file.name for file in folder.glob("adapter_*"))
    if found:
        raise ModelError(
            f"{folder} holds {found[0]}: transformers loads that adapter on top of the weights, so it is another"
            " network. Merge it first, in peft: model = model.merge_and_unload(); model.save_pretrained(...)"
        )


def read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = read_json(file)
    except FileNotFoundError as error:
        raise ModelError(f"{folder} has no config.json; give the directory that save_pretrained wrote") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} must hold one JSON object")
    return config


def files_of(folder: Path) -> list[Path]:
    """config.json, the files that `read_tensors` reads, and the tokenizer's files; only those that exist."""
    names = ["config.json", WEIGHTS, *TOKENIZER]
    if (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        names += [INDEX, *_shards(folder / INDEX)]
    return [folder / name for name in names if (folder / name).is_file()]


def read_tensors(folder: Path, architecture: str) -> dict[str, Tensor]:
    """All weights of a checkpoint by name."""
    if (folder / WEIGHTS).is_file():
        return _read_file(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        tensors: dict[str, Tensor] = {}
        for shard in _shards(folder / INDEX):
            tensors |= _read_file(folder / shard)
        return tensors
    pickles = sorted(file.name for file in folder.glob("*.bin"))
    if pickles:
        raise ModelError(
            f"{folder} holds {pickles[0]}: a pickle, which can run code when opened, so it is refused. To convert it:\n"
            f'  python -c "from transformers import {architecture} as M;'
            f" M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
        )
    raise ModelError(f"{folder} holds no {WEIGHTS} and no {INDEX}")


def _shards(index: Path) -> list[str]:
    try:
        shards = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a safetensors index: {error!r}") from error
    for shard in shards:
        if not SHARD.fullmatch(shard):
            raise ModelError(f"{index} names {shard!r}; only safetensors files in the same folder are read")
    return shards


def _read_file(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError as error:
        raise ModelError(f"{file} is named in the index but is not there") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{file} is not a readable safetensors file: {error}") from error
