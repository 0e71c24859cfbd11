"""What a command writes: files after the verdict, and streams that may break. None of them can cost the verdict."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.text import Text

from zonogpt.cli.options import STANDARD
from zonogpt.errors import WriteError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from zonogpt.model.ir import Model
    from zonogpt.studies.rows.record import RunSettings, StoredRow

STUDY_SCHEMA = "zonogpt-study-1"


def complain(what: object) -> None:
    """Prints one line on standard error. It is printed as text, not as markup: file names may hold anything."""
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error:", "red"), f" {what}"))


def attempt(write: Callable[..., object], *args: object) -> bool:
    """Whether `write` wrote its file. If not, the error names the file, and the command goes on."""
    try:
        write(*args)
    except WriteError as error:
        complain(error)
        return False
    return True


def answer_stream(json_file: Path | None) -> TextIO:
    """Where people read the answer: standard output, unless the JSON goes there."""
    return sys.stderr if json_file == STANDARD else sys.stdout


def write_json(file: Path, content: str) -> None:
    """Writes to standard output, or a file as a whole; WriteError names the file."""
    from zonogpt.support.files import write_whole

    if file == STANDARD:
        sys.stdout.write(content)
        return
    write_whole(file, content)


def study_json(
    model: Model, settings: RunSettings, lines: Sequence[DataclassInstance], rows: Sequence[StoredRow]
) -> str:
    """A whole run: versions, model, settings, table and rows. Infinities are the strings "inf" and "-inf"."""
    from zonogpt.studies.rows.record import plain
    from zonogpt.verification.subject import about_model, versions

    whole = {
        "schema": STUDY_SCHEMA,
        "versions": versions(),
        "model": about_model(model),
        "settings": dataclasses.asdict(settings),
        "table": [plain(dataclasses.asdict(line)) for line in lines],
        "rows": [json.loads(row.to_json()) for row in rows],
    }
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


class Guarded:
    """A standard stream that remembers its first failure instead of raising it, and is silent from then on."""

    def __init__(self, stream: TextIO | None) -> None:
        self.failure = OSError(errno.EBADF, "it is closed") if stream is None else None
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, act: Callable[[], object]) -> None:
        if self.failure is not None:
            return
        try:
            act()
        except OSError as error:
            self.failure = error
            # Discard what is left in the buffer; otherwise Python would try to write it as it exits, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
