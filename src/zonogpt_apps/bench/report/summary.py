"""All numbers of the report in one value, which all its parts read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zonogpt_apps.bench.report import tables
from zonogpt_apps.bench.report.hardest import Hard, hardest
from zonogpt_apps.bench.report.inputs import Input, read_inputs
from zonogpt_apps.bench.report.reading import Loaded
from zonogpt_apps.bench.rows import BenchRow


@dataclass(frozen=True)
class Origin:
    """Where the rows of a method come from."""

    method: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    commits: tuple[str, ...]
    first: str  # day of the first and of the last row
    last: str


@dataclass(frozen=True)
class Summary:
    rows: tuple[BenchRow, ...]
    methods: tuple[str, ...]
    models: tuple[tables.ModelLine, ...]
    totals: tuple[tables.Total, ...]
    ours: tables.Ours | None  # None: E was not run
    ours_by_task: tuple[tables.Ours | None, ...]  # where there are several
    radii: tuple[tables.RadiusLine, ...]
    runtimes: tuple[tables.Runtime, ...]
    certified: tuple[tables.CertifiedRadius, ...]
    shares: tuple[tables.BlockShares, ...]
    hardest: tuple[Hard, ...]
    origins: tuple[Origin, ...]
    inputs: dict[str, Input]
    settings: dict[str, Any]


def summarise(loaded: Loaded) -> Summary:
    """Raises UnsoundError where a counterexample meets a proof."""
    rows = loaded.rows
    tables.check_sound(rows)
    models, tasks = tables.by_model(rows), tables.tasks_of(rows)
    return Summary(
        rows=rows,
        methods=loaded.methods,
        models=models,
        totals=tables.totals(rows, models),
        ours=tables.ours(rows, models),
        ours_by_task=tuple(tables.ours(rows, models, task) for task in tasks) if len(tasks) > 1 else (),
        radii=tables.by_radius(rows),
        runtimes=tables.runtimes(rows),
        certified=tables.certified_radii(rows),
        shares=tables.block_shares(rows),
        hardest=hardest(rows),
        origins=tuple(origin(rows, method) for method in loaded.methods),
        inputs=read_inputs(loaded),
        settings=loaded.settings,
    )


def origin(rows: tuple[BenchRow, ...], method: str) -> Origin:
    mine = [row for row in rows if row.method == method]
    days = sorted(row.finished[:10] for row in mine)
    return Origin(
        method=method,
        devices=tuple(sorted({row.device for row in mine})),
        dtypes=tuple(sorted({row.dtype for row in mine})),
        commits=tuple(sorted({row.commit for row in mine})),
        first=days[0],
        last=days[-1],
    )
