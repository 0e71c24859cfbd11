"""What a run returns: the verdict, the certified margins, and the ledger of where width came from. JSON both ways."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from zonogpt.methods.ledger import Guarantee, Ledger, LedgerEntry
from zonogpt.model.arithmetic import Arithmetic, meaning
from zonogpt.support.tensors import ByValue

Status = Literal["verified", "falsified", "unknown", "timeout"]
Stopped = Literal["timeout", "memory", "overflow"]


@dataclass(frozen=True, eq=False)
class Result(ByValue):
    status: Status
    margins: Tensor  # (K,) certified lower bounds, float64 on the CPU; -inf where nothing is certified
    reason: str  # one sentence for people
    method: str
    radius: float | None  # None: the input set is a box that is no ball
    label: int | None
    seconds: float
    peak_bytes: int  # peak memory of the process (CPU) or of the device during the run
    dtype: str  # of generators and tangents; all else is in float64
    device: str
    arithmetic: Arithmetic = "real"  # what the verdict is about: see zonogpt.model.arithmetic
    guarantee: Guarantee = "bounded"  # "estimated": methods deepz, crown and covenn only estimate their own rounding
    claim: str = "linear claim"  # what was to be proved, in words
    weights: str = "float32"  # the types of the weights, as transformers holds them
    stored: str = "float32"  # and as the checkpoint has them
    counterexample: Tensor | None = None  # in the input's shape, inside the ball
    answer: int | None = None  # the model's answer to the counterexample
    replayed: dict[str, float] | None = None  # its lowest margin in the Hugging Face model, by dtype
    certified_radius: float | None = None  # a smaller radius that is certified, where this one is not
    ledger: Ledger = field(default_factory=Ledger)
    stopped: Stopped | None = None  # why there are no bounds; None: there are, or a counterexample made them needless

    @property
    def verdict(self) -> str:
        """The status, and of a proof what it rests on: "verified (rounding bounded, real arithmetic)"."""
        proof = self.status == "verified"
        return f"{self.status} ({basis(self.guarantee, self.arithmetic)})" if proof else self.status

    @property
    def meaning(self) -> str:
        """What a verdict is about, in words: which arithmetic, with which weights."""
        return meaning(self.arithmetic, self.weights, self.stored)

    def to_json(self) -> str:
        """Strict JSON; infinities are the strings "inf" and "-inf"."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["margins"] = _plain(self.margins.tolist())
        fields["counterexample"] = None if self.counterexample is None else self.counterexample.tolist()
        fields["ledger"] = [dataclasses.asdict(entry) for entry in self.ledger.entries]
        return json.dumps(fields, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Result:
        fields: dict[str, Any] = json.loads(text)
        fields["margins"] = torch.tensor([float(x) for x in fields["margins"]], dtype=torch.float64)
        if fields["counterexample"] is not None:
            fields["counterexample"] = torch.tensor(fields["counterexample"], dtype=torch.float64)
        fields["ledger"] = Ledger(tuple(LedgerEntry(**entry) for entry in fields["ledger"]))
        return Result(**fields)


def basis(guarantee: str, arithmetic: str) -> str:
    """What a proof rests on, in words."""
    return f"rounding {guarantee}, {arithmetic} arithmetic"


def _plain(values: list[float]) -> list[float | str]:
    return [x if math.isfinite(x) else str(x) for x in values]
