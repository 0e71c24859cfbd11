"""compare(): several methods, and the attack, on the same inputs in one run that can be continued."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zonogpt._version import __version__
from zonogpt.datasets import Dataset, check_dataset
from zonogpt.errors import OptionError
from zonogpt.methods import METHODS
from zonogpt.model.arithmetic import check_arithmetic
from zonogpt.model.identity import weights_digest
from zonogpt.model.ir import Model, check_model
from zonogpt.spec.positions import Positions
from zonogpt.spec.spec import as_norm, check_radius
from zonogpt.studies.engine.engine import Engine, collect
from zonogpt.studies.engine.watcher import Watcher
from zonogpt.studies.examples import Entry, Examples, chosen_indices
from zonogpt.studies.radii.job import RadiusJob, RadiusTask
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.studies.radii.radius import TOLERANCE, require_order
from zonogpt.studies.radii.rows import ATTACK, RadiusRow, RadiusSettings, key_of
from zonogpt.studies.radii.table import MethodLine, tabulate
from zonogpt.studies.rows.store import open_store
from zonogpt.support import html
from zonogpt.support.files import as_path
from zonogpt.support.numbers import norm_name
from zonogpt.verification.options import Options, as_device, as_dtype, check_list
from zonogpt.verification.session import check_ready


@dataclass(frozen=True, repr=False)
class Comparison:
    """A run of `compare`.

    settings: everything that its rows depend on besides their inputs and methods.
    methods: the methods in the order in which they were given; "attack" may be among them.
    rows: one for each input and method, sorted by input, then by method.
    """

    settings: RadiusSettings
    methods: tuple[str, ...]
    rows: tuple[RadiusRow, ...]

    @property
    def table(self) -> tuple[MethodLine, ...]:
        """What each method proves, how far, how fast, and in how much memory."""
        return tabulate(self.rows, self.methods, self.settings.grid)

    def __repr__(self) -> str:
        radii = ", ".join(
            f"{line.method} {'none' if line.radius is None else format(line.radius, '.3g')}" for line in self.table
        )
        ball = f"{norm_name(self.settings.norm)} ball"
        return f"Comparison({self.table[0].inputs} inputs, {ball}; geometric mean radius: {radii})"

    def _repr_html_(self) -> str:
        grid = self.settings.grid
        columns = ("method", *(f"at {radius:g}" for radius in grid), "geometric mean radius", "s / run", "MiB")
        rows = [
            (line.method, *line.counts, line.radius, line.seconds_per_run, round(line.peak_bytes / 2**20))
            for line in self.table
        ]
        return html.table(columns, rows, f"{self.table[0].inputs} inputs, {norm_name(self.settings.norm)} ball")

    def plot(self) -> Any:
        """A matplotlib figure: proved counts, radii, seconds and memory of each method."""
        from zonogpt.studies.radii.figure import comparison_figure  # matplotlib is slow to import
        from zonogpt.support.plotting import STYLE, rc_context

        norm = self.settings.norm
        title = f"{self.table[0].inputs} inputs, {norm_name(norm)} ball"
        with rc_context(STYLE):
            return comparison_figure(self.table, self.rows, self.settings.grid, title, norm)


def compare(
    model: Model,
    dataset: Dataset,
    methods: Sequence[str],
    low: float = 1e-5,
    high: float = 1e-2,
    *,
    grid: Sequence[float] = (),
    tolerance: float = TOLERANCE,
    count: int | None = None,
    skip: int = 0,
    norm: float | str = math.inf,
    positions: str = "last",
    each: bool = False,
    seed: int = 0,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    arithmetic: str = "real",
    engine: str = "local",
    workers: int | None = None,
) -> Comparison:
    """Finds the largest radius in low..high that each method proves for each input; for "attack", the smallest broken.

    Radii are bisected by ratio down to 1 + tolerance, those of `grid` first, so that counts at these are exact. An
    input is an image, or a text whose tokens at `positions` move together; with `each`, every one of them is an input
    of its own, in which only that token moves. `timeout` is for one input under one method. UnsoundError if a method
    certifies a radius at which, or below which, the attack breaks the claim.

    With `out`, every row is on the disk in `out`/rows.jsonl as soon as it is known, and a later call with the same
    arguments goes on from there; methods and inputs may be added, anything else must be the same. `engine` and
    `workers` spread the inputs and methods over processes here or on a Ray cluster, as in `certify`. All arguments and
    inputs are checked before the first run.
    """
    check_model(model)
    check_dataset(dataset)
    folder = None if out is None else as_path(out, "out")
    where = Engine(engine, workers)
    names = _methods(methods)
    proving = [name for name in names if name != ATTACK]
    options = Options(
        method=proving[0] if proving else "E", timeout=timeout, device=as_device(device), dtype=as_dtype(dtype),
        budget_bytes=budget_bytes, arithmetic=check_arithmetic(arithmetic), seed=seed,
    )  # fmt: skip
    for name in proving:
        options.of(name)  # which may refuse the arithmetic
    check_ready(model, options, elsewhere=where.remote)
    ladder = Ladder.build(check_radius(low), check_radius(high), tolerance, grid)
    p = as_norm(norm)
    examples = Examples(model, dataset, Positions.parse(positions), seed, each)
    entries = examples.check(chosen_indices(len(dataset), count, skip))
    settings = RadiusSettings(
        model=weights_digest(model),
        norm=f"{p:g}",
        low=float(low),
        high=float(high),
        tolerance=float(tolerance),
        grid=[float(radius) for radius in grid],
        dtype=options.dtype_name,
        seed=seed,
        timeout=timeout,
        budget=budget_bytes,
        version=__version__,
        arithmetic=options.arithmetic,
    )
    task = RadiusTask(model, options, settings, ladder, p)
    keys = [key_of(settings.digest, entry, name) for entry in entries for name in names]
    watcher = watcher or Watcher()
    with open_store(folder, settings, RadiusRow) as store:
        found = [store.finished[key] for key in keys if key in store.finished]
        watcher.start(len(keys) - len(found), len(keys) - len(found), len(found))
        meeting = Meeting()
        for row in found:
            meeting.join(row)
        collect(where, task, [(store, _jobs(examples, entries, settings.digest, names))], watcher, meeting.join)
        rows = tuple(store.finished[key] for key in keys)
    return Comparison(settings, names, rows)


def _jobs(examples: Examples, entries: Sequence[Entry], settings: str, methods: Sequence[str]) -> Iterator[RadiusJob]:
    """Inputs are read when their first job is asked for."""
    for entry in entries:
        example = examples.example(entry)
        for method in methods:
            yield RadiusJob(settings, example, method)


def _methods(names: Sequence[str]) -> tuple[str, ...]:
    check_list(names, "methods")
    known = (*METHODS, ATTACK)
    for name in names:
        if name not in known:
            raise OptionError(f"method {name!r} is unknown; there are {', '.join(known)}")
    if not names or len(set(names)) != len(names):
        raise OptionError(f"name at least one method, each once; got {', '.join(names) or 'none'}")
    return tuple(names)


@dataclass(frozen=True)
class Meeting:
    """Compares the rows about the same input: no method may certify what the attack breaks."""

    rows: dict[tuple[int, tuple[int, ...]], list[RadiusRow]] = field(default_factory=dict)

    def join(self, row: RadiusRow) -> None:
        """UnsoundError if this row contradicts another."""
        here = self.rows.setdefault(row.place, [])
        here.append(row)
        if row.status == "misclassified":
            return
        broken = min((other.radius for other in here if other.method == ATTACK), default=math.inf)
        for other in here:
            if other.method != ATTACK:
                require_order(other.radius, broken, other.method)
