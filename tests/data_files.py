"""Small data sets written for the tests."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

import zonogpt


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, count: int = 20, prefix: str = "t10k", packed: bool = True) -> Path:
    """The bundled digits as MNIST's files, in an order that mixes the classes."""
    images, labels = zonogpt.zoo.samples("digits")
    order = [i * 7 % len(labels) for i in range(count)]
    for name, array in (
        (f"{prefix}-images-idx3-ubyte", (images[order] * 255).round().numpy()),
        (f"{prefix}-labels-idx1-ubyte", labels[order].numpy()),
    ):
        content = idx_bytes(array)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)
    return folder
