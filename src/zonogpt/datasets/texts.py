"""A file of texts, one example per line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zonogpt.datasets.tables import IDS, Line, read_lines
from zonogpt.errors import SpecError
from zonogpt.model import checkpoint
from zonogpt.model.ir import Model
from zonogpt.model.names import output_number, tokenizer_of
from zonogpt.model.tokenizer import Text, Tokenizer
from zonogpt.support.files import read_text


@dataclass(frozen=True)
class TextLines:
    """One example per line, in the format the file's name says (tables.py). If all are like `5,17,3`, they are ids."""

    lines: tuple[int, ...]  # line numbers in the file, from 1
    texts: tuple[str, ...]
    labels: tuple[int, ...] | None
    tokenizer: Tokenizer | None  # None: the texts are token ids

    @staticmethod
    def open(file: Path, model: Model, source: str | None = None) -> TextLines:
        """`source` is where the tokenizer is, if it is not beside the model."""
        try:
            content = read_text(file, "utf-8-sig")
        except (OSError, ValueError) as error:
            raise SpecError(f"{file} is not a readable text in UTF-8: {error}") from error
        lines = read_lines(file, content, model.labels or ())
        if not lines:
            raise SpecError(f"{file} holds no examples; write one per line, as LABEL<TAB>TEXT")
        tokenizer = None
        if not all(IDS.fullmatch(line.text) for line in lines):
            tokenizer = tokenizer_of(model) if source is None else Tokenizer.beside(checkpoint.find(source), source)
        numbers, texts = tuple(line.number for line in lines), tuple(line.text for line in lines)
        return TextLines(numbers, texts, labels_of(file, lines, model), tokenizer)

    def __len__(self) -> int:
        return len(self.lines)

    def name(self, index: int) -> str:
        return f"line {self.lines[index]}"

    def label(self, index: int) -> int | None:
        return None if self.labels is None else self.labels[index]

    def read(self, index: int) -> Text | list[int]:
        if self.tokenizer is None:
            return [int(part) for part in self.texts[index].split(",")]
        return self.tokenizer.read(self.texts[index])


def labels_of(file: Path, lines: Sequence[Line], model: Model) -> tuple[int, ...] | None:
    """The numbers of all labels, which may be written as numbers or as the model's names; None if no line has one."""
    if all(line.label is None for line in lines):
        return None
    labels = []
    for line in lines:
        try:
            if line.label is None:
                raise SpecError("the label is missing, and other lines have one")
            labels.append(output_number(model, line.label))
        except SpecError as error:
            raise SpecError(f"{file}, line {line.number}: {error}") from error
    return tuple(labels)
