"""Shows long runs on the progress bar."""

from __future__ import annotations

from rich.progress import Progress

from zonogpt.studies.engine.watcher import Watcher
from zonogpt.studies.rows.record import StoredRow


class BarWatcher(Watcher):
    """Shows how many rows are finished, and what is done at the moment."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.rows = bar, 0
        self.at = bar.add_task("reading", total=None)

    @property
    def kept(self) -> str:
        return f"{self.rows} rows"

    def start(self, work: float, rows: int, found: int) -> None:
        self.rows = found
        self.bar.update(self.at, total=found + rows, completed=found)

    def job(self, name: str) -> None:
        self.note(name)

    def note(self, what: str) -> None:
        self.bar.update(self.at, description=what)

    def row(self, row: StoredRow) -> None:
        self.rows += 1
        self.bar.update(self.at, advance=1, description=row.summary)
