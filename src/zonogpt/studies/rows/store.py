"""Rows on disk: appended one by one, found again after a crash, never mixed with rows of another run."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from zonogpt.errors import OptionError, WriteError
from zonogpt.studies.rows.record import RunSettings, StoredRow
from zonogpt.support.files import create_whole, read_bytes, read_json
from zonogpt.support.locks import lock

ROWS, SETTINGS = "rows.jsonl", "settings.json"
APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)  # Windows would end lines in its own way

R = TypeVar("R", bound=StoredRow)


class BusyError(OptionError):
    """Another run is writing to the same file."""


class RowStore(Generic[R]):
    """The rows of a file, and a place to append more. Only `open_store` makes one."""

    def __init__(self, descriptor: int | None, finished: dict[str, R]) -> None:
        self._descriptor = descriptor  # None: rows are kept in memory only
        self.finished = finished  # by key

    def append(self, row: R) -> None:
        """Adds a row, which is on the disk when this returns. A crash in between leaves a line without an end, and the
        next run drops it."""
        if self._descriptor is not None:
            self._write(self._descriptor, (row.to_json() + "\n").encode())
        self.finished[row.key] = row

    def _write(self, descriptor: int, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        except OSError as error:
            raise WriteError(f"a row could not be written: {error}; the rows before it are kept") from error


@contextmanager
def open_store(folder: Path | None, settings: RunSettings, kind: type[R], name: str = ROWS) -> Iterator[RowStore[R]]:
    """Opens or begins folder/name for one run at a time. Without a folder, rows are kept in memory.

    OptionError if the folder belongs to other settings or cannot be used, BusyError if another run has the file.
    """
    if folder is None:
        yield RowStore(None, {})
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, APPENDING, 0o644)
    except OSError as error:
        raise WriteError(f"cannot keep rows in {folder}: {error}") from error
    try:
        if not lock(descriptor):
            raise BusyError(f"another run is writing to {folder / name}")
        content = content_of(folder / name)
        rows, whole = parse(content, folder / name, kind)
        _check_settings(folder, settings, rows)
        if whole < len(content):
            _cut(descriptor, whole, folder / name)
        yield RowStore(descriptor, {row.key: row for row in rows})
    finally:
        os.close(descriptor)


def _cut(descriptor: int, size: int, file: Path) -> None:
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        raise WriteError(f"cannot write {file}: {error}") from error


def content_of(file: Path) -> bytes:
    try:
        return read_bytes(file)
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot read {file}: {error}") from error


def parse(content: bytes, file: Path, kind: type[R]) -> tuple[list[R], int]:
    """The rows, and the bytes they take. A last line that a crash cut off is left out; other bad lines are refused."""
    rows, whole = [], 0
    lines = content.split(b"\n")
    unfinished = lines.pop()  # empty, if the last line is whole
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(kind.from_json(line.decode()))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines) and not unfinished:
                break  # a power cut left blocks unwritten
            raise OptionError(f"{file}, line {number} is damaged; move the file away to begin anew") from error
        whole += len(line) + 1
    return rows, whole


def _check_settings(folder: Path, settings: RunSettings, rows: Sequence[StoredRow]) -> None:
    file, ours = folder / SETTINGS, dataclasses.asdict(settings)
    if not rows and create_whole(file, json.dumps(ours, indent=2) + "\n"):
        return
    try:
        theirs = read_json(file)
        theirs = {field.name: theirs.get(field.name, _before(field)) for field in dataclasses.fields(settings)}
    except (OSError, ValueError, AttributeError) as error:
        raise OptionError(f"{folder} holds rows but no readable {SETTINGS}; give another directory") from error
    differ = [name for name in ours if theirs[name] != ours[name]]
    if differ:
        said = "; ".join(f"{name} was {theirs[name]!r}, is {ours[name]!r}" for name in differ)
        raise OptionError(f"{folder} holds rows of another run ({said}); give another directory")
    if any(row.settings != settings.digest for row in rows):
        raise OptionError(f"{folder} holds rows that do not belong to its {SETTINGS}; give another directory")


def _before(field: dataclasses.Field[object]) -> object:
    """What a setting was in runs of a version that did not know it."""
    return "unknown" if field.default is dataclasses.MISSING else field.default
