"""Tables on standard output: as wide as they need to be in a pipe, where nothing is gained by cutting them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def print_table(table: Table) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(80, Console(width=10_000).measure(table).maximum))
    console.print(table)
