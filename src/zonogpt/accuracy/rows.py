"""What a run over a data set records: one row per example and radius, and the settings that all rows share."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any


class UnsoundError(RuntimeError):
    """An input breaks a claim that was certified: a mistake in zonogpt, never in its input."""


@dataclass(frozen=True)
class Settings:
    """All that a row depends on besides its example and radius. Rows are only mixed where all of it is equal."""

    model: str  # fingerprint of the weights
    norm: str
    method: str
    dtype: str
    positions: str | None  # None for images
    attack: str | None  # None: no attack
    seed: int
    timeout: float | None
    budget: int | None
    version: str  # of zonogpt

    @property
    def digest(self) -> str:
        return digest(dataclasses.astuple(self))


@dataclass(frozen=True)
class Row:
    """One example at one radius. `margin` and `attack_margin` are None where they were not computed."""

    key: str
    settings: str  # the digest
    index: int  # in the data set
    name: str
    label: int | None  # None: the data set has none, and the model's own answer was to be kept
    predicted: int | None  # None: the model has one output
    correct: bool
    positions: list[int] | None
    radius: float
    status: str  # "misclassified", or the status of the Result
    implied: bool  # nothing was run: a proof at a larger radius of the same run says it all
    margin: float | None  # the smallest certified margin
    seconds: float | None
    broken: bool | None  # the attack found an input that breaks the claim; None without attack
    attack_margin: float | None  # the lowest margin that the attack found
    attack_seconds: float | None
    reason: str
    finished: str  # when, UTC

    def to_json(self) -> str:
        """One line of strict JSON; infinities are the strings "inf" and "-inf"."""
        fields = {name: _plain(value) for name, value in dataclasses.asdict(self).items()}
        return json.dumps(fields, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Row:
        """Raises ValueError for anything that is not a row."""
        fields = json.loads(text)
        if not isinstance(fields, dict) or set(fields) != {field.name for field in dataclasses.fields(Row)}:
            raise ValueError("not a row")
        for name in ("margin", "attack_margin"):
            fields[name] = None if fields[name] is None else float(fields[name])
        return Row(**fields)


def digest(value: object) -> str:
    """A short hash of plain values: strings, numbers, None, and sequences of them."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
