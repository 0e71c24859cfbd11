"""Ctrl-C in a long command: what was kept, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import typer

INTERRUPTED = 130  # the exit code that shells give a process that Ctrl-C ended


class Counts(Protocol):
    @property
    def kept(self) -> str:
        """How many rows are there, in words."""


@contextmanager
def stoppable(counts: Counts, out: Path | None) -> Iterator[None]:
    """Ctrl-C inside ends the command with one line that says what was kept in `out`."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped after {counts.kept}; {how_to_continue(out)}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def how_to_continue(out: Path | None) -> str:
    if out is None:
        return "nothing was kept: with --out DIRECTORY a run can be continued"
    return f"they are kept in {out}, and the same command goes on from there"
