"""Option values that need reading: lists of integers, sizes in bytes, files to be written."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from zonogpt.errors import OptionError

UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def integers(text: str, name: str) -> list[int]:
    """ "5,17" -> [5, 17]."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise OptionError(f"{name} takes integers separated by commas; got {text!r}") from error


def size(text: str | None) -> int | None:
    """ "512MiB" -> 536870912."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in UNITS:
        raise OptionError(f"--budget takes a number of bytes such as 512MiB or 2GB; got {text!r}")
    return int(float(match[1]) * UNITS[match[2].upper()])


def check_writable(file: Path | None) -> None:
    """Before any work: can this file be written at all?"""
    if file is not None and (file.is_dir() or not os.access(file.resolve().parent, os.W_OK)):
        raise OptionError(f"cannot write {file}: it is a directory, or its directory does not exist or is read-only")


def write_whole(file: Path, text: str) -> None:
    """Writes the file in one step: a reader sees all of it or none."""
    with tempfile.NamedTemporaryFile("w", dir=file.resolve().parent, prefix=f".{file.name}.", delete=False) as draft:
        draft.write(text)
    os.chmod(draft.name, 0o644)
    os.replace(draft.name, file)
