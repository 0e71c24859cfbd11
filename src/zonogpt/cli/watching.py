"""Long runs on the progress bar."""

from __future__ import annotations

from rich.progress import Progress

from zonogpt.studies.radii.comparison import Watcher
from zonogpt.studies.radii.rows import Row
from zonogpt.studies.radii.search import Trial


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
