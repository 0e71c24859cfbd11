"""From rows to the numbers of the report. Pure counting: nothing is read, written or formatted here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from zonogpt.errors import UnsoundError
from zonogpt_apps.bench.grid import MNIST, RADII, TASKS, ModelId
from zonogpt_apps.bench.report import paper
from zonogpt_apps.bench.report.reading import method_place
from zonogpt_apps.bench.rows import BenchRow

OURS = "E"
WANTED_LOSS = {MNIST: "cross-entropy", "sst": "interval bounds"}
LEDGER_RADIUS = 1e-4

K = TypeVar("K")


@dataclass(frozen=True)
class Count:
    """How many instances were run, and with which results."""

    run: int
    proved: int
    falsified: int
    unknown: int
    timeout: int
    seconds: float

    @staticmethod
    def of(rows: Sequence[BenchRow]) -> Count:
        statuses = [row.status for row in rows]
        return Count(
            run=len(rows),
            proved=statuses.count("verified"),
            falsified=statuses.count("falsified"),
            unknown=statuses.count("unknown"),
            timeout=statuses.count("timeout"),
            seconds=math.fsum(row.seconds for row in rows),
        )


@dataclass(frozen=True)
class Cell:
    """One model under one method, ours and the paper's. Theirs are always about 180 instances."""

    model: ModelId
    method: str
    count: Count
    whole: bool  # all 180 instances of the paper's grid were run
    ours: Count  # E on exactly these instances; fewer where it did not run them
    paper: paper.Solved | None  # None: not in its table, or out of memory


@dataclass(frozen=True)
class ModelLine:
    model: ModelId
    accuracy: float
    training: str
    fallback: bool  # not the loss that the paper trains this task with
    relative_radius: tuple[float, float]  # smallest and largest
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Total:
    """One method over all instances that it was run on, and E on exactly these."""

    method: str
    guarantee: str  # how its proofs account for their own rounding: "bounded", "estimated", or both
    models: int
    whole: int  # how many of them were run on all 180 instances
    count: Count
    ours: Count
    paper: paper.Solved | None  # over all sixteen models
    complete: bool  # all 2,880 were run: only then does the paper's total count as many


@dataclass(frozen=True)
class Speed:
    """The times of the paper's best method and of E, on the models that E ran whole."""

    models: tuple[ModelId, ...]
    proved: int
    instances: int
    seconds: float
    paper: paper.Solved
    devices: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        return self.paper.seconds / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class Ours:
    """Method E over the models of a task, or over all that it was run on."""

    task: str | None
    models: int
    count: Count
    speed: Speed | None  # None: it ran none of the paper's models whole

    @property
    def all_whole(self) -> bool:
        return self.speed is not None and len(self.speed.models) == self.models


@dataclass(frozen=True)
class RadiusLine:
    """How many instances a method proved and ran at each radius, in one task or in all."""

    method: str
    task: str | None
    radii: tuple[float, ...]
    proved: tuple[int, ...]
    run: tuple[int, ...]
    paper: tuple[int | None, ...]  # of 576 per radius; None: not stated


@dataclass(frozen=True)
class Runtime:
    """Seconds per instance of a method."""

    method: str
    run: int
    smallest: float
    quarter: float
    median: float
    three_quarters: float
    largest: float


@dataclass(frozen=True)
class CertifiedRadius:
    """How far the inputs of a model may move under a method, on the grid of radii."""

    model: ModelId
    method: str
    instances: int  # each once, whatever the number of radii
    none: int  # nothing proved at any radius
    at_top: int  # proved at the largest radius of the grid: their true radius may be larger
    radius: float | None  # geometric mean over the instances that have one


@dataclass(frozen=True)
class BlockShares:
    """What each residual block takes from E's margin, as a share of all that is taken; block 0 is the input."""

    model: ModelId
    radius: float
    propagations: int
    shares: tuple[float, ...]  # by block: input, attention and MLP in turn, head
    taken: float  # mean of what all blocks take together


