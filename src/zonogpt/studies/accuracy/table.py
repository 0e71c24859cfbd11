"""From rows to accuracies: one line per radius."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zonogpt.errors import UnsoundError
from zonogpt.studies.accuracy.rows import AccuracyRow


@dataclass(frozen=True)
class AccuracyLine:
    """Counts of examples at one radius: certified <= survived <= clean <= examples."""

    radius: float
    examples: int
    clean: int | None  # classified correctly; None without labels
    certified: int  # classified correctly, and proved so over the whole ball
    survived: int | None  # classified correctly, and not broken by the attack; None without attack
    unknown: int  # correct, neither proved nor broken
    seconds: float | None  # mean time of a proof at this radius, without the attack; None: no proof was run
    guarantee: str  # how the proofs account for their own rounding: "bounded" or "estimated"
    arithmetic: str  # what the proofs are about


def tabulate(rows: Sequence[AccuracyRow], radii: Iterable[float]) -> tuple[AccuracyLine, ...]:
    """One line per radius; every example has a row at each.

    An example that is broken at a radius counts as broken at every larger one, whether or not the attack found an input
    there. Raises UnsoundError where that meets a proof.
    """
    return tuple(_line(rows, radius) for radius in radii)


def _line(rows: Sequence[AccuracyRow], radius: float) -> AccuracyLine:
    here = [row for row in rows if row.radius == radius]
    broken = {row.place for row in rows if row.broken and row.radius <= radius}
    verified = {row.place for row in here if row.status == "verified"}
    if verified & broken:
        raise UnsoundError(
            f"examples {sorted(verified & broken)} are certified at radius {radius:g}, yet broken inside"
        )
    correct = {row.place for row in here if row.correct}
    times = [row.seconds for row in here if row.seconds is not None]
    searched = all(row.broken is not None for row in here if row.correct)
    return AccuracyLine(
        radius=radius,
        examples=len(here),
        clean=len(correct) if all(row.label is not None for row in here) else None,
        certified=len(verified),
        survived=len(correct - broken) if searched else None,
        unknown=len(correct - broken - verified),
        seconds=sum(times) / len(times) if times else None,
        guarantee=here[0].guarantee,
        arithmetic=here[0].arithmetic,
    )


def as_csv(lines: Sequence[AccuracyLine]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(AccuracyLine))
    writer.writerows(dataclasses.astuple(line) for line in lines)
    return text.getvalue()
