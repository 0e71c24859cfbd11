"""Texts: one, or a file of them, as token ids; and which of their tokens move."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zonogpt.datasets.tables import IDS, INTEGER, Line, read_lines
from zonogpt.errors import OptionError, SpecError
from zonogpt.model import checkpoint
from zonogpt.support.files import read_text

VOCABULARIES = ("tokenizer.json", "vocab.json")


def encode(model: str, text: str, words: list[str]) -> tuple[list[int], list[int]]:
    """Token ids of `text` by the tokenizer beside the model, and the positions of the tokens that spell `words`."""
    return Tokenizer.beside(model).encode(text, words)


@dataclass(frozen=True)
class Tokenizer:
    model: str
    tokenizer: Any  # from transformers

    @staticmethod
    def beside(model: str) -> Tokenizer:
        from transformers import AutoTokenizer, GPT2Config  # heavy, and only texts need it

        folder = checkpoint.find(model)
        # transformers makes up an empty tokenizer where the files are missing, and every text becomes "unknown"
        if not any((folder / name).is_file() for name in VOCABULARIES):
            raise SpecError(f"{model} has no tokenizer ({' or '.join(VOCABULARIES)}); give token ids instead")
        try:
            # No python file of the folder is run. Nor is config.json read again: `load` has checked its sizes.
            tokenizer = AutoTokenizer.from_pretrained(
                folder, config=GPT2Config(), trust_remote_code=False, local_files_only=True
            )
            return Tokenizer(model, tokenizer)
        except Exception as error:  # whatever a broken tokenizer file makes transformers raise
            raise SpecError(f"the tokenizer of {model} cannot be used; give token ids instead ({error!r})") from error

    def encode(self, text: str, words: list[str]) -> tuple[list[int], list[int]]:
        try:
            encoded = self.tokenizer(text, return_offsets_mapping=True)
        except Exception as error:
            raise SpecError(f"the tokenizer of {self.model} cannot be used; give token ids ({error!r})") from error
        ids, spans = list(encoded["input_ids"]), encoded["offset_mapping"]
        unknown = self.tokenizer.unk_token_id
        if not ids or (unknown in ids and self.tokenizer.decode([unknown]) not in text):
            raise SpecError(f"the tokenizer of {self.model} cannot spell {text!r}; give token ids instead")
        positions = []
        for word in words:
            found = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text)] if word else []
            if not found:
                raise SpecError(f"the word {word!r} does not occur in the text")
            # Every occurrence moves; a token's span may begin at the space before the word.
            positions += [i for i, (a, b) in enumerate(spans) for start, end in found if a < end and b > start]
        return ids, sorted(set(positions))


@dataclass(frozen=True)
class TextLines:
    """One example per line, written as its file's name says (tables.py); if every text is as `5,17,3`, token ids."""

    lines: tuple[int, ...]  # numbers in the file, from 1
    texts: tuple[str, ...]
    labels: tuple[int, ...] | None
    tokenizer: Tokenizer | None  # None: the texts are token ids

    @staticmethod
    def open(file: Path, model: str) -> TextLines:
        try:
            content = read_text(file, "utf-8-sig")
        except (OSError, ValueError) as error:
            raise SpecError(f"{file} is not a readable text in UTF-8: {error}") from error
        lines = read_lines(file, content)
        if not lines:
            raise SpecError(f"{file} holds no examples; write one per line, as LABEL<TAB>TEXT")
        tokenizer = None if all(IDS.fullmatch(line.text) for line in lines) else Tokenizer.beside(model)
        numbers, texts = tuple(line.number for line in lines), tuple(line.text for line in lines)
        return TextLines(numbers, texts, labels_of(file, lines), tokenizer)

    def __len__(self) -> int:
        return len(self.lines)

    def name(self, index: int) -> str:
        return f"line {self.lines[index]}"

    def label(self, index: int) -> int | None:
        return None if self.labels is None else self.labels[index]

    def read(self, index: int) -> list[int]:
        if self.tokenizer is None:
            return [int(part) for part in self.texts[index].split(",")]
        return self.tokenizer.encode(self.texts[index], [])[0]


def labels_of(file: Path, lines: Sequence[Line]) -> tuple[int, ...] | None:
    """All of them or none."""
    labels = [line.label for line in lines]
    if labels.count(None) == len(labels):
        return None
    for line in lines:
        if line.label is None or not INTEGER.fullmatch(line.label):
            got = "it has none" if line.label is None else f"got {line.label[:40]!r}"
            raise SpecError(f"{file}, line {line.number}: the label must be an integer; {got}")
    return tuple(int(label) for label in labels if label is not None)


@dataclass(frozen=True)
class Positions:
    """Which tokens of each text move: the last one that is read, all, some at random, or the ones listed."""

    kind: str  # "last", "all", "random" or "listed"
    count: int = 0  # of random ones
    listed: tuple[int, ...] = ()

    @staticmethod
    def parse(text: str) -> Positions:
        """ "last", "all", "random:2" or "1,4"."""
        if not isinstance(text, str):
            raise OptionError(f'positions are a word or a list in one string, as "last" or "1,4"; got {text!r}')
        if text in ("last", "all"):
            return Positions(text)
        if match := re.fullmatch(r"random:([1-9]\d{0,8})", text, re.ASCII):
            return Positions("random", count=int(match[1]))
        if IDS.fullmatch(text):
            return Positions("listed", listed=tuple(int(part) for part in text.split(",")))
        raise OptionError(f"positions are last, all, random:2 (any number) or a list as 1,4; got {text!r}")

    def of(self, n_read: int, seed: int, index: int) -> list[int]:
        """For the text `index` of which `n_read` tokens are read. Random ones depend on seed and index only."""
        if self.kind == "listed":
            return list(self.listed)
        if self.kind == "last":
            return [n_read - 1]
        if self.kind == "all" or self.count >= n_read:
            return list(range(n_read))
        generator = torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)
        return sorted(torch.randperm(n_read, generator=generator)[: self.count].tolist())