def groups(rows: Iterable[BenchRow], key: Callable[[BenchRow], K]) -> dict[K, list[BenchRow]]:
    found: dict[K, list[BenchRow]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def check_sound(rows: Sequence[BenchRow]) -> None:
    """UnsoundError if an instance is broken at a radius and proved there or at a larger one: its balls are nested."""
    for (model, instance), here in groups(rows, lambda row: (row.model, row.instance)).items():
        broken = min((row.radius for row in here if row.status == "falsified"), default=math.inf)
        wrong = [row for row in here if row.status == "verified" and row.radius >= broken]
        if wrong:
            raise UnsoundError(
                f"{model}, instance {instance} is certified by {wrong[0].method} at radius {wrong[0].radius:g}, yet"
                f" broken at {broken:g}"
            )


def by_model(rows: Sequence[BenchRow]) -> tuple[ModelLine, ...]:
    found = groups(rows, lambda row: row.model)
    return tuple(_model_line(model, found[model]) for model in sorted(found, key=lambda model: model.place))


def _model_line(model: ModelId, rows: Sequence[BenchRow]) -> ModelLine:
    found = groups(rows, lambda row: row.method)
    ours = found.get(OURS, [])
    relative = [row.relative_radius for row in rows]
    return ModelLine(
        model=model,
        accuracy=rows[0].accuracy,
        training=rows[0].training,
        fallback=rows[0].training != WANTED_LOSS[model.task],
        relative_radius=(min(relative), max(relative)),
        cells=tuple(
            Cell(
                model, method, Count.of(found[method]), is_whole(found[method]),
                Count.of(same_instances(ours, found[method])), paper.RESULTS.get((model, method)),
            )
            for method in sorted(found, key=method_place)
        ),
    )  # fmt: skip


def is_whole(rows: Sequence[BenchRow]) -> bool:
    """Whether these rows, of one model and method, are all that the paper asks about it, at its radii."""
    per_radius = {radius: len(here) for radius, here in groups(rows, lambda row: row.radius).items()}
    return per_radius == dict.fromkeys(RADII, paper.INSTANCES // len(RADII))


def same_instances(rows: Sequence[BenchRow], wanted: Sequence[BenchRow]) -> list[BenchRow]:
    places = {_place(row) for row in wanted}
    return [row for row in rows if _place(row) in places]


def _place(row: BenchRow) -> tuple[ModelId, str, float]:
    return row.model, row.instance, row.radius


def totals(rows: Sequence[BenchRow], lines: Sequence[ModelLine]) -> tuple[Total, ...]:
    found = groups(rows, lambda row: row.method)
    out = []
    for method in sorted(found, key=method_place):
        cells = [cell for line in lines for cell in line.cells if cell.method == method]
        whole = {cell.model for cell in cells if cell.whole}
        out.append(
            Total(
                method=method,
                guarantee=", ".join(sorted({row.guarantee for row in found[method]})),
                models=len(cells),
                whole=len(whole),
                count=Count.of(found[method]),
                ours=Count.of(same_instances(found.get(OURS, []), found[method])),
                paper=paper.TOTALS.get(method),
                complete=whole == {cell.model for cell in cells} == {model for model, _ in paper.RESULTS},
            )
        )
    return tuple(out)


def speed(rows: Sequence[BenchRow], lines: Sequence[ModelLine]) -> Speed | None:
    """The speed of E and of the paper; None if E ran none of the paper's models whole."""
    cells = [cell for line in lines for cell in line.cells if cell.method == OURS and cell.whole]
    cells = [cell for cell in cells if (cell.model, paper.BEST) in paper.RESULTS]
    if not cells:
        return None
    models = tuple(cell.model for cell in cells)
    theirs = [paper.RESULTS[model, paper.BEST] for model in models]
    return Speed(
        models=models,
        proved=sum(cell.count.proved for cell in cells),
        instances=sum(cell.count.run for cell in cells),
        seconds=math.fsum(cell.count.seconds for cell in cells),
        paper=paper.Solved(sum(cell.solved for cell in theirs), math.fsum(cell.seconds for cell in theirs)),
        devices=tuple(sorted({row.device for row in rows if row.method == OURS and row.model in models})),
    )


def ours(rows: Sequence[BenchRow], lines: Sequence[ModelLine], task: str | None = None) -> Ours | None:
    """Method E's numbers, of a task or of all; None if it was not run."""
    mine = [row for row in rows if row.method == OURS and task in (None, row.task)]
    models = {row.model for row in mine}
    compared = speed(mine, [line for line in lines if line.model in models])
    return Ours(task, len(models), Count.of(mine), compared) if mine else None


def tasks_of(rows: Sequence[BenchRow]) -> list[str]:
    return [task for task in TASKS if any(row.task == task for row in rows)]


def by_radius(rows: Sequence[BenchRow]) -> tuple[RadiusLine, ...]:
    """A line per method, with all radii: over all tasks, then for each task, if there are several."""
    radii = tuple(sorted({row.radius for row in rows}))
    tasks = tasks_of(rows)
    lines = []
    for task in [None, *tasks] if len(tasks) > 1 else tasks:
        found = groups((row for row in rows if task in (None, row.task)), lambda row: row.method)
        for method in sorted(found, key=method_place):
            here = [[row for row in found[method] if row.radius == radius] for radius in radii]
            proved = tuple(Count.of(some).proved for some in here)
            stated = tuple(None if task else paper.SOLVED_AT.get((method, radius)) for radius in radii)
            lines.append(RadiusLine(method, task, radii, proved, tuple(map(len, here)), stated))
    return tuple(lines)


def runtimes(rows: Sequence[BenchRow]) -> tuple[Runtime, ...]:
    found = groups(rows, lambda row: row.method)
    out = []
    for method in sorted(found, key=method_place):
        times = np.quantile([row.seconds for row in found[method]], [0, 0.25, 0.5, 0.75, 1])
        out.append(Runtime(method, len(found[method]), *map(float, times)))
    return tuple(out)


def certified_radii(rows: Sequence[BenchRow]) -> tuple[CertifiedRadius, ...]:
    """A line per model and method. An instance's radius is the largest that is proved, even if a smaller one is not: a
    proof covers all smaller radii."""
    top = max((row.radius for row in rows), default=0.0)
    found = groups(rows, lambda row: (row.model, row.method))
    lines = []
    for model, method in sorted(found, key=lambda key: (key[0].place, method_place(key[1]))):
        largest = largest_proved(found[model, method])
        radii = [radius for radius in largest.values() if radius > 0]
        lines.append(
            CertifiedRadius(
                model=model,
                method=method,
                instances=len(largest),
                none=len(largest) - len(radii),
                at_top=radii.count(top),
                radius=math.exp(math.fsum(map(math.log, radii)) / len(radii)) if radii else None,
            )
        )
    return tuple(lines)


def largest_proved(rows: Sequence[BenchRow]) -> dict[str, float]:
    """The largest proved radius by instance, of one model and method; 0 if none is proved."""
    found = groups(rows, lambda row: row.instance)
    return {
        name: max((row.radius for row in here if row.status == "verified"), default=0.0) for name, here in found.items()
    }


def block_shares(rows: Sequence[BenchRow]) -> tuple[BlockShares, ...]:
    """E's shares per model, at the middle of the paper's radii or of those run; each propagation counts the same."""
    kept = [row for row in rows if row.method == OURS and row.ledger and sum(row.ledger.values()) > 0]
    radii = sorted({row.radius for row in kept})
    if not radii:
        return ()
    radius = LEDGER_RADIUS if LEDGER_RADIUS in radii else radii[len(radii) // 2]
    once: dict[object, BenchRow] = {}  # a run that was stopped in a propagation has its ledger twice
    for row in kept:
        if row.radius == radius:
            once.setdefault((row.model, row.input, str(row.positions)), row)
    found = groups(once.values(), lambda row: row.model)
    return tuple(
        _shares(model, radius, [row.ledger for row in found[model] if row.ledger])
        for model in sorted(found, key=lambda model: model.place)
    )


def _shares(model: ModelId, radius: float, ledgers: Sequence[dict[str, float]]) -> BlockShares:
    last = max(int(block) for ledger in ledgers for block in ledger)
    taken = [math.fsum(ledger.values()) for ledger in ledgers]
    shares = tuple(
        math.fsum(ledger.get(str(block), 0.0) / whole for ledger, whole in zip(ledgers, taken, strict=True))
        / len(ledgers)
        for block in range(last + 1)
    )
    return BlockShares(model, radius, len(ledgers), shares, math.fsum(taken) / len(taken))
