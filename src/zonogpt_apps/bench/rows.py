"""What a run of the benchmark records: one row per instance and method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from zonogpt.studies.rows.record import RunSettings, StoredRow
from zonogpt_apps.bench.grid import N_CLASSES, SIZES
from zonogpt_apps.bench.instances import Subject, with_tuple


@dataclass(frozen=True)
class BenchSettings(RunSettings):
    """What all rows of a directory share. Methods, models and devices may be mixed in one: every row names its own."""

    dtype: str
    timeout: float | None  # seconds of a propagation
    budget: int | None  # bytes
    attack: str | None  # the search on claims that were not proved; None: no search
    version: str  # of zonogpt
    arithmetic: str = "real"  # what proofs are about


@dataclass(frozen=True)
class BenchRow(Subject, StoredRow):
    FLOATS: ClassVar[tuple[str, ...]] = ("margin", "attack_margin")

    claim: str  # "7 > 3": output 7 stays above output 3
    method: str
    status: str  # verified, falsified, unknown or timeout: of this one claim
    margin: float  # certified lower bound; -inf where nothing is
    seconds: float  # of the propagation, shared among its claims and those that ran with it
    device: str
    commit: str
    dtype: str
    peak_bytes: int
    attack_margin: float | None  # the lowest margin that a search found; None: nothing was searched
    reason: str  # the propagation's, if it is about this claim
    ledger: dict[str, float] | None  # by residual block, see Ledger; on the first claim of a propagation
    guarantee: str  # "bounded" or "estimated": how the proof accounts for its own rounding
    arithmetic: str  # what the proof is about: "real" or "float32"
    finished: str  # when, UTC

    @classmethod
    def read_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return with_tuple(super().read_fields(fields))

    @property
    def summary(self) -> str:
        return f"{self.model}, {self.method}, {self.instance} at {self.radius:g}: {self.status}"

    @property
    def work(self) -> float:
        return work(self.method, self)


SLOWER = {"E": 1.0, "A": 6.0, "F": 4.0, "D": 4.0, "M": 2.0, "ibp": 0.2, "deepz": 60.0, "crown": 60.0, "covenn": 30.0}


def work(method: str, subject: Subject) -> float:
    """About how long one claim takes, which shares a propagation with those about other rivals."""
    slower = SLOWER.get(method.removesuffix("-literal"), 1.0)
    return slower * subject.blocks * (SIZES[subject.size][0] / 768) ** 2 / (N_CLASSES[subject.task] - 1)
