"""What a long run records: rows that are one line of JSON each, and the settings that all of them share."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zonogpt.support.files import parse_json


@dataclass(frozen=True)
class RunSettings:
    """Everything that a row depends on besides its own input. Rows are only mixed if all of it is equal.

    A field that a later version added has a default: what runs did before the choice existed.
    """

    @property
    def digest(self) -> str:
        """A hash without the fields at their default, so that rows from before such a field existed stay valid."""
        values = [(getattr(self, field.name), field.default) for field in dataclasses.fields(self)]
        return digest([value for value, default in values if default is dataclasses.MISSING or value != default])


@dataclass(frozen=True)
class StoredRow:
    """A row of a run. `key` tells it from all other rows of any run; `settings` is the digest of its run's settings."""

    FLOATS: ClassVar[tuple[str, ...]] = ()  # fields that may be infinite, which JSON has no number for

    key: str
    settings: str

    @property
    def summary(self) -> str:
        """What the row is about and what came out, in a few words, for a progress bar."""
        raise NotImplementedError

    @property
    def work(self) -> float:
        """Roughly how long the row took to make, in units of the run. It serves to estimate the time that is left."""
        return 1.0

    def to_json(self) -> str:
        """One line of strict JSON; infinities are the strings "inf" and "-inf"."""
        return json.dumps(plain(dataclasses.asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ValueError for anything that is not a row."""
        fields = parse_json(text)
        if not isinstance(fields, dict) or set(fields) != {field.name for field in dataclasses.fields(cls)}:
            raise ValueError("not a row")
        return cls(**cls.read_fields(fields))

    @classmethod
    def read_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields as they were before they became JSON."""
        return fields | {name: None if fields[name] is None else float(fields[name]) for name in cls.FLOATS}


def digest(value: object) -> str:
    """A short hash of plain values: strings, numbers, None, and sequences of them."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def now() -> str:
    """The time in UTC, for rows."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def plain(value: Any) -> Any:
    """The value as JSON can hold it: infinities and NaN become strings."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
