"""Whom a long run tells what it does."""

from __future__ import annotations

from zonogpt.studies.rows.record import StoredRow


class Watcher:
    """Told what a run does; a command line shows it. This one does not listen."""

    def start(self, work: float, rows: int, found: int) -> None:
        """So many rows are to be made, which is so much work (see StoredRow.work); so many are there already."""

    def job(self, name: str) -> None:
        """Work on these inputs begins."""

    def note(self, what: str) -> None:
        """What is done at the moment."""

    def row(self, row: StoredRow) -> None:
        """A new row is there, and stored."""
