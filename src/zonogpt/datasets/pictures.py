"""Pictures: one file, or a folder of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.model import zoo

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

READABLE_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".tif", ".tiff", ".webp", ".npy")
# Formats are told by content, not by name. Pillow knows more of them, and starts Ghostscript for one.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # 3.0 is for field names
MOST_PIXELS = 1 << 24  # far more than a model reads; a small file can unpack to more than fits in memory


def read_image(file: Path) -> Tensor:
    """(height, width): a .npy of floats in [0, 1], or an 8-bit grey picture divided by 255.

    A colour picture is read if every pixel of it is grey and opaque. zoo:digits/0 is the first bundled sample.
    """
    if str(file).startswith(zoo.PREFIX):
        return _bundled(str(file).removeprefix(zoo.PREFIX))
    if not file.is_file():
        what = "a directory" if file.is_dir() else "not there"
        raise SpecError(f"the image {str(file)!r} is {what}; give a picture or a .npy file")
    if file.suffix.lower() == ".npy":
        return _read_array(file)
    with open_picture(file) as picture:
        if picture.mode not in READABLE_MODES:
            raise SpecError(f"{file} has pixel mode {picture.mode}; give 8-bit grey or colour, or a .npy of floats")
        return torch.from_numpy(_grey(picture, file).astype(np.float32) / 255)


def _bundled(name: str) -> Tensor:
    """ "digits/0" -> the first sample of the bundled model."""
    model, _, number = name.partition("/")
    images, _ = zoo.samples(model)
    if number not in map(str, range(len(images))):
        raise SpecError(
            f"there is no bundled image {zoo.PREFIX}{name}; there are {zoo.PREFIX}{model}/0 to"
            f" {zoo.PREFIX}{model}/{len(images) - 1}"
        )
    return images[int(number)]


def _grey(picture: Picture, file: Path) -> NDArray[np.uint8]:
    """The bytes of a grey and opaque picture, however it is stored; SpecError for any other."""
    if picture.mode in ("1", "L") and "transparency" not in picture.info:
        return np.asarray(picture.convert("L"))
    channels = np.asarray(picture.convert("RGBA"))
    if bool((channels[..., 3] < 255).any()):
        raise SpecError(f"{file} has transparent pixels, and it is not known what lies behind them; save it without")
    grey: NDArray[np.uint8] = channels[..., 0]
    if not bool((channels[..., :3] == grey[..., None]).all()):
        raise SpecError(
            f"{file} is in colour ({picture.mode}); the models read one channel. Save it in grey, as the training data"
            " were; with Pillow: Image.open(file).convert('L')"
        )
    return grey


def _read_array(file: Path) -> Tensor:
    """Reads only the header with numpy: numpy's own reading of the array crashes if the header's sizes are false."""
    try:
        with file.open("rb") as stream:
            shape, by_columns, dtype = HEADERS[npy.read_magic(stream)](stream)
            if dtype.kind not in "biuf" or any(n < 0 for n in shape) or math.prod(shape) > MOST_PIXELS:
                raise ValueError(f"{dtype} of shape {shape}; give at most {MOST_PIXELS} numbers")
            content = stream.read(math.prod(shape) * dtype.itemsize)
        array = np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")
        return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
    except (KeyError, ValueError, OSError, EOFError, TypeError) as error:
        raise SpecError(f"{file} is not a readable .npy array of numbers: {error}") from error


@contextmanager
def open_picture(file: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Picture]:
    """A picture whose pixels are not read yet. SpecError if it is no picture or too large, or if reading it fails."""
    from PIL import Image  # only pictures need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused below
            picture = Image.open(file, formats=formats)
        with picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"{picture.width} x {picture.height}; more than {MOST_PIXELS} pixels are not read")
            yield picture
    except SpecError:
        raise
    except Exception as error:  # Pillow raises all kinds of errors at a broken file, SyntaxError among them
        raise SpecError(f"{file} is not a readable picture: {error}") from error


@dataclass(frozen=True)
class PictureFolder:
    """FOLDER/LABEL/*.png, or a flat folder without labels.

    Pictures are ordered by name and take the labels in turn (the first picture of every label, then the second, ...),
    so that the first few are not all of one class.
    """

    folder: Path
    files: tuple[Path, ...]
    labels: tuple[int, ...] | None

    @staticmethod
    def open(folder: Path) -> PictureFolder:
        flat = pictures_in(folder)
        classes = {sub: pictures_in(sub) for sub in sorted(folder.iterdir()) if sub.is_dir()}
        classes = {sub: files for sub, files in classes.items() if files}
        if flat and classes:
            raise SpecError(
                f"{folder} holds both pictures and folders of pictures; give FOLDER/LABEL/*.png or a flat one"
            )
        if flat:
            return PictureFolder(folder, tuple(flat), None)
        if not classes:
            raise SpecError(f"{folder} holds no pictures ({', '.join(SUFFIXES)}) and no MNIST files")
        found = [(rank, label_of(sub), file) for sub, files in classes.items() for rank, file in enumerate(files)]
        found.sort(key=lambda item: item[:2])
        return PictureFolder(folder, tuple(file for _, _, file in found), tuple(label for _, label, _ in found))

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return str(self.files[index].relative_to(self.folder))

    def label(self, index: int) -> int | None:
        return None if self.labels is None else self.labels[index]

    def read(self, index: int) -> Tensor:
        return read_image(self.files[index])


def pictures_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())


def label_of(folder: Path) -> int:
    if not folder.name.isascii() or not folder.name.isdecimal():
        raise SpecError(f"the folder {folder} holds pictures, so its name must be their label, an integer from 0")
    return int(folder.name)
