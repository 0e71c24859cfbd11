"""Data sets in memory: one input from the command line, or the samples of a bundled model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from zonogpt.model import zoo
from zonogpt.model.tokenizer import Text


@dataclass(frozen=True, repr=False)
class Given:
    names: Sequence[str]
    inputs: Sequence[Tensor | Text | list[int]]
    labels: Sequence[int] | None  # None: the model must keep its own answers

    @staticmethod
    def one(name: str, content: Tensor | Text | list[int], label: int | None) -> Given:
        return Given([name], [content], None if label is None else [label])

    @staticmethod
    def bundled(name: str) -> Given:
        """The samples, taking the labels in turn, so that the first few are not all of one class."""
        images, labels = zoo.samples(name)
        seen: dict[int, int] = {}
        ranks = []
        for i, label in enumerate(labels.tolist()):
            ranks.append((seen.setdefault(label, 0), label, i))
            seen[label] += 1
        order = [i for _, _, i in sorted(ranks)]
        return Given(
            [f"{zoo.PREFIX}{name}/{i}" for i in order], [images[i] for i in order], [int(labels[i]) for i in order]
        )

    def __repr__(self) -> str:
        named = ", ".join(self.names[:3])
        return f"Given({len(self)} inputs: {named}{', ...' if len(self) > 3 else ''})"

    def __len__(self) -> int:
        return len(self.inputs)

    def name(self, index: int) -> str:
        return self.names[index]

    def label(self, index: int) -> int | None:
        return None if self.labels is None else self.labels[index]

    def read(self, index: int) -> Tensor | Text | list[int]:
        return self.inputs[index]
