"""The inputs of a data set as examples of a model: read, checked, classified, and made into specs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zonogpt.datasets import Dataset
from zonogpt.datasets.texts import Positions
from zonogpt.errors import OptionError, SpecError, ZonoGptError
from zonogpt.model.ir import Model, as_ids, as_image
from zonogpt.spec.spec import Spec, check_answer, check_positions, embedding_ball, image_ball


@dataclass(frozen=True)
class Example:
    index: int
    label: int | None
    raw: Tensor  # the image, or token ids
    positions: list[int] | None  # None for images
    predicted: int | None = None  # None: the model answers by the signs of its outputs
    correct: bool = False


@dataclass(frozen=True)
class Examples:
    net: Model  # in float64
    dataset: Dataset
    positions: Positions  # which tokens of a text move
    seed: int  # of random positions
    norm: float

    def check(self, indices: Sequence[int]) -> list[int]:
        """SpecError, with its name, for any that is not one for this model. How many tokens each moves (images: 1).

        Labels first: reading may take long.
        """
        for index in indices:
            with self.naming(index):
                check_answer(self.net, self.dataset.label(index))
        return [len(self._read(index).positions or [0]) for index in indices]

    def classified(self, index: int) -> Example:
        """The example, and whether the model gives its label (without one: its own answer) every margin above 0."""
        example = self._read(index)
        with self.naming(index):
            spec = self.spec(example, 0.0)
        with torch.no_grad():
            output = self.net.forward(spec.input.embed(spec.input.anchor))
        predicted = None if spec.label is None else int(output.argmax())
        correct = spec.claim.proved(spec.claim.margins(output))  # ties and NaN are not
        return replace(example, predicted=predicted, correct=correct)

    def spec(self, example: Example, radius: float) -> Spec:
        if example.positions is None:
            return image_ball(self.net, example.raw, radius, example.label, self.norm)
        return embedding_ball(self.net, example.raw, example.positions, radius, example.label, self.norm)

    def _read(self, index: int) -> Example:
        with self.naming(index):
            raw, label = self.dataset.read(index), self.dataset.label(index)
            if self.net.embedding.reads == "images":
                return Example(index, label, as_image(self.net, raw), None)
            ids = as_ids(self.net, raw)
            n_read = len(self.net.readable_ids(ids))
            positions = self.positions.of(n_read, self.seed, index)
            return Example(index, label, ids, list(check_positions(positions, len(ids), n_read)))

    @contextmanager
    def naming(self, index: int) -> Iterator[None]:
        """Says of which example an error is."""
        try:
            yield
        except ZonoGptError as error:
            raise SpecError(f"{self.dataset.name(index)}: {error}") from error


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
