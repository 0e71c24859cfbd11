"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from zonogpt.errors import OptionError


def write_whole(file: Path, content: str | bytes) -> None:
    """Writes the file in one step, so that a reader sees all or nothing; pipes and devices are written to directly."""
    data = content.encode() if isinstance(content, str) else content
    target = file.resolve()  # behind a link, the file it points to
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        draft = _draft(target, data)
        try:
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write {file}: {error}") from error


def create_whole(file: Path, content: str) -> bool:
    """Writes the file in one step unless it is there, however many processes try; whether this one did."""
    try:
        draft = _draft(file, content.encode())
        try:
            os.link(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise OptionError(f"cannot write {file}: {error}") from error
    return True


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write to {folder}: {error}") from error


def _draft(target: Path, data: bytes) -> Path:
    """A file of its own beside the target, on the disk before it takes its name."""
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
