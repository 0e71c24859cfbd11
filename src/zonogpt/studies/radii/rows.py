"""What a comparison records: one row per input and method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zonogpt.studies.rows import record

ATTACK = "attack"  # stands among the methods


@dataclass(frozen=True)
class Settings(record.Settings):
    model: str  # fingerprint of the weights
    norm: str
    low: float
    high: float
    tolerance: float
    grid: list[float]
    dtype: str
    seed: int
    timeout: float | None
    budget: int | None
    version: str  # of zonogpt


@dataclass(frozen=True)
class Row(record.Row):
    """One input under one method; of the attack `radius` is the smallest broken one (inf: none), else the largest
    proved (0: none)."""

    FLOATS: ClassVar[tuple[str, ...]] = ("radius",)

    index: int  # in the data set
    name: str
    label: int | None
    predicted: int | None
    position: int | None  # of a text: the token that moves; None for images
    method: str
    status: str  # "done", "misclassified", or why the search stopped early: "timeout", "memory"
    radius: float
    trials: list[dict[str, Any]]  # radius, status, margin, seconds, peak_bytes, in the order they were made
    seconds: float  # all of them
    peak_bytes: int  # above what was in use before, the largest of all trials
    guarantee: str | None  # "bounded" or "estimated": how the proof accounts for its own rounding; None for an attack
    arithmetic: str  # what the proof is about: "real" or "float32"
    finished: str  # when, UTC

    @classmethod
    def from_json(cls, text: str) -> Self:
        row = super().from_json(text)
        for trial in row.trials:
            trial["margin"] = float(trial["margin"])
        return row
