"""A progress bar on standard error: there on a terminal, silent in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text


class Times(ProgressColumn):
    """The time taken and, once that can be told, the time left: "0:00:12, 0:00:30 left"."""

    def render(self, task: Task) -> Text:
        elapsed, left = task.elapsed or 0.0, task.time_remaining
        said = str(timedelta(seconds=int(elapsed)))
        return Text(said if left is None else f"{said}, {timedelta(seconds=int(left))} left")


@contextmanager
def loading(what: str, quiet: bool) -> Iterator[None]:
    """A spinner for what takes seconds before there is any progress: torch, a model."""
    console = Console(stderr=True)
    with nullcontext() if quiet or not console.is_terminal else console.status(what):
        yield


@contextmanager
def progress_bar(quiet: bool, counts: bool = True) -> Iterator[Progress]:
    """A bar that shows what is done and the time left. `counts` is False for a bar of work, not things: no numbers."""
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *([MofNCompleteColumn()] if counts else []),
        Times(),
        console=console,
        transient=True,
        disable=hidden,
    )
    with nullcontext() if hidden else bar:  # rich before 14.3 ends a bar that nobody sees with an empty line
        yield bar
