"""Splits work along the generators so that temporaries stay small, whatever the number of generators."""

from __future__ import annotations

from collections.abc import Iterator

import torch

CHUNK_BYTES = 1 << 26  # 64 MiB per temporary: far below the pool, far above the cost of a Python loop
GPU_CHUNK_BYTES = 1 << 30  # a GPU wants few, large calls


def temporary_bytes(device_type: str) -> int:
    """The bytes that one temporary over the generators may take on this kind of device."""
    return GPU_CHUNK_BYTES if device_type == "cuda" else CHUNK_BYTES


def chunks(count: int, bytes_each: int, limit: int) -> Iterator[slice]:
    """Slices that cover range(count), each worth at most `limit` bytes (but at least one item)."""
    step = max(1, limit // max(1, bytes_each))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


CPU_STREAM_BYTES = 1 << 25


def stream_limit(limit: int, device: torch.device) -> int:
    """Bytes of a chunk, for loops that visit each chunk once: at most `limit`, and less on a CPU.

    There the memory of small chunks is reused while it is in the cache. Arrays beyond some 32 MiB are mapped afresh
    every time, and clearing their pages takes longer than the work. A GPU wants few, large calls.
    """
    return min(limit, CPU_STREAM_BYTES) if device.type == "cpu" else limit
