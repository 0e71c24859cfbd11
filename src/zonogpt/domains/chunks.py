"""Splits work along the generators so that temporaries stay small, whatever the number of generators."""

from __future__ import annotations

from collections.abc import Iterator

CHUNK_BYTES = 1 << 26  # 64 MiB per temporary: far below the pool, far above the cost of a Python loop


def chunks(count: int, bytes_each: int, limit: int = CHUNK_BYTES) -> Iterator[slice]:
    """Slices that cover range(count), each worth at most `limit` bytes (but at least one item)."""
    step = max(1, limit // max(1, bytes_each))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
