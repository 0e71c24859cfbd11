"""A progress bar on standard error: there on a terminal, silent in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(quiet: bool, counts: bool = True) -> Iterator[Progress]:
    """What is done, and the time that is left. A bar that counts work, not things, shows no numbers: `counts` False."""
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *([MofNCompleteColumn()] if counts else []),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=hidden,
    )
    with nullcontext() if hidden else bar:  # rich before 14.3 ends a bar that nobody sees with an empty line
        yield bar
