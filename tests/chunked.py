"""Chunk loops with the smallest possible chunks, and a count of their rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from zonogpt.domains import chunks
from zonogpt.transforms import gelu


@contextmanager
def smallest_chunks() -> Iterator[list[int]]:
    """Methods A to D take one generator, query or piece of GELU at a time; yields each loop's number of rounds."""
    rounds: list[int] = []

    def counted(*args: int) -> range:
        steps = range(*args)
        rounds.append(len(steps))
        return steps

    with (
        mock.patch.object(chunks, "CHUNK_BYTES", 1),
        mock.patch.dict(gelu.PIECES_BYTES, cpu=1),
        mock.patch.object(chunks, "range", counted, create=True),
    ):
        yield rounds
