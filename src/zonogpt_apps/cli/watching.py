"""The benchmark's run on the progress bar."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress

from zonogpt_apps.bench.grid import ModelId
from zonogpt_apps.bench.rows import Row
from zonogpt_apps.bench.run import Watcher


class BenchWatcher(Watcher):
    def __init__(self, bar: Progress) -> None:
        self.bar, self.now, self.total, self.new, self.proved = bar, "", 0, 0, 0
        self.at = bar.add_task("reading", total=None)

    def start(self, work: float, rows: int, found: int) -> None:
        self.total = rows
        self.bar.update(self.at, total=work, description=f"{rows} rows to do, {found} are there")

    def model(self, model: ModelId, method: str) -> None:
        self.now = f"{model}, {method}"
        self._show(0.0)

    def rows(self, work: float, rows: Sequence[Row]) -> None:
        self.new += len(rows)
        self.proved += sum(row.status == "verified" for row in rows)
        self._show(work)

    def _show(self, work: float) -> None:
        said = f"{self.now}: {self.new} of {self.total} rows, {self.proved} proved"
        self.bar.update(self.at, advance=work, description=said)
