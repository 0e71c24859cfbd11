"""What a run of the benchmark records: one row per instance and method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zonogpt.studies.rows import record
from zonogpt_apps.bench.grid import ModelId


@dataclass(frozen=True)
class Settings(record.Settings):
    """What all rows of a directory share. Methods, models and devices may be mixed in one: every row names its own."""

    dtype: str
    timeout: float | None  # seconds of a propagation
    budget: int | None  # bytes
    attack: str | None  # on claims that were not proved; None: none
    version: str  # of zonogpt


@dataclass(frozen=True)
class Row(record.Row):
    FLOATS: ClassVar[tuple[str, ...]] = ("margin", "attack_margin")

    task: str
    size: str
    blocks: int
    instance: str  # unique within model and radius
    claim: str  # "7 > 3": output 7 stays above output 3
    radius: float
    method: str
    status: str  # verified, falsified, unknown or timeout: of this one claim
    margin: float  # certified lower bound; -inf where nothing is
    seconds: float  # of the propagation, shared among its claims and those that ran with it
    accuracy: float  # of the model
    model_hash: str
    input_hash: str
    device: str
    commit: str
    relative_radius: float
    training: str
    input: str  # file, in the instances' directory
    positions: list[int] | None
    dtype: str
    peak_bytes: int
    attack_margin: float | None  # the lowest margin that a search found; None: nothing was searched
    reason: str  # of the propagation, as far as it is about this claim
    ledger: dict[str, float] | None  # by residual block, see Ledger; on the first claim of a propagation
    guarantee: str  # "bounded" or "estimated": how the proof accounts for its own rounding
    arithmetic: str  # what the proof is about: "real" or "float32"
    finished: str  # when, UTC

    @property
    def model(self) -> ModelId:
        return ModelId(self.task, self.size, self.blocks)
