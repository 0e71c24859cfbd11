"""From rows to a line per method: how many inputs are proved at each radius, how far they may move, at what cost."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from zonogpt.studies.examples import tokens_called
from zonogpt.studies.radii.rows import ATTACK, RadiusRow


@dataclass(frozen=True)
class MethodLine:
    method: str
    guarantee: str | None  # "bounded" or "estimated": how proofs account for their own rounding; None for an attack
    arithmetic: str  # what proofs are about
    inputs: int
    counts: tuple[int, ...]  # per radius of the grid: proved there; for the attack: not broken there
    found: int  # inputs with a radius at all: something proved, or broken
    radius: float | None  # geometric mean of these; None without any
    smallest: float | None
    largest: float | None
    stopped: str  # "3 timeout, 7 memory"; empty: every search came to its end
    seconds_per_run: float | None  # mean over all trials; None: none was made
    seconds: float  # all trials
    peak_bytes: int  # above what was in use before


def tabulate(rows: Sequence[RadiusRow], methods: Sequence[str], grid: Sequence[float]) -> tuple[MethodLine, ...]:
    """One line per method, in this order. Misclassified inputs count as inputs and nowhere else."""
    return tuple(_line([row for row in rows if row.method == method], method, grid) for method in methods)


def _line(rows: Sequence[RadiusRow], method: str, grid: Sequence[float]) -> MethodLine:
    tried = [row for row in rows if row.status != "misclassified"]
    if method == ATTACK:
        counts = tuple(sum(row.radius > radius for row in tried) for radius in grid)
    else:
        counts = tuple(sum(row.radius >= radius for row in tried) for radius in grid)
    radii = [row.radius for row in tried if 0 < row.radius < math.inf]
    times = [trial["seconds"] for row in tried for trial in row.trials]
    reasons = [row.status for row in tried if row.status != "done"]
    return MethodLine(
        method=method,
        guarantee=next((row.guarantee for row in rows), None),
        arithmetic=next((row.arithmetic for row in rows), "real"),
        inputs=len(rows),
        counts=counts,
        found=len(radii),
        radius=math.exp(sum(map(math.log, radii)) / len(radii)) if radii else None,
        smallest=min(radii, default=None),
        largest=max(radii, default=None),
        stopped=", ".join(f"{reasons.count(reason)} {reason}" for reason in sorted(set(reasons))),
        seconds_per_run=sum(times) / len(times) if times else None,
        seconds=sum(times),
        peak_bytes=max((row.peak_bytes for row in tried), default=0),
    )


def as_csv(lines: Sequence[MethodLine], grid: Sequence[float]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rest = [field.name for field in dataclasses.fields(MethodLine) if field.name not in ("method", "inputs", "counts")]
    writer.writerow(["method", "inputs", *(f"at {radius:g}" for radius in grid), *rest])
    for line in lines:
        writer.writerow([line.method, line.inputs, *line.counts, *(getattr(line, name) for name in rest)])
    return text.getvalue()


@dataclass(frozen=True)
class InputLine:
    """One input: up to where it is proved, and from where on it is broken."""

    name: str
    label: int | None
    predicted: int | None
    positions: tuple[int, ...] | None  # for a text: the tokens that move together
    tokens: tuple[str, ...] | None  # what the moving tokens spell, if the model has a tokenizer
    status: str  # "done", "misclassified", or why a search ended early
    certified: float
    attacked: float | None  # inf: not broken at the highest radius; None: no attack
    seconds: float
    guarantee: str | None  # how the proof accounts for its own rounding: "bounded" or "estimated"
    arithmetic: str

    @property
    def moved(self) -> str:
        """The tokens that move; empty for images."""
        return tokens_called(self.positions, self.tokens)


def by_input(rows: Sequence[RadiusRow], method: str) -> tuple[InputLine, ...]:
    """Rows of `method` and, where there are any, of the attack, joined input by input."""
    broken = {row.place: row for row in rows if row.method == ATTACK}
    lines = []
    for row in rows:
        if row.method != method:
            continue
        other = broken.get(row.place)
        early = [r.status for r in (row, other) if r is not None and r.status != "done"]
        lines.append(
            InputLine(
                name=row.name,
                label=row.label,
                predicted=row.predicted,
                positions=None if row.positions is None else tuple(row.positions),
                tokens=None if row.tokens is None else tuple(row.tokens),
                status=early[0] if early else "done",
                certified=row.radius,
                attacked=None if other is None else other.radius,
                seconds=row.seconds + (0.0 if other is None else other.seconds),
                guarantee=row.guarantee,
                arithmetic=row.arithmetic,
            )
        )
    return tuple(lines)


def inputs_as_csv(lines: Sequence[InputLine]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in dataclasses.fields(InputLine)]
    writer.writerow(names)
    for line in lines:
        cells = [getattr(line, name) for name in names]
        writer.writerow(" ".join(map(str, cell)) if isinstance(cell, tuple) else cell for cell in cells)
    return text.getvalue()
