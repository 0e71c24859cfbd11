"""The benchmark's run on the progress bar."""

from __future__ import annotations

from rich.progress import Progress

from zonogpt.studies.engine.watcher import Watcher
from zonogpt.studies.rows.record import StoredRow
from zonogpt_apps.bench.rows import BenchRow


class BenchWatcher(Watcher):
    """Shows how much of the work is done, weighted so that the remaining time can be predicted."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.now, self.total, self.new, self.proved = bar, "", 0, 0, 0
        self.at = bar.add_task("reading", total=None)

    @property
    def kept(self) -> str:
        return f"{self.new} new rows"

    def start(self, work: float, rows: int, found: int) -> None:
        self.total = rows
        self.bar.update(self.at, total=work, description=f"{rows} rows to do, {found} are there")

    def job(self, name: str) -> None:
        self.now = name
        self._show(0.0)

    def row(self, row: StoredRow) -> None:
        assert isinstance(row, BenchRow)
        self.new += 1
        self.proved += row.status == "verified"
        self._show(row.work)

    def _show(self, work: float) -> None:
        said = f"{self.now}: {self.new} of {self.total} rows, {self.proved} proved"
        self.bar.update(self.at, advance=work, description=said)
