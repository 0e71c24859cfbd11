"""The inputs of a data set as examples of a model: read, checked, made into specs, and answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.datasets import Dataset
from zonogpt.datasets.texts import Positions
from zonogpt.errors import OptionError, SpecError, ZonoGptError
from zonogpt.model.ir import Model, as_ids, as_image
from zonogpt.spec.spec import Spec, check_answer, check_positions, embedding_ball, image_ball
from zonogpt.support.tensors import fingerprint


@dataclass(frozen=True)
class Entry:
    """All that tells one example from others; what is in it is only named."""

    index: int  # in the data set
    name: str
    label: int | None
    positions: tuple[int, ...] | None  # tokens that move; None for images
    content: str  # fingerprint


@dataclass(frozen=True, eq=False)
class Example:
    entry: Entry
    raw: Tensor  # the image, or token ids; on the CPU


@dataclass(frozen=True)
class Examples:
    """The examples of a data set, as a model reads them."""

    model: Model
    dataset: Dataset
    positions: Positions  # which tokens of a text move
    seed: int  # of random positions

    def check(self, indices: Sequence[int]) -> list[Entry]:
        """SpecError, with its name, for any that is not one for this model. Labels first: reading may take long."""
        for index in indices:
            with naming(self.dataset.name(index)):
                check_answer(self.model, self.dataset.label(index))
        return [self._read(index).entry for index in indices]

    def example(self, entry: Entry) -> Example:
        """What is in it, which is read when it is needed."""
        found = self._read(entry.index)
        if found.entry.content != entry.content:
            raise SpecError(f"{entry.name} has changed since the run began")
        return Example(entry, found.raw)

    def _read(self, index: int) -> Example:
        name, label = self.dataset.name(index), self.dataset.label(index)
        with naming(name):
            raw = self.dataset.read(index)
            if self.model.embedding.reads == "images":
                image = as_image(self.model, raw).cpu()
                return Example(Entry(index, name, label, None, fingerprint(image)), image)
            ids = as_ids(self.model, raw)
            n_read = len(self.model.readable_ids(ids))
            at = check_positions(self.positions.of(n_read, self.seed, index), len(ids), n_read)
            return Example(Entry(index, name, label, at, fingerprint(ids)), ids.cpu())


@dataclass(frozen=True)
class Answer:
    """What the model says of an example."""

    predicted: int | None  # None: the model answers by the signs of its outputs
    correct: bool  # gives the label (without one: its own answer) every margin above 0


@dataclass(frozen=True)
class Balls:
    """The balls of a norm around examples, as input sets of a model in float64."""

    net: Model
    norm: float

    def spec(self, example: Example, radius: float) -> Spec:
        entry = example.entry
        if entry.positions is None:
            return image_ball(self.net, example.raw, radius, entry.label, self.norm)
        return embedding_ball(self.net, example.raw, entry.positions, radius, entry.label, self.norm)

    def answer(self, example: Example) -> Answer:
        with naming(example.entry.name):
            spec = self.spec(example, 0.0)
        with torch.no_grad():
            output = self.net.forward(spec.input.embed(spec.input.anchor))
        predicted = None if spec.label is None else int(output.argmax())
        return Answer(predicted, spec.claim.proved(spec.claim.margins(output)))  # ties and NaN are not


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Says of which example an error is."""
    try:
        yield
    except ZonoGptError as error:
        raise SpecError(f"{name}: {error}") from error


def chosen_indices(available: int, count: int | None, skip: int) -> range:
    """Indices of `count` examples behind the first `skip`; all of them without a count."""
    for what, number in (("count", count), ("number of examples to skip", skip)):
        if number is not None and type(number) is not int:
            raise OptionError(f"the {what} must be an integer; got {number!r}")
    if count is not None and count < 1:
        raise OptionError(f"the count must be at least 1; got {count}")
    if skip < 0:
        raise OptionError(f"the number of examples to skip cannot be negative; got {skip}")
    if skip >= available:
        raise OptionError(f"{skip} examples are to be skipped, but the data set has {available}")
    return range(skip, available if count is None else min(available, skip + count))


def model_fingerprint(model: Model) -> str:
    """Equal for models that compute the same."""
    return fingerprint((model.embedding, model.blocks, model.head, model.architecture, model.pad_token_id))
