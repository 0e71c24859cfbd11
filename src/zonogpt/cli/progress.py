"""A progress bar on standard error: there on a terminal, silent in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(quiet: bool, estimate: bool = False) -> Iterator[Progress]:
    """With `estimate`, the time that is left; such a bar counts work, not things, so it shows no numbers."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *([] if estimate else [MofNCompleteColumn()]),
        TimeElapsedColumn(),
        *([TextColumn("left"), TimeRemainingColumn()] if estimate else []),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    with bar:
        yield bar
