"""A benchmark small enough for tests: the bundled digits, sentences of a few words, and a tokenizer of single bytes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

from data_files import write_mnist

GOOD, BAD = ("good", "fine", "fun", "warm", "sharp"), ("bad", "dull", "weak", "cold", "flat")
FRAMES = ("{}", "a {} film", "it is {}", "so {} .", "{} acting", "what a {} mess of it")


def sentences() -> list[tuple[str, int]]:
    return [(frame.format(word), label) for frame in FRAMES for label, words in ((1, GOOD), (0, BAD)) for word in words]


def write_sst(folder: Path, split: str, rows: list[tuple[str, int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
    (folder / f"{split}.tsv.gz").write_bytes(gzip.compress(content.encode()))


def write_tokenizer(folder: Path) -> None:
    """Every byte is a token."""
    folder.mkdir(parents=True, exist_ok=True)
    symbols = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({symbol: i for i, symbol in enumerate(symbols)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")


def write_data(folder: Path) -> Path:
    """A data directory as `bench train --data` reads it."""
    for prefix in ("train", "t10k"):
        write_mnist(folder / "mnist", prefix=prefix)
    for split in ("train", "validation"):
        write_sst(folder / "sst2", split, sentences())
    write_tokenizer(folder / "gpt2")
    return folder
