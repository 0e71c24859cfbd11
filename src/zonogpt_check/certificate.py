"""The file: a safetensors file with JSON in its header. Nothing in it is believed, nothing in it can run.

The digest in the header is the sha256 of the file with the digest's own 64 digits replaced by zeros.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from zonogpt_check.ball import Array, Ball
from zonogpt_check.sets import InvalidError, UnreadableError, demand

FORMAT = "zonogpt certificate 2"
LONGEST_HEADER = 1 << 24
# The errors that malformed files can lead to.
BROKEN: tuple[type[Exception], ...] = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError)
BROKEN += (RecursionError, MemoryError, SafetensorError)


class Arrays:
    """The arrays of safetensors files, by name less a prefix; raises `error` for what is wrong with them."""

    def __init__(self, files: list[Path], error: type[Exception], prefix: str = "") -> None:
        self.paths, self.error = files, error
        self.files = [safe_open(file, framework="numpy") for file in files]
        found = [(name.removeprefix(prefix), (k, name)) for k, x in enumerate(self.files) for name in x.keys()]  # noqa: SIM118
        self.where, self.unread = dict(found), {name for name, _ in found}
        demand(len(self.where) == len(found), "there are two tensors of one name", error)

    def shape(self, name: str) -> list[int]:
        demand(name in self.unread, f"{name}: is missing", self.error)
        k, full = self.where[name]
        return list(self.files[k].get_slice(full).get_shape())

    def dtype(self, name: str) -> str:
        k, full = self.where[name]
        return str(self.files[k].get_slice(full).get_dtype())

    def get(self, name: str, dtypes: str, *shape: int | None) -> NDArray[Any]:
        """The array of this name, which must have one of these types and this shape: checked before it is read."""
        found, dtype, (k, full) = self.shape(name), self.dtype(name), self.where[name]
        fits = len(found) == len(shape) and all(w in (None, n) for w, n in zip(shape, found, strict=True))
        said = f"{name}: is {dtype} {found}, not {dtypes} {list(shape)}"
        demand(fits and dtype in dtypes.split(), said, self.error)
        self.unread.remove(name)
        return _bfloat16(self.paths[k], full) if dtype == "BF16" else np.asarray(self.files[k].get_tensor(full))

    def finish(self) -> None:
        demand(not self.unread, f"{min(self.unread, default='')!a}: has no place in it", self.error)


def _bfloat16(file: Path, name: str) -> NDArray[np.float32]:
    """An array of bfloat16, which numpy does not have: each number is the upper half of a float32. The file's header
    was checked when it was opened."""
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        found = json.loads(stream.read(length))[name]
        begin, end = found["data_offsets"]
        stream.seek(8 + length + begin)
        upper = np.frombuffer(stream.read(end - begin), dtype="<u2").astype(np.uint32)
    return (upper << 16).view(np.float32).reshape(found["shape"])


class Certificate(Arrays):
    def __init__(self, file: Path) -> None:
        try:
            super().__init__([file], InvalidError)
            metadata = self.files[0].metadata() or {}
        except BROKEN as error:
            raise UnreadableError(f"{file} is not a certificate: {error}") from error
        demand(metadata.get("format") == FORMAT, f"{file} is not a {FORMAT!r}", UnreadableError)
        found = file_digest(file, metadata.get("digest", ""))
        demand(metadata.get("digest") == found, "file: the digest is not that of its content")
        try:
            self.about: dict[str, Any] = json.loads(metadata["about"])
        except BROKEN as error:
            raise UnreadableError(f"{file} has no readable description: {error!r}") from error
        self.at = "file"  # where a line was read last


class Lines:
    """The arrays of one step: choices, which may be any numbers, and claims, which must hold."""

    def __init__(self, certificate: Certificate, place: str) -> None:
        self.certificate, self.place = certificate, place

    def of(self, part: str) -> Lines:
        return Lines(self.certificate, f"{self.place}.{part}")

    def floats(self, name: str, *shape: int) -> Array:
        self.certificate.at = self.place
        array = self.certificate.get(f"{self.place}.{name}", "F64", *shape)
        self.require(name, np.isfinite(array), "is not finite")
        return array

    def gram(self, name: str, count: int, d: int) -> Array:
        """A Gram, which must be exactly symmetric: Cholesky's algorithm reads one half only, everything else both."""
        array = self.floats(name, count, d, d)
        self.require(name, array == array.swapaxes(1, 2), "is not symmetric")
        return array

    def positive(self, name: str, *shape: int) -> Array:
        array = self.floats(name, *shape)
        self.require(name, array > 0, "is a weight and must be positive")
        return array

    def flags(self, name: str, *shape: int) -> NDArray[np.bool_]:
        return self.certificate.get(f"{self.place}.{name}", "BOOL", *shape)

    def round_(self, name: str, p: float, *shape: int) -> NDArray[np.bool_] | None:
        """Which covers are balls; None unless p = 1, as only there is a choice."""
        return self.flags(f"{name}_round", *shape) if p == 1 else None

    def at_least(self, name: str, bound: Ball) -> Ball:
        """The claim `name`, which must not be below `bound`; NaN is below everything."""
        claim = self.floats(name, *bound.shape)
        self.require(name, claim >= bound.upper(), "is too small", claim, bound.upper())
        return Ball(claim)

    def require(self, name: str, holds: NDArray[np.bool_], what: str, *numbers: Array) -> None:
        if not holds.all():
            at = tuple(int(i) for i in np.argwhere(~holds)[0])
            said = "".join(f", {word} {x[at]:.17g}" for word, x in zip(("claimed", "but found"), numbers, strict=False))
            raise InvalidError(f"{self.place}.{name}{list(at)} {what}{said}")


def file_digest(file: Path, said: str) -> str:
    """The digest of the file with the digest `said`, which must be in the header exactly once, replaced by zeros."""
    with open(file, "rb") as stream:
        head = stream.read(8)
        length = int.from_bytes(head, "little")
        demand(length <= LONGEST_HEADER, f"{file} has a header of {length} bytes", UnreadableError)
        header = stream.read(length)
        demand(len(said) == 64 and header.count(said.encode()) == 1, "file: there is no digest")
        state = hashlib.sha256(head + header.replace(said.encode(), b"0" * 64))
        while block := stream.read(1 << 20):
            state.update(block)
    return state.hexdigest()
