"""A progress bar on standard error: there on a terminal, silent in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(quiet: bool, estimate: bool = False) -> Iterator[Progress]:
    """With `estimate`, the time that is left; such a bar counts work, not things, so it shows no numbers."""
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *([] if estimate else [MofNCompleteColumn()]),
        TimeElapsedColumn(),
        *([TextColumn("left"), TimeRemainingColumn()] if estimate else []),
        console=console,
        transient=True,
        disable=hidden,
    )
    with nullcontext() if hidden else bar:  # rich before 14.3 ends a bar that nobody sees with an empty line
        yield bar
