"""The identity of a network: digests of its weights and of the files that it was read from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zonogpt.errors import ModelError
from zonogpt.model.ir import Model
from zonogpt.support.tensors import fingerprint


def weights_digest(model: Model) -> str:
    """A digest of all that the outputs depend on: embedding, blocks, head, architecture and the id of padding."""
    return fingerprint((model.embedding, model.blocks, model.head, model.architecture, model.pad_token_id))


@dataclass(frozen=True)
class ModelFiles:
    """The files that a model was read from, as they were then: a file that has changed since is refused."""

    stamps: tuple[tuple[Path, tuple[int, ...]], ...]  # file, and what shows whether it has changed

    @staticmethod
    def of(files: Sequence[Path]) -> ModelFiles:
        """Stamps files that are about to be read."""
        return ModelFiles(tuple((file, _stamp(file)) for file in files))

    def sha256(self) -> dict[str, str]:
        """The digests by file name, as `sha256sum` prints them. ModelError if a file has changed since it was read."""
        digests = {}
        for file, _ in self.stamps:
            try:
                with file.open("rb") as stream:
                    digests[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError as error:
                raise ModelError(f"{file}, which the model was read from, cannot be read any more: {error}") from error
        self.require_unchanged()
        return digests

    def require_unchanged(self) -> None:
        for file, stamp in self.stamps:
            try:
                changed = _stamp(file) != stamp
            except OSError as error:
                raise ModelError(f"{file}, which the model was read from, cannot be read any more: {error}") from error
            if changed:
                raise ModelError(f"{file} has changed since the model was read from it; load the model again")


def _stamp(file: Path) -> tuple[int, ...]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
