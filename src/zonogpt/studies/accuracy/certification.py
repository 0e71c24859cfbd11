"""certify(): certified accuracy of a model over a data set, at several radii, in a run that can be continued."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zonogpt._version import __version__
from zonogpt.datasets import Dataset, check_dataset
from zonogpt.errors import OptionError
from zonogpt.model.arithmetic import check_arithmetic
from zonogpt.model.identity import weights_digest
from zonogpt.model.ir import Model, check_model
from zonogpt.search.descent import RESTARTS, STEPS
from zonogpt.spec.positions import Positions
from zonogpt.spec.spec import as_norm, check_radius
from zonogpt.studies.accuracy.job import AccuracyJob, AccuracyTask
from zonogpt.studies.accuracy.rows import AccuracyRow, AccuracySettings, key_of
from zonogpt.studies.accuracy.table import AccuracyLine, tabulate
from zonogpt.studies.engine.engine import Engine, collect
from zonogpt.studies.engine.watcher import Watcher
from zonogpt.studies.examples import Entry, Examples, chosen_indices
from zonogpt.studies.rows.store import open_store
from zonogpt.support import html
from zonogpt.support.files import as_path
from zonogpt.support.numbers import norm_name
from zonogpt.verification.options import Options, as_device, as_dtype, check_list
from zonogpt.verification.session import check_ready

# Examples that are verified together: enough to fill the device, few enough that a crash loses little.
TOGETHER_CPU, TOGETHER_GPU = 4, 32

OnRow = Callable[[AccuracyRow], None]


@dataclass(frozen=True, repr=False)
class Certification:
    """A run of `certify`.

    settings: everything that its rows depend on besides their examples.
    radii: in increasing order.
    rows: one for each example and radius, sorted by example, then by radius.
    """

    settings: AccuracySettings
    radii: tuple[float, ...]
    rows: tuple[AccuracyRow, ...]

    @property
    def table(self) -> tuple[AccuracyLine, ...]:
        """How many examples are clean, certified, survived and unknown, with one line per radius."""
        return tabulate(self.rows, self.radii)

    @property
    def counted(self) -> str:
        """How many examples there are: "20", or with `each` "16 tokens of 3 texts"."""
        examples = len({row.place for row in self.rows})
        if not self.settings.each:
            return str(examples)
        return f"{examples} tokens of {len({row.index for row in self.rows})} texts"

    @property
    def changes(self) -> str:
        """What is changed: "l∞ changes", or for texts "l∞ changes of the last token"."""
        changes, which = f"{norm_name(self.settings.norm)} changes", self.settings.positions
        if which is None:
            return changes
        kind, _, rest = which.partition(":")
        known = {"last": "the last token", "all": "all tokens", "random": f"{rest} random tokens", "words": rest}
        return f"{changes} of {known.get(kind, f'tokens {which}')}{', one at a time' if self.settings.each else ''}"

    def __repr__(self) -> str:
        certified = ", ".join(f"{line.certified} at {line.radius:g}" for line in self.table)
        return f"Certification({self.changes}, method {self.settings.method}: certified of {self.counted}: {certified})"

    def _repr_html_(self) -> str:
        columns = ("radius", "examples", "clean", "certified", "survived", "unknown", "seconds")
        rows = [[getattr(line, name) for name in columns] for line in self.table]
        return html.table(
            columns,
            rows,
            f"{self.counted}{'' if self.settings.each else ' examples'}, {self.changes}, method {self.settings.method}",
        )

    def plot(self) -> Any:
        """A matplotlib figure: at each radius, what is proved, unknown and broken."""
        from zonogpt.studies.accuracy.figure import accuracy_figure  # matplotlib is slow to import
        from zonogpt.support.plotting import STYLE, rc_context

        title = f"Accuracy under {self.changes}, method {self.settings.method}"
        with rc_context(STYLE):
            return accuracy_figure(self.table, title, self.settings.norm, self.counted)


def certify(
    model: Model,
    dataset: Dataset,
    radii: Sequence[float],
    *,
    count: int | None = None,
    skip: int = 0,
    norm: float | str = math.inf,
    method: str = "E",
    positions: str = "last",
    each: bool = False,
    attack: bool = True,
    seed: int = 0,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    out: str | Path | None = None,
    on_row: OnRow | None = None,
    arithmetic: str = "real",
    engine: str = "local",
    workers: int | None = None,
    watcher: Watcher | None = None,
) -> Certification:
    """Verifies and attacks `count` examples after the first `skip` at every radius (increasing, positive).

    An example is certified if the model (in float64) gives its label and `verify` proves that it keeps it. Without
    labels, the model must keep its own answer. Proof and attack run independently, so that each checks the other:
    UnsoundError if an attack ever breaks what was certified. Radii are tried from the largest down, and a proof settles
    all smaller ones, as their sets lie inside: these rows are `implied` and have no margins.

    `positions` says which tokens of a text move together: "last", "all", "random:2", "1,4" or "words:good,film" (see
    Positions). With `each`, every one of them makes an example of its own, in which only that token moves. `seed` seeds
    random positions and the attack. With `out`, every row is on the disk in `out`/rows.jsonl as soon as it is
    known, and a later call with the same arguments goes on from there. More radii or examples may be added; anything
    else must be the same. `on_row` is called for each row, first for those found in `out`.

    If `workers` is more than one, that many processes on this machine share the examples and the device; a script that
    calls this needs no `if __name__ == "__main__"`. With `engine` "ray", the workers of a Ray cluster do the same: as
    many as `workers` says, or as the cluster has room for. It is the cluster that RAY_ADDRESS names, else a new one on
    this machine. If a worker dies, the rows it was working on are lost, and another worker makes them.

    All arguments and all examples are checked before the first proof.
    """
    check_model(model)
    check_dataset(dataset)
    _check_radii(radii)
    p = as_norm(norm)
    folder = None if out is None else as_path(out, "out")
    where = Engine(engine, workers)
    options = Options(
        method=method, attack=attack, timeout=timeout, device=as_device(device), dtype=as_dtype(dtype),
        budget_bytes=budget_bytes, arithmetic=check_arithmetic(arithmetic), seed=seed,
    )  # fmt: skip
    check_ready(model, options, elsewhere=where.remote)
    chosen = chosen_indices(len(dataset), count, skip)
    examples = Examples(model, dataset, Positions.parse(positions), seed, each)
    entries = examples.check(chosen)
    settings = settings_of(model, options, p, positions, each)
    task = AccuracyTask(model, options, settings, p)
    steps = tuple(map(float, radii))
    keys = [key_of(settings.digest, entry, radius) for entry in entries for radius in steps]
    on_row, watcher = on_row or (lambda row: None), watcher or Watcher()
    with open_store(folder, settings, AccuracyRow) as store:
        found = [store.finished[key] for key in keys if key in store.finished]
        watcher.start(len(keys) - len(found), len(keys) - len(found), len(found))
        for row in found:
            on_row(row)
        jobs = _jobs(examples, entries, settings.digest, steps, where.share(len(entries), together(task.device)))
        collect(where, task, [(store, jobs)], watcher, on_row)
        rows = [store.finished[key] for key in keys]
    rows.sort(key=lambda row: (row.index, row.positions or [], row.radius))
    return Certification(settings, steps, tuple(rows))


def settings_of(model: Model, options: Options, norm: float, positions: str, each: bool) -> AccuracySettings:
    return AccuracySettings(
        model=weights_digest(model),
        norm=f"{norm:g}",
        method=options.method,
        guarantee=options.guarantee,
        dtype=options.dtype_name,
        positions=positions if model.embedding.reads == "texts" else None,
        attack=f"{RESTARTS} restarts, {STEPS} steps" if options.attack else None,
        seed=options.seed,
        timeout=options.timeout,
        budget=options.budget_bytes,
        version=__version__,
        arithmetic=options.arithmetic,
        each=each,
    )


def together(device: torch.device) -> int:
    return TOGETHER_GPU if device.type == "cuda" else TOGETHER_CPU


def _jobs(
    examples: Examples, entries: Sequence[Entry], settings: str, radii: tuple[float, ...], size: int
) -> Iterator[AccuracyJob]:
    """Jobs of `size` examples each, which are read when the job is asked for."""
    for start in range(0, len(entries), size):
        some = tuple(examples.example(entry) for entry in entries[start : start + size])
        yield AccuracyJob(settings, some, radii)


def _check_radii(radii: Sequence[float]) -> None:
    check_list(radii, "radii")
    if not radii:
        raise OptionError("give at least one radius")
    for radius in radii:
        if not check_radius(radius) > 0:
            raise OptionError(f"a radius of accuracy must be positive; got {radius!r}")
    if list(radii) != sorted(set(radii)):
        raise OptionError(
            f"give the radii in increasing order, without repeats; got {', '.join(f'{radius:g}' for radius in radii)}"
        )
