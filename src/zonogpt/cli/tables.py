"""Tables on standard output: as wide as they need to be in a pipe, where nothing is gained by cutting them."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.table import Table


def print_table(table: Table, stream: TextIO | None = None) -> None:
    console = Console(highlight=False, file=stream)
    if not console.is_terminal:
        console = Console(highlight=False, file=stream, width=max(80, Console(width=10_000).measure(table).maximum))
    console.print(table)
