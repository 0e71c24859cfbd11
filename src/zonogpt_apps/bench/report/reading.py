"""Reads rows and instances for a report, and refuses those that do not belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from zonogpt.errors import OptionError
from zonogpt.studies.rows.store import SETTINGS, content_of, parse
from zonogpt.support.files import read_json
from zonogpt_apps.bench.grid import SIZES, TASKS
from zonogpt_apps.bench.instances import Benchmark, Instance, Subject
from zonogpt_apps.bench.rows import BenchRow, BenchSettings

STATUSES = ("verified", "falsified", "unknown", "timeout")
SHARED = (*(field.name for field in dataclasses.fields(Subject)), "claim")
# E is ours, then the paper's from the best to the loosest; others follow by name.
ORDER = ("E", "A", "F", "D", "M", "covenn", "crown", "deepz", "ibp")


@dataclass(frozen=True)
class Loaded:
    """What a report is made of. The rows' order does not depend on the run, which may have been stopped and resumed."""

    rows: tuple[BenchRow, ...]
    benchmark: Benchmark
    settings: dict[str, Any]  # of the run: dtype, timeout, ...; empty if the directory does not say

    @cached_property
    def methods(self) -> tuple[str, ...]:
        return tuple(sorted({row.method for row in self.rows}, key=method_place))

    @cached_property
    def instances(self) -> dict[tuple[str, str, float], Instance]:
        return _by_place(self.benchmark)


def method_place(method: str) -> tuple[int, str]:
    return (ORDER.index(method) if method in ORDER else len(ORDER)), method


def load_rows(rows: Path, instances: Path) -> Loaded:
    benchmark = Benchmark.read(instances)
    files = sorted(rows.glob("*.jsonl"))
    found = [(row, file) for file in files for row in _read(file)]
    if not found:
        raise OptionError(f"{rows} has no rows; fill it with zonogpt bench run")
    known = _by_place(benchmark)
    _check_weights(found)
    _check_once(found)
    _check_instances(found, known)
    _check_verdicts(found)
    settings = _settings(rows / SETTINGS)
    _check_settings(found, settings)
    order = {place: k for k, place in enumerate(known)}

    def place(row: BenchRow) -> tuple[Any, ...]:
        at = order.get((str(row.model), row.instance, row.radius), len(order))
        return row.model.place, method_place(row.method), row.radius, at, row.instance

    return Loaded(tuple(sorted((row for row, _ in found), key=place)), benchmark, settings)


def _read(file: Path) -> list[BenchRow]:
    content = content_of(file)
    rows, whole = parse(content, file, BenchRow)
    if whole < len(content):  # harmless for a run, which goes on; but a report would silently lack a row
        raise OptionError(f"{file} ends in the middle of a line; let zonogpt bench run finish it first")
    strange = [row for row in rows if row.task not in TASKS or row.size not in SIZES]
    if strange:
        raise OptionError(f"{file} has a row of an unknown model {strange[0].model}")
    return rows


def _check_weights(found: Sequence[tuple[BenchRow, Path]]) -> None:
    first: dict[str, tuple[BenchRow, Path]] = {}
    for row, file in found:
        other, where = first.setdefault(str(row.model), (row, file))
        if other.model_hash != row.model_hash:
            raise OptionError(f"{_both(where, file)}: rows of {row.model} with different weights; report one at a time")


def _check_once(found: Sequence[tuple[BenchRow, Path]]) -> None:
    first: dict[tuple[str, str, float, str], Path] = {}
    for row, file in found:
        place = str(row.model), row.instance, row.radius, row.method
        if place in first:
            raise OptionError(
                f"{_both(first[place], file)}: two rows for {row.model}, instance {row.instance}, radius"
                f" {row.radius:g}, method {row.method}; keep the rows of one run"
            )
        first[place] = file


def _check_settings(found: Sequence[tuple[BenchRow, Path]], settings: dict[str, Any]) -> None:
    first, where = found[0]
    for row, file in found:
        if row.settings != first.settings:
            raise OptionError(f"{_both(where, file)}: rows of different settings (dtype, timeout, ...); keep one run's")
    try:
        said = BenchSettings(**settings).digest if settings else first.settings
    except TypeError as error:
        raise OptionError(f"{where.parent / SETTINGS} is not of a benchmark: {error}") from error
    if said != first.settings:
        raise OptionError(f"{where}: the rows are not of the settings in {where.parent / SETTINGS}")


def _check_verdicts(found: Sequence[tuple[BenchRow, Path]]) -> None:
    for row, file in found:
        if row.status not in STATUSES or (row.status == "verified" and not row.margin > 0):
            raise OptionError(
                f"{file}: {row.model}, instance {row.instance}, method {row.method} has status {row.status!r} with"
                f" margin {row.margin}, which no run writes"
            )


def _check_instances(found: Sequence[tuple[BenchRow, Path]], known: dict[tuple[str, str, float], Instance]) -> None:
    """OptionError unless the rows are about the instances that are given."""
    for row, file in found:
        instance = known.get((str(row.model), row.instance, row.radius))
        if instance is None:
            raise OptionError(
                f"{file}: {row.model}, instance {row.instance}, radius {row.radius!r} is none of the instances"
            )
        for name in SHARED:
            if getattr(instance, name) != getattr(row, name):
                raise OptionError(
                    f"{file}: {name} of {row.model}, instance {row.instance} is not that of the instances;"
                    " give the instances that these rows were made from"
                )


def _by_place(benchmark: Benchmark) -> dict[tuple[str, str, float], Instance]:
    return {(str(instance.model), instance.instance, instance.radius): instance for instance in benchmark.instances}


def _both(one: Path, other: Path) -> str:
    return str(one) if one == other else f"{one} and {other}"


def _settings(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot read {file}: {error}") from error
    return content if isinstance(content, dict) else {}
