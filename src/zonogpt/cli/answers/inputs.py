"""Which inputs a command is about: a data set, or the one image or text that is given."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from zonogpt.cli.asking import Inputs
from zonogpt.cli.options import integers
from zonogpt.datasets import Dataset, open_dataset
from zonogpt.datasets.given import Given
from zonogpt.datasets.pictures import read_image
from zonogpt.errors import OptionError
from zonogpt.model import zoo
from zonogpt.model.ir import Model, as_ids
from zonogpt.model.names import output_number, text, token_names
from zonogpt.model.tokenizer import Text
from zonogpt.spec.positions import Positions, named

STANDARD = "-"
NPY = b"\x93NUMPY"  # how a .npy file begins


@dataclass(frozen=True)
class Picture:
    name: str
    pixels: Tensor


@dataclass(frozen=True)
class Tokens:
    name: str
    content: Text | list[int]
    moving: list[int]  # positions, in increasing order


def one_input(net: Model, inputs: Inputs) -> Picture | Tokens:
    """The one image or text that is given, and which of its tokens move."""
    _require_one(inputs, "image", "text", "ids")
    if inputs.image is not None:
        _refuse_tokens(inputs)
        return _picture(inputs.image)
    content = _content(net, inputs)
    chosen = named(inputs.positions, _words(inputs))
    ids = as_ids(net, content)
    n_read = len(net.readable_ids(ids))
    if chosen is None:
        raise OptionError(f"say which tokens move, by --positions or --words. {listed(net, content, n_read)}")
    return Tokens("text", content, Positions.parse(chosen).of(content, n_read, inputs.seed))


def listed(net: Model, content: Text | list[int], n_read: int) -> str:
    """The tokens of a text with their positions, to choose from."""
    ids = list(content)[:n_read]
    spelt = token_names(net, ids)
    names = [str(k) for k in ids] if spelt is None else [repr(word) for word in spelt]
    shown = [f"{k} {name}" for k, name in enumerate(names[:40])]
    return f"The tokens: {', '.join(shown)}{', ...' * (len(names) > 40)}"


@dataclass(frozen=True)
class Chosen:
    """A data set, and which tokens of its texts move."""

    dataset: Dataset
    positions: str
    each: bool


def open_inputs(net: Model, inputs: Inputs, label: str | None = None) -> Chosen:
    """The data set, and what moves in it: by default, the last token of each text in a file, or all tokens of a single
    text, one by one."""
    _require_one(inputs, "data", "image", "text", "ids")
    if inputs.data is not None:
        if label is not None:
            raise OptionError("--label is for a single input; a data set has its own")
        if net.embedding.reads == "images":
            _refuse_tokens(inputs)
        chosen = named(inputs.positions, _words(inputs))
        return Chosen(open_dataset(inputs.data, net, split=inputs.split), chosen or "last", inputs.each)
    number = None if label is None else output_number(net, label)
    if inputs.image is None and inputs.positions is None and inputs.words is None:
        inputs = replace(inputs, positions="all", each=True)
    found = one_input(net, inputs)
    if isinstance(found, Picture):
        return Chosen(Given.one(found.name, found.pixels, number), "last", False)
    return Chosen(Given.one(found.name, found.content, number), ",".join(map(str, found.moving)), inputs.each)


def _require_one(inputs: Inputs, *names: str) -> None:
    given = [f"--{name}" for name in names if getattr(inputs, name) is not None]
    if len(given) != 1:
        all_names = [f"--{name}" for name in names]
        said = f"{', '.join(all_names[:-1])} and {all_names[-1]}"
        raise OptionError(f"give exactly one of {said}; got {' and '.join(given) or 'none'}")


def _refuse_tokens(inputs: Inputs) -> None:
    if inputs.positions is not None or inputs.words is not None or inputs.each:
        raise OptionError("--positions, --words and --each are for texts; every pixel of an image moves")


def _words(inputs: Inputs) -> list[str] | None:
    return None if inputs.words is None else inputs.words.split(",")


def _content(net: Model, inputs: Inputs) -> Text | list[int]:
    if inputs.ids is not None:
        return integers(_read(inputs.ids), "--ids")
    assert inputs.text is not None
    return text(net, _read(inputs.text))


def _read(given: str) -> str:
    """The text that was given or, for "-", what standard input holds, without its last line break."""
    return sys.stdin.read().removesuffix("\n") if given == STANDARD else given


def _picture(given: str) -> Picture:
    if given == STANDARD:
        content = sys.stdin.buffer.read()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / ("standard-input" + (".npy" if content.startswith(NPY) else ".png"))
            file.write_bytes(content)
            return Picture("standard input", read_image(file))
    bundled = given.startswith(zoo.PREFIX)
    return Picture(given if bundled else Path(given).name, read_image(Path(given)))
