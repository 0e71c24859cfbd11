"""MNIST's files: big-endian headers, then unsigned bytes; plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zonogpt.errors import SpecError

SPLITS = {"test": "t10k", "train": "train"}
UNSIGNED_BYTES = 0x08
MOST_PER_COMPRESSED_BYTE = 1032  # the most that deflate can reach
MOST_BYTES = 1 << 30  # of an array; the largest of the MNIST family has 0.64e9


@dataclass(frozen=True)
class MnistFiles:
    prefix: str
    images: NDArray[np.uint8]  # (n, height, width)
    labels: NDArray[np.uint8]  # (n,)

    @staticmethod
    def are_in(folder: Path) -> bool:
        return any(folder.glob("*-images-idx3-ubyte*"))

    @staticmethod
    def open(folder: Path, split: str) -> MnistFiles:
        prefix = SPLITS[split]
        images = read_idx(find(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
        labels = read_idx(find(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
        if len(images) != len(labels) or not len(labels):
            raise SpecError(
                f"{folder} holds {len(images)} images and {len(labels)} labels; there must be as many, and some"
            )
        return MnistFiles(prefix, images, labels)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        return f"{self.prefix} {index}"

    def label(self, index: int) -> int:
        return int(self.labels[index])

    def read(self, index: int) -> Tensor:
        return torch.from_numpy(self.images[index].astype(np.float32) / 255)


def find(folder: Path, name: str) -> Path:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise SpecError(f"{folder} holds neither {name} nor {name}.gz")


def read_idx(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of one idx file of unsigned bytes with this many dimensions.

    The header is checked against the size of the file before anything is allocated for it.
    """
    try:
        with cast(BinaryIO, gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as stream:
            header = stream.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, UNSIGNED_BYTES, dimensions]):
                raise SpecError(
                    f"{file} does not begin like an MNIST file: bytes 0 0 8 {dimensions} and {dimensions} sizes"
                    f" were expected, got {' '.join(map(str, header[:4])) or 'nothing'}"
                )
            shape = [int.from_bytes(header[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
            promised = math.prod(shape)
            room = file.stat().st_size * (MOST_PER_COMPRESSED_BYTE if file.suffix == ".gz" else 1)
            if promised > room:
                raise SpecError(f"{file} promises {promised} bytes, more than the file can hold; is it cut off?")
            if promised > MOST_BYTES:
                raise SpecError(f"{file} promises {promised} bytes; more than {MOST_BYTES} are not read")
            content = stream.read(promised)
            if len(content) != promised or stream.read(1):
                raise SpecError(
                    f"{file} promises {promised} bytes and holds {'fewer' if len(content) < promised else 'more'}"
                )
        return np.frombuffer(content, np.uint8).reshape(shape)
    except (OSError, EOFError, zlib.error, ValueError) as error:  # ValueError: no bytes, but sizes beyond all memory
        raise SpecError(f"{file} cannot be read: {error}") from error
