"""Which inputs a command is about: a data set, or the one image or text that is given."""

from __future__ import annotations

from pathlib import Path

from zonogpt.cli.options import integers
from zonogpt.datasets import Dataset, open_dataset
from zonogpt.datasets.given import Given
from zonogpt.datasets.pictures import read_image
from zonogpt.datasets.texts import encode
from zonogpt.errors import OptionError
from zonogpt.model import zoo
from zonogpt.model.ir import Model


def open_inputs(
    net: Model,
    model: str,
    data: Path | None,
    split: str,
    image: Path | None,
    text: str | None,
    ids: str | None,
    positions: str | None,
    label: int | None,
) -> tuple[Dataset, str]:
    """The data set, and which tokens of a text are looked at, one by one: by default all of a single text, the last of
    each in a file."""
    given = {"--data": data, "--image": image, "--text": text, "--ids": ids}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise OptionError(f"give exactly one of --data, --image, --text and --ids; got {' and '.join(named) or 'none'}")
    if positions is not None and net.embedding.reads == "images":
        raise OptionError("--positions is for texts; every pixel of an image moves")
    if data is not None:
        if label is not None:
            raise OptionError("--label is for a single input; a data set has its own")
        return open_dataset(data, net, model, split), positions or "last"
    if image is not None:
        bundled = str(image).startswith(zoo.PREFIX)
        return Given.one(str(image) if bundled else image.name, read_image(image), label), "last"
    tokens = integers(ids, "--ids") if ids is not None else encode(model, text or "", [])[0]
    return Given.one("text", tokens, label), positions or "all"
