"""What a run returns: the verdict, the certified margins, and the ledger of where width came from. From and to JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor

from zonogpt.errors import RecordError
from zonogpt.methods.ledger import Guarantee, Ledger, LedgerEntry
from zonogpt.model.arithmetic import Arithmetic, meaning
from zonogpt.support import html
from zonogpt.support.files import parse_json
from zonogpt.support.numbers import exact, norm_name
from zonogpt.support.tensors import ByValue
from zonogpt.verification.subject import Subject

Status = Literal["verified", "falsified", "unknown", "timeout"]
Stopped = Literal["timeout", "memory", "overflow"]

SCHEMA = "zonogpt-result-1"  # described by schemas/result.json beside this file


@dataclass(frozen=True, eq=False, repr=False)
class Result(ByValue):
    """A verdict and its details.

    status: "verified", "falsified", "unknown" or "timeout"; `verified` is True for the first.
    margins: (K,) certified lower bounds, one for each row of the claim, in float64 on the CPU: by default the label's
        output minus each rival's, rivals in increasing order. -inf where nothing is certified.
    reason: a one-sentence explanation.
    method: the method that computed the bounds.
    radius, norm: those of the ball; the norm is "inf", "2" or "1". None if the input set is a box that is not a ball.
    label, label_name: the output that must stay the largest (None if the claim is another), and its name, from
        config.id2label or from what the token spells.
    seconds: how long the verdict took, without the hint.
    peak_bytes: peak memory of the process (CPU) or of the device during the run.
    dtype: the type of generators and tangents; everything else is in float64.
    device: where the result was computed.
    arithmetic: what the verdict is about: "real" arithmetic, or "float32" for every execution in float32.
    guarantee: "bounded", or "estimated" for methods that only estimate their own rounding: deepz, crown, covenn.
    claim: what was to be proved, in words.
    weights, stored: the types of the weights, as transformers holds them and as the checkpoint has them.
    counterexample: if falsified, an input of the set that breaks the claim, in the shape of what moves.
    answer, answer_name: the model's answer to the counterexample, and the name of that answer.
    replayed: for each dtype, the claim's value at the counterexample in the Hugging Face model; 0 or less.
    certified_radius: with a hint, a smaller radius that is certified where this one is not.
    hint_seconds: how long the search for that radius took; None if there was none.
    ledger: how much each block and step took from the margins, or for methods other than E, how much width it caused.
    stopped: why there are no bounds: "timeout", "memory" or "overflow". None if there are, or if a counterexample made
        them needless.
    subject: what the result is about; `about` shows it as plain values.
    """

    status: Status
    margins: Tensor
    reason: str
    method: str
    radius: float | None
    label: int | None
    seconds: float
    peak_bytes: int
    dtype: str
    device: str
    arithmetic: Arithmetic = "real"
    guarantee: Guarantee = "bounded"
    claim: str = "linear claim"
    weights: str = "float32"
    stored: str = "float32"
    norm: str | None = None
    label_name: str | None = None
    counterexample: Tensor | None = None
    answer: int | None = None
    answer_name: str | None = None
    replayed: dict[str, float] | None = None
    certified_radius: float | None = None
    hint_seconds: float | None = None
    ledger: Ledger = field(default_factory=Ledger)
    stopped: Stopped | None = None
    subject: Subject = field(default_factory=lambda: Subject.known({}), compare=False)

    @property
    def verified(self) -> bool:
        """Whether the claim is proved."""
        return self.status == "verified"

    def __bool__(self) -> NoReturn:
        raise TypeError("a Result is neither true nor false, as it may be unknown: ask result.verified, or .status")

    @property
    def verdict(self) -> str:
        """The status and, for a proof, what it rests on: "verified (rounding bounded, real arithmetic)"."""
        return f"{self.status} ({basis(self.guarantee, self.arithmetic)})" if self.verified else self.status

    @property
    def reach(self) -> str:
        """How far the input may move: "l∞ radius 0.002", or "a box"."""
        if self.radius is None:
            return "a box"
        return f"{norm_name(self.norm)} radius {exact(self.radius)}" if self.norm else f"radius {exact(self.radius)}"

    @property
    def meaning(self) -> str:
        """What a verdict is about, in words: which arithmetic, with which weights."""
        return meaning(self.arithmetic, self.weights, self.stored)

    @property
    def about(self) -> dict[str, Any]:
        """Versions, the model and digests of its files, the input and its tokens, options: plain values, as in JSON."""
        return self.subject.plain

    def __repr__(self) -> str:
        took = f"{self.seconds:.2f} s" + ("" if self.hint_seconds is None else f" and {self.hint_seconds:.2f} s (hint)")
        return f"Result({self.verdict}; {self.claim}, {self.reach}, method {self.method}, {took}\n  {self.reason})"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("verdict", self.verdict),
            ("claim", self.claim),
            ("input set", self.reach),
            ("answer", self.answer if self.answer_name is None else f"{self.answer} ({self.answer_name!r})")
            if self.counterexample is not None
            else ("lowest margin", float(self.margins.min())),
            ("method", self.method),
            ("seconds", self.seconds),
            ("reason", self.reason),
        ]
        moved = self.about.get("input", {})
        text = ""
        if moved.get("tokens") is not None:
            text = f"<p>{html.marked(moved['tokens'], [token['position'] for token in moved['moved']])}</p>"
        return text + html.table((), rows)

    def plot(self) -> Any:
        """A matplotlib figure: the certified margins and, for method E, what each block takes from them."""
        from zonogpt.verification.picture import result_figure  # matplotlib is slow to import

        return result_figure(self)

    def to_json(self) -> str:
        """One JSON object, described by schemas/result.json; infinities are the strings "inf" and "-inf"."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "subject"}
        plain["margins"] = _plain(self.margins.tolist())
        plain["counterexample"] = None if self.counterexample is None else self.counterexample.tolist()
        if self.replayed is not None:
            plain["replayed"] = dict(zip(self.replayed, _plain(list(self.replayed.values())), strict=True))
        plain["ledger"] = [dataclasses.asdict(entry) for entry in self.ledger.entries]
        return json.dumps({"schema": SCHEMA} | plain | self.about, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Result:
        """The result that `to_json` wrote; RecordError for a text that `to_json` of this version did not write."""
        try:
            fields = parse_json(text)
        except (ValueError, TypeError) as error:
            raise RecordError(f"this is no JSON, so no result of zonogpt: {error}") from error
        if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
            got = fields.get("schema") if isinstance(fields, dict) else type(fields).__name__
            raise RecordError(f"a result of zonogpt has the schema {SCHEMA!r}; got {got!r}")
        own = {f.name for f in dataclasses.fields(Result)} - {"subject"}
        wanted = own | {"schema", *ABOUT}
        missing, unknown = wanted - fields.keys(), fields.keys() - wanted
        if missing or unknown:
            which = f"lacks {sorted(missing)[0]!r}" if missing else f"holds {sorted(unknown)[0]!r}, which is unknown"
            raise RecordError(f"this record of a result {which}")
        for name in ("versions", "model", "input", "options"):
            if not isinstance(fields[name], dict):
                raise RecordError(f"{name!r} of this result is no object")
        values = {name: fields[name] for name in own}
        for name, read in READ.items():
            try:
                values[name] = read(fields[name])
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise RecordError(f"{name!r} of this result cannot be read: {error}") from error
        _require_sense(values, fields["claim_rows"])
        return Result(**values, subject=Subject.known({name: fields[name] for name in ABOUT}))


ABOUT = ("versions", "model", "input", "claim_rows", "options")  # the keys of a result's `about`


def _require_sense(values: dict[str, Any], claim_rows: object) -> None:
    """RecordError for a verdict that its own fields contradict."""
    margins, found = values["margins"], values["counterexample"] is not None
    every = values["label"] is not None or (isinstance(claim_rows, dict) and claim_rows.get("groups") is None)
    if values["status"] == "verified" and (
        found or values["stopped"] or not len(margins) or bool(margins.isnan().any())
        or (every and not bool((margins > 0).all()))
    ):  # fmt: skip
        raise RecordError("this result says verified, and its margins, or what stopped it, say otherwise")
    if (values["status"] == "falsified") != (found and values["replayed"] is not None):
        raise RecordError("a result has a counterexample, with what its replay gave, if and only if it is falsified")
    if values["radius"] is not None and not values["radius"] >= 0:
        raise RecordError(f"a radius is not negative; got {values['radius']}")


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no integer")
    return value


def _one_of(kind: Any) -> Callable[[object], Any]:
    def read(value: object) -> object:
        if value not in get_args(kind):
            raise ValueError(f"{value!r} is none of {', '.join(get_args(kind))}")
        return value

    return read


def _ledger(entries: Any) -> Ledger:
    read = []
    for entry in entries:
        block, kind, step, width = (entry[name] for name in ("block", "kind", "step", "width"))
        read.append(LedgerEntry(_whole(block), _text(kind), _text(step), _number(width)))
    return Ledger(tuple(read))


# How each field is read back from JSON; a value that is not as `to_json` writes it is an error.
READ: dict[str, Callable[[Any], Any]] = {
    "status": _one_of(Status),
    "margins": lambda values: torch.tensor([float(x) for x in values], dtype=torch.float64),
    "reason": _text,
    "method": _text,
    "radius": _optional(_number),
    "norm": _optional(_text),
    "label": _optional(_whole),
    "seconds": _number,
    "peak_bytes": _whole,
    "dtype": _text,
    "device": _text,
    "arithmetic": _one_of(Arithmetic),
    "guarantee": _one_of(Guarantee),
    "claim": _text,
    "weights": _text,
    "stored": _text,
    "label_name": _optional(_text),
    "counterexample": _optional(lambda values: torch.tensor(values, dtype=torch.float64)),
    "answer": _optional(_whole),
    "answer_name": _optional(_text),
    "replayed": _optional(lambda margins: {_text(name): float(value) for name, value in margins.items()}),
    "certified_radius": _optional(_number),
    "hint_seconds": _optional(_number),
    "ledger": _ledger,
    "stopped": _optional(_one_of(Stopped)),
}


def basis(guarantee: str, arithmetic: str) -> str:
    """What a proof rests on, in words."""
    return f"rounding {guarantee}, {arithmetic} arithmetic"


def _plain(values: list[float]) -> list[float | str]:
    return [x if math.isfinite(x) else str(x) for x in values]
