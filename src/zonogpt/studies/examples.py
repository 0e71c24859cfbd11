"""The inputs of a data set as examples of a model: read, checked, made into specs, and answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.datasets import Dataset
from zonogpt.errors import OptionError, SpecError, ZonoGptError
from zonogpt.model.ir import Model, as_ids, as_image
from zonogpt.model.names import token_names
from zonogpt.spec.answer import Asked, check_answer
from zonogpt.spec.positions import Positions
from zonogpt.spec.spec import Spec, check_positions, embedding_ball, image_ball
from zonogpt.support.tensors import fingerprint


@dataclass(frozen=True)
class Entry:
    """Everything that tells one example from others. It holds only a fingerprint of the content."""

    index: int  # in the data set
    name: str
    label: int | None
    positions: tuple[int, ...] | None  # tokens that move; None for images
    content: str  # fingerprint
    tokens: tuple[str, ...] | None = None  # what the moving tokens spell; None for images, or without a tokenizer


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
    each: bool = False  # every token that moves is an example of its own, in which only it moves

    def check(self, indices: Sequence[int]) -> list[Entry]:
        """The entries of these examples; SpecError, with its name, for any that does not suit this model.

        Labels are checked first, as reading may take long.
        """
        for index in indices:
            with naming(self.dataset.name(index)):
                check_answer(self.model, Asked(self.dataset.label(index)))
        entries = [self._read(index).entry for index in indices]
        return [one for entry in entries for one in each_token(entry)] if self.each else entries

    def example(self, entry: Entry) -> Example:
        """The example with its content, which is only read now; SpecError if it has changed since."""
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
            at = check_positions(self.positions.of(raw, n_read, self.seed, index), len(ids), n_read)
            spelt = token_names(self.model, [int(ids[k]) for k in at])
            return Example(Entry(index, name, label, at, fingerprint(ids), spelt), ids.cpu())


def tokens_called(positions: Sequence[int] | None, tokens: Sequence[str] | None) -> str:
    """ "' good' (3), ' film' (4)", or "positions 3, 4" without a tokenizer; empty for images."""
    at = positions or ()
    if tokens is None:
        return f"position{'s' * (len(at) > 1)} {', '.join(map(str, at))}" if at else ""
    return ", ".join(f"{token!r} ({position})" for token, position in zip(tokens, at, strict=True))


def each_token(entry: Entry) -> list[Entry]:
    """An image's entry as it is; for a text, one entry for every token that moves."""
    if entry.positions is None:
        return [entry]
    alone = []
    for k, position in enumerate(entry.positions):
        spelt = None if entry.tokens is None else (entry.tokens[k],)
        alone.append(dataclasses.replace(entry, positions=(position,), tokens=spelt))
    return alone


@dataclass(frozen=True)
class Answer:
    """The model's answer to an example."""

    predicted: int | None  # None: the model answers by the signs of its outputs
    correct: bool  # all margins of the label (without one: of the model's own answer) are above 0


@dataclass(frozen=True)
class Balls:
    """The balls of a norm around examples, as input sets of a model in float64."""

    net: Model
    norm: float

    def spec(self, example: Example, radius: float) -> Spec:
        entry = example.entry
        if entry.positions is None:
            return image_ball(self.net, example.raw, radius, entry.label, norm=self.norm)
        return embedding_ball(self.net, example.raw, entry.positions, radius, entry.label, norm=self.norm)

    def answer(self, example: Example) -> Answer:
        with naming(example.entry.name):
            spec = self.spec(example, 0.0)
        with torch.no_grad():
            output = self.net.forward(spec.input.embed(spec.input.anchor))
        predicted = None if spec.label is None else int(output.argmax())
        return Answer(predicted, spec.claim.proved(spec.claim.margins(output)))  # ties and NaN are not correct


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Adds the example's name to an error."""
    try:
        yield
    except ZonoGptError as error:
        raise SpecError(f"{name}: {error}") from error


def chosen_indices(available: int, count: int | None, skip: int) -> range:
    """The indices of `count` examples after the first `skip`; without a count, of all after them."""
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
