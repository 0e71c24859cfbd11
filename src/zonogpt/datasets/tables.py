"""Lines of text from a file, with or without labels: CSV, TSV, JSON lines or plain text, as the file's name says."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zonogpt.errors import SpecError
from zonogpt.support.files import parse_json

TEXT, LABEL = ("text", "sentence", "ids"), "label"  # names of columns, and of keys in JSON
INTEGER = re.compile(r"\s*[-+]?\d{1,18}\s*", re.ASCII)
IDS = re.compile(r"\s*\d{1,18}\s*(,\s*\d{1,18}\s*)*", re.ASCII)
LABEL_FIRST, LABEL_LAST = re.compile(r"\s*-?\d+\s*,.*[^\d\s,]"), re.compile(r".*[^\d\s,].*,\s*-?\d+\s*")


@dataclass(frozen=True)
class Line:
    number: int  # in the file, from 1
    text: str  # or token ids, as 5,17,3
    label: str | None


def read_lines(file: Path, content: str, names: Collection[str] = ()) -> list[Line]:
    """Every line that is not empty. SpecError, with the line's number, for one not in the format the file's name says.

    `names` are the names of the labels. In a table without a header they tell which column is the label.
    """
    name = file.with_suffix("") if file.suffix.lower() == ".gz" else file
    return READERS.get(name.suffix.lower(), _plain)(file, content, names)


def _csv(file: Path, content: str, names: Collection[str]) -> list[Line]:
    rows = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        return _columns(file, [(rows.line_num, row) for row in rows if row], "CSV", names)
    except csv.Error as error:
        raise SpecError(f"{file}, line {rows.line_num} is not CSV: {error}") from error


def _tsv(file: Path, content: str, names: Collection[str]) -> list[Line]:
    return _columns(file, [(n, line.split("\t")) for n, line in _numbered(content)], "TSV", names)


def _columns(file: Path, rows: list[tuple[int, list[str]]], kind: str, names: Collection[str]) -> list[Line]:
    """The lines of a table. Its header names the column of texts (TEXT) and may name that of labels (LABEL).

    Without a header, the column of labels is the one that holds nothing but integers and names of labels.
    """
    if not rows:
        return []
    header = [cell.strip().lower() for cell in rows[0][1]]
    for number, row in rows:
        if len(row) != len(header):
            raise SpecError(f"{file}, line {number} has {len(row)} columns, and line {rows[0][0]} has {len(header)}")
    if any(name in TEXT for name in header):
        rows, at = rows[1:], next(k for k, name in enumerate(header) if name in TEXT)
        label = header.index(LABEL) if LABEL in header else None
    elif LABEL in header:
        raise SpecError(
            f"{file} begins with the columns {', '.join(header)}, and none of them is the text: call that one"
            f" {' or '.join(TEXT)}"
        )
    elif len(header) == 1:
        at, label = 0, None
    else:
        label = _label_column(file, [row for _, row in rows], kind, names)
        at = 1 - label
    return [Line(n, row[at], None if label is None else row[label]) for n, row in rows]


def _label_column(file: Path, rows: list[list[str]], kind: str, names: Collection[str]) -> int:
    """The only one of two columns that holds nothing but integers and names of labels; the first, if both of a TSV do.

    SpecError if there is no such column.
    """

    def is_label(cell: str) -> bool:
        return INTEGER.fullmatch(cell) is not None or cell.strip() in names

    labels = [k for k in range(len(rows[0])) if all(is_label(row[k]) for row in rows)]
    if len(rows[0]) == 2 and kind == "TSV" and 0 in labels:  # LABEL<TAB>5, a text of one token id
        return 0
    if len(rows[0]) != 2 or len(labels) != 1:
        raise SpecError(
            f"{file} is {kind} without a header, and it is not clear which of its {len(rows[0])} columns is the text"
            f" and which the label: begin it with a line such as label{',' if kind == 'CSV' else '<TAB>'}text"
        )
    return labels[0]


def _jsonl(file: Path, content: str, names: Collection[str]) -> list[Line]:
    return [_object(file, number, line) for number, line in _numbered(content)]


def _object(file: Path, number: int, line: str) -> Line:
    wanted = (
        '{"text": "a film", "label": 1} or {"ids": [5, 17, 3], "label": 1}, the label an integer, a name, or left out'
    )
    try:
        found = parse_json(line)
    except ValueError as error:
        raise SpecError(f"{file}, line {number} is not JSON ({error}); write {wanted}") from error
    keys = [key for key in TEXT if isinstance(found, dict) and key in found]
    if len(keys) != 1 or not _is_text(keys[0], found[keys[0]]) or not _is_label(found.get(LABEL)):
        raise SpecError(f"{file}, line {number} is {line.strip()[:60]}; write {wanted}")
    text, label = found[keys[0]], found.get(LABEL)
    return Line(number, ",".join(map(str, text)) if keys[0] == "ids" else text, None if label is None else str(label))


def _is_text(key: str, value: Any) -> bool:
    if key == "ids":
        return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)
    return isinstance(value, str)


def _is_label(value: Any) -> bool:
    return value is None or type(value) is int or isinstance(value, str)


def _plain(file: Path, content: str, names: Collection[str]) -> list[Line]:
    """LABEL<TAB>TEXT, or texts alone; lines that look like one of the other kinds are refused."""
    numbered = _numbered(content)
    labelled = ["\t" in line for _, line in numbered]
    if any(labelled) and not all(labelled):
        odd = numbered[labelled.index(False)][0]
        raise SpecError(f"{file}, line {odd} has no label (LABEL<TAB>TEXT), but other lines have one")
    if labelled and labelled[0]:
        return [Line(n, text, label) for n, line in numbered for label, _, text in [line.partition("\t")]]
    _refuse_other_kinds(file, [line for _, line in numbered])
    return [Line(n, line, None) for n, line in numbered]


def _refuse_other_kinds(file: Path, lines: list[str]) -> None:
    """SpecError for lines that look like CSV or JSON: their labels would become part of the texts, unnoticed."""
    if not lines or all(IDS.fullmatch(line) for line in lines):
        return
    kind = None
    names = {cell.strip(' "').lower() for cell in lines[0].split(",")}
    if _all(lines, LABEL_FIRST.fullmatch) or _all(lines, LABEL_LAST.fullmatch) or (names & {*TEXT} and LABEL in names):
        kind = "CSV", ".csv"
    elif any(map(_is_json, lines)):
        kind = "JSON", ".jsonl"
    if kind is not None:
        raise SpecError(
            f"{file} looks like {kind[0]}, and would be read as plain text by its name: call it {kind[1]}, or write one"
            " example per line as LABEL<TAB>TEXT. Texts that only look so go into a .jsonl file"
        )


def _all(lines: Iterable[str], test: Callable[[str], object]) -> bool:
    return all(test(line) for line in lines)


def _is_json(line: str) -> bool:
    if not line.strip().startswith(("{", "[")):
        return False
    try:
        return isinstance(parse_json(line), dict | list)
    except ValueError:
        return False


def _numbered(content: str) -> list[tuple[int, str]]:
    return [(n, line.rstrip("\r")) for n, line in enumerate(content.split("\n"), start=1) if line.strip()]


READERS: dict[str, Callable[[Path, str, Collection[str]], list[Line]]] = {
    ".csv": _csv, ".tsv": _tsv, ".jsonl": _jsonl, ".ndjson": _jsonl,
}  # fmt: skip
