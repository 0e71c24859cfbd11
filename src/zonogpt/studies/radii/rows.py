"""What a comparison records: one row per input and method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from zonogpt.studies.examples import Entry
from zonogpt.studies.rows.record import RunSettings, StoredRow, digest

ATTACK = "attack"  # listed among the methods


@dataclass(frozen=True)
class RadiusSettings(RunSettings):
    model: str  # fingerprint of the weights
    norm: str
    low: float
    high: float
    tolerance: float
    grid: list[float]
    dtype: str
    seed: int
    timeout: float | None  # seconds for an input under one method
    budget: int | None  # bytes
    version: str  # of zonogpt
    arithmetic: str = "real"  # what proofs are about


@dataclass(frozen=True)
class RadiusRow(StoredRow):
    """One input under one method. `radius` is the largest proved (0: none) or, for the attack, the smallest broken
    (inf: none)."""

    FLOATS: ClassVar[tuple[str, ...]] = ("radius",)

    index: int  # in the data set
    name: str
    label: int | None
    predicted: int | None
    positions: list[int] | None  # for a text: the tokens that move together; None for images
    tokens: list[str] | None  # what the moving tokens spell; None for images, or without a tokenizer
    method: str
    status: str  # "done", "misclassified", or why the search stopped early: "timeout", "memory"
    radius: float
    trials: list[dict[str, Any]]  # radius, status, margin, seconds, peak_bytes, in the order they were made
    seconds: float  # of all trials
    peak_bytes: int  # the largest of all trials, above what was in use before
    guarantee: str | None  # "bounded" or "estimated": how the proof accounts for its own rounding; None for an attack
    arithmetic: str  # what proofs of the run are about: "real" or "float32"
    finished: str  # when, UTC

    @property
    def summary(self) -> str:
        return f"{self.name}, {self.method}: {self.radius:g}"

    @property
    def place(self) -> tuple[int, tuple[int, ...]]:
        """Which input this is; rows of several methods share it."""
        return self.index, tuple(self.positions or ())

    @classmethod
    def read_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        trials = [trial | {"margin": float(trial["margin"])} for trial in fields["trials"]]
        return super().read_fields(fields | {"trials": trials})


def key_of(settings: str, entry: Entry, method: str) -> str:
    """The key of the row of an input under a method, in runs with these settings."""
    return digest((settings, entry.index, entry.content, entry.label, entry.positions, method))
