"""The listener that a long run reports to."""

from __future__ import annotations

from zonogpt.studies.rows.record import StoredRow


class Watcher:
    """Is told what a run does, which a command line shows. This one ignores it."""

    def start(self, work: float, rows: int, found: int) -> None:
        """`rows` rows must be made, which is `work` in total (see StoredRow.work); `found` rows exist already."""

    def job(self, name: str) -> None:
        """Work on these inputs begins."""

    def note(self, what: str) -> None:
        """The run is doing this at the moment."""

    def row(self, row: StoredRow) -> None:
        """A new row is known and stored."""
