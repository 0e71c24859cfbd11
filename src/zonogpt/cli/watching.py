"""Long runs on the progress bar."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress

from zonogpt.bench import rows as bench_rows
from zonogpt.bench.grid import ModelId
from zonogpt.bench.run import Watcher as RunWatcher
from zonogpt.compare import Watcher
from zonogpt.radii.rows import Row
from zonogpt.radii.search import Trial


class BarWatcher(Watcher):
    def __init__(self, bar: Progress) -> None:
        self.bar, self.now, self.kept = bar, "", 0
        self.at = bar.add_task("reading", total=None)

    def start(self, total: int) -> None:
        self.bar.update(self.at, total=total)

    def task(self, name: str, method: str) -> None:
        self.now = f"{name}, {method}"
        self.bar.update(self.at, description=self.now)

    def trial(self, trial: Trial) -> None:
        self.bar.update(self.at, description=f"{self.now}, radius {trial.radius:g}: {trial.status}")

    def row(self, row: Row) -> None:
        self.kept += 1
        self.bar.update(self.at, advance=1)


class BenchWatcher(RunWatcher):
    def __init__(self, bar: Progress) -> None:
        self.bar, self.now, self.total, self.new, self.proved = bar, "", 0, 0, 0
        self.at = bar.add_task("reading", total=None)

    def start(self, work: float, rows: int, found: int) -> None:
        self.total = rows
        self.bar.update(self.at, total=work, description=f"{rows} rows to do, {found} are there")

    def model(self, model: ModelId, method: str) -> None:
        self.now = f"{model}, {method}"
        self._show(0.0)

    def rows(self, work: float, rows: Sequence[bench_rows.Row]) -> None:
        self.new += len(rows)
        self.proved += sum(row.status == "verified" for row in rows)
        self._show(work)

    def _show(self, work: float) -> None:
        said = f"{self.now}: {self.new} of {self.total} rows, {self.proved} proved"
        self.bar.update(self.at, advance=work, description=said)
