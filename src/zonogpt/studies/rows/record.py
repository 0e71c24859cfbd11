"""What a long run records: rows that are one line of JSON each, and the settings that all of them share."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zonogpt.support.files import parse_json


@dataclass(frozen=True)
class Settings:
    """All that a row depends on besides its own input. Rows are only mixed where all of it is equal."""

    @property
    def digest(self) -> str:
        return digest(dataclasses.astuple(self))


@dataclass(frozen=True)
class Row:
    """`key` tells the row from all others of any run, `settings` is the digest of its run's settings."""

    FLOATS: ClassVar[tuple[str, ...]] = ()  # fields that may be infinite, which JSON has no number for

    key: str
    settings: str

    def to_json(self) -> str:
        """One line of strict JSON; infinities are the strings "inf" and "-inf"."""
        return json.dumps(_plain(dataclasses.asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ValueError for anything that is not a row."""
        fields = parse_json(text)
        if not isinstance(fields, dict) or set(fields) != {field.name for field in dataclasses.fields(cls)}:
            raise ValueError("not a row")
        for name in cls.FLOATS:
            fields[name] = None if fields[name] is None else float(fields[name])
        return cls(**fields)


def digest(value: object) -> str:
    """A short hash of plain values: strings, numbers, None, and sequences of them."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
