"""Labelled inputs from files: MNIST's own files, folders of pictures, lines of text."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torch import Tensor

from zonogpt.datasets.given import Given
from zonogpt.datasets.idx import SPLITS, MnistFiles
from zonogpt.datasets.pictures import PictureFolder
from zonogpt.datasets.texts import TextLines
from zonogpt.errors import OptionError, SpecError
from zonogpt.model import zoo
from zonogpt.model.ir import Model, check_model
from zonogpt.model.tokenizer import Text
from zonogpt.support.files import as_path


class Dataset(Protocol):
    """Inputs in a fixed order. Names and labels are known at once; an input is read when it is asked for."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """For people: which file, or line."""

    def label(self, index: int) -> int | None:
        """The label; None in a data set without labels. Either all inputs have one or none has."""

    def read(self, index: int) -> Tensor | Text | list[int]:
        """What image_ball or embedding_ball takes: an image with floats in [0, 1], a text, or token ids."""


def open_dataset(path: str | Path, model: Model, source: str | Path | None = None, split: str = "test") -> Dataset:
    """The data at `path` for this model. Texts are read with its tokenizer, or with the one at `source`.

    An image model reads a directory: MNIST's files (`split`: "test" or "train"), or pictures. A text model reads a
    file. "zoo:digits" stands for the digits that come with the bundled model.
    """
    check_model(model)
    place = as_path(path, "the data")
    if source is not None:
        source = str(as_path(source, "the source of the tokenizer"))
    if split not in SPLITS:
        raise OptionError(f"split {split!r} is unknown; there are {' and '.join(SPLITS)}")
    try:
        return _open(place, model, source, split)
    except OSError as error:  # no permission, a name that is too long, a loop of links
        raise SpecError(f"the data {str(path)!r} cannot be read: {error}") from error


def check_dataset(value: object) -> None:
    if not all(hasattr(value, name) for name in ("__len__", "name", "label", "read")):
        raise OptionError(f"a data set is needed, from open_dataset; got {type(value).__name__}")


def _open(path: Path, model: Model, source: str | None, split: str) -> Dataset:
    if str(path).startswith(zoo.PREFIX):
        if model.embedding.reads != "images":
            raise SpecError(f"{path} holds images; {model.name} reads texts: give a file with one example per line")
        return Given.bundled(str(path).removeprefix(zoo.PREFIX))
    if not path.exists():
        raise SpecError(f"there is no file or directory {str(path)!r}")
    if model.embedding.reads == "images":
        if not path.is_dir():
            raise SpecError(f"{path} is a file; {model.name} reads images: give a directory of pictures or MNIST files")
        return MnistFiles.open(path, split) if MnistFiles.are_in(path) else PictureFolder.open(path)
    if path.is_dir():
        raise SpecError(f"{path} is a directory; {model.name} reads texts: give a file with one example per line")
    return TextLines.open(path, model, source)
