"""The inputs that E finds hardest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zonogpt_apps.bench.grid import TASKS
from zonogpt_apps.bench.report.tables import OURS, groups
from zonogpt_apps.bench.rows import BenchRow

SHOWN = 12
RULE = (
    "The smaller the largest radius that E proves, the harder the instance; where that is equal, the lower E's"
    " certified margin at the smallest radius that was run. Each picture or sentence is shown once, with the model and"
    f" claim that it is hardest for: the {SHOWN // 2} hardest of each task, or more of one where the other has fewer."
)


@dataclass(frozen=True)
class Hard:
    row: BenchRow  # of E, at the smallest radius
    largest: float  # the largest radius that is proved; 0: none


def hardest(rows: Sequence[BenchRow]) -> tuple[Hard, ...]:
    found = groups((row for row in rows if row.method == OURS), lambda row: (row.model, row.instance))
    ranked = sorted((_hard(here) for here in found.values()), key=_hardness)
    first = list({hard.row.input: hard for hard in reversed(ranked)}.values())  # the hardest of each input
    first.sort(key=_hardness)
    share = [hard for task in TASKS for hard in [h for h in first if h.row.task == task][: SHOWN // 2]]
    rest = [hard for hard in first if hard not in share]
    return tuple(sorted([*share, *rest[: SHOWN - len(share)]], key=_hardness))


def _hard(rows: Sequence[BenchRow]) -> Hard:
    proved = [row.radius for row in rows if row.status == "verified"]
    return Hard(min(rows, key=lambda row: row.radius), max(proved, default=0.0))


def _hardness(hard: Hard) -> tuple[float, float, tuple[int, int, int], str]:
    return hard.largest, hard.row.margin, hard.row.model.place, hard.row.instance
