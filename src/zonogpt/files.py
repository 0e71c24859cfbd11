"""Files that are there whole or not at all."""

from __future__ import annotations

import os
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
        draft = target.parent / f".zonogpt-{os.getpid()}"
        try:
            draft.write_bytes(data)
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write {file}: {error}") from error


def create_whole(file: Path, content: str) -> bool:
    """Writes the file in one step unless it is there, however many processes try; whether this one did."""
    draft = file.parent / f".zonogpt-{os.getpid()}"
    try:
        draft.write_text(content)
        try:
            os.link(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise OptionError(f"cannot write {file}: {error}") from error
    return True
