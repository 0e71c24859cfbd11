"""Ctrl-C in a long command: what was kept, and how to go on."""

from __future__ import annotations

from pathlib import Path

INTERRUPTED = 130  # as shells say of a process that Ctrl-C ended


def how_to_continue(out: Path | None) -> str:
    if out is None:
        return "nothing was kept: with --out DIRECTORY a run can be continued"
    return f"they are kept in {out}, and the same command goes on from there"
