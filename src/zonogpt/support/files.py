"""Writes files whole or not at all, and reads with care those that a stranger may have written."""

from __future__ import annotations

import gzip
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from zonogpt.errors import OptionError, WriteError

MOST_BYTES = 1 << 28  # of a text or JSON file, unpacked; no config, spec or list of rows comes near


def as_path(value: object, what: str) -> Path:
    """`value` as a path; unless it is a string or a path, OptionError, which says what the path is for."""
    if not isinstance(value, str | os.PathLike) or isinstance(path := os.fspath(value), bytes):
        raise OptionError(f"{what} must be a path, as a string or a pathlib.Path; got {value!r}")
    return Path(path)


def read_bytes(file: Path) -> bytes:
    """All of a file, unpacked if its name ends in .gz; ValueError if that is more than MOST_BYTES."""
    with cast(BinaryIO, gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as stream:
        content = stream.read(MOST_BYTES + 1)  # sizes tell too little: a device has none, a packed file grows
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    return content


def read_text(file: Path, encoding: str = "utf-8") -> str:
    return read_bytes(file).decode(encoding)


def read_json(file: Path) -> Any:
    return parse_json(read_text(file))


def parse_json(text: str) -> Any:
    """The value of a JSON text; ValueError if it is not JSON, or nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def write_whole(file: Path, content: str | bytes, accept: Callable[[Path], None] = lambda draft: None) -> None:
    """Writes the file in one step, so that a reader sees all or nothing; pipes and devices are written to directly.

    `accept` is given the draft on the disk before that takes the file's name. If it raises, nothing is written.
    """
    data = content.encode() if isinstance(content, str) else content
    target = file.resolve()  # behind a link, the file it points to
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        draft = _draft(target, data)
        try:
            accept(draft)
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(f"cannot write {file}: {error}") from error


def create_whole(file: Path, content: str) -> bool:
    """Writes the file in one step unless it exists, however many processes try; returns whether this one wrote it."""
    try:
        draft = _draft(file, content.encode())
        try:
            os.link(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise WriteError(f"cannot write {file}: {error}") from error
    return True


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot write to {folder}: {error}") from error


def _draft(target: Path, data: bytes) -> Path:
    """A new file with this content beside the target, safely on the disk before it takes the target's name."""
    draft = target.parent / f".zonogpt-{secrets.token_hex(8)}"
    try:
        with draft.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft
