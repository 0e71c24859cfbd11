"""What a run over a data set records: one row per example and radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zonogpt.studies.examples import Entry
from zonogpt.studies.rows.record import RunSettings, StoredRow, digest


@dataclass(frozen=True)
class AccuracySettings(RunSettings):
    model: str  # fingerprint of the weights
    norm: str
    method: str
    guarantee: str  # of the method
    dtype: str
    positions: str | None  # None for images
    attack: str | None  # None: no attack
    seed: int
    timeout: float | None
    budget: int | None
    version: str  # of zonogpt
    arithmetic: str = "real"  # what proofs are about
    each: bool = False  # each token that moves is an example of its own, in which only it moves


@dataclass(frozen=True)
class AccuracyRow(StoredRow):
    """One example at one radius. `margin` and `attack_margin` are None where they were not computed."""

    FLOATS: ClassVar[tuple[str, ...]] = ("margin", "attack_margin")

    index: int  # in the data set
    name: str
    label: int | None  # None: the data set has none, and the model had to keep its own answer
    predicted: int | None  # None: the model answers by the signs of its outputs
    correct: bool
    positions: list[int] | None
    tokens: list[str] | None  # what the moving tokens spell; None for images, or without a tokenizer
    radius: float
    status: str  # "misclassified", or the status of the Result
    implied: bool  # nothing was run: a proof at a larger radius in the same run settles it
    margin: float | None  # the smallest certified margin
    seconds: float | None
    broken: bool | None  # the attack found an input that breaks the claim; None without attack
    attack_margin: float | None  # the lowest margin that the attack found
    attack_seconds: float | None
    reason: str
    guarantee: str  # "bounded" or "estimated": how the proof accounts for its own rounding
    arithmetic: str  # what the proof is about: "real" or "float32"
    finished: str  # when, UTC

    @property
    def place(self) -> tuple[int, tuple[int, ...]]:
        """Which example this is, the same at every radius."""
        return self.index, tuple(self.positions or ())

    @property
    def summary(self) -> str:
        return f"{self.name}, radius {self.radius:g}: {self.status}"


def key_of(settings: str, entry: Entry, radius: float) -> str:
    """The key of the row of an example at a radius, in runs with these settings."""
    return digest((settings, entry.index, entry.content, entry.label, entry.positions, radius.hex()))
