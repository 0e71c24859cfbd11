"""compare(): several methods, and the attack, on the same inputs in one run that can be continued."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from zonogpt._version import __version__
from zonogpt.datasets import Dataset, check_dataset
from zonogpt.datasets.texts import Positions
from zonogpt.errors import OptionError
from zonogpt.methods import METHODS, guarantee
from zonogpt.model.ir import Model, check_model
from zonogpt.spec.spec import Spec, check_ball
from zonogpt.studies.examples import Example, Examples, chosen_indices
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.studies.radii.radius import TOLERANCE, Prober, require_order
from zonogpt.studies.radii.rows import ATTACK, Row, Settings
from zonogpt.studies.radii.search import Outcome, Trial
from zonogpt.studies.rows.record import digest
from zonogpt.studies.rows.store import RowStore, open_store
from zonogpt.support.files import as_path
from zonogpt.support.tensors import fingerprint
from zonogpt.verification.options import check_list


class Watcher:
    """What a comparison tells while it runs. This one does not listen."""

    def start(self, total: int) -> None:
        """So many rows there will be."""

    def task(self, name: str, method: str) -> None:
        """This input under this method comes next."""

    def trial(self, trial: Trial) -> None:
        """One radius was tried."""

    def row(self, row: Row) -> None:
        """A row is there, new or found in `out`."""


@dataclass(frozen=True)
class Comparison:
    settings: Settings
    methods: tuple[str, ...]
    rows: tuple[Row, ...]  # by input, then method


def compare(
    model: Model,
    dataset: Dataset,
    methods: Sequence[str],
    low: float = 1e-5,
    high: float = 1e-2,
    grid: Sequence[float] = (),
    tolerance: float = TOLERANCE,
    count: int | None = None,
    skip: int = 0,
    norm: float = math.inf,
    positions: str = "last",
    seed: int = 0,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Comparison:
    """For every input and method the largest radius in low..high that is proved; for "attack" the smallest broken.

    Radii are bisected by ratio down to 1 + tolerance, those of `grid` first, so that counts at these are exact. An
    input is an image, or a token of a text (every one that `positions` names is an input of its own). `timeout` is for
    one input under one method. UnsoundError if a method certifies a radius at which, or below which, the attack breaks.

    With `out`, every row is on the disk in `out`/rows.jsonl as soon as it is known, and a later call with the same
    arguments goes on from there; methods and inputs may be added, anything else must be the same. All arguments and
    inputs are checked before the first run.
    """
    check_model(model)
    check_dataset(dataset)
    check_list(methods, "methods")
    folder = None if out is None else as_path(out, "out")
    known = (*METHODS, ATTACK)
    for name in methods:
        if name not in known:
            raise OptionError(f"method {name!r} is unknown; there are {', '.join(known)}")
    if not methods or len(set(methods)) != len(methods):
        raise OptionError(f"name at least one method, each once; got {', '.join(methods) or 'none'}")
    ladder = Ladder.build(check_ball(low, norm), check_ball(high, norm), tolerance, grid)
    prober = Prober.build(model, seed, timeout, device, dtype, budget_bytes)
    examples = Examples(prober.net, dataset, Positions.parse(positions), seed, norm)
    chosen = chosen_indices(len(dataset), count, skip)
    tokens = examples.check(chosen)
    settings = Settings(
        model=fingerprint((model.embedding, model.blocks, model.head, model.architecture, model.pad_token_id)),
        norm=f"{norm:g}",
        low=float(low),
        high=float(high),
        tolerance=float(tolerance),
        grid=[float(radius) for radius in grid],
        dtype=str(prober.dtype).removeprefix("torch."),
        seed=seed,
        timeout=timeout,
        budget=budget_bytes,
        version=__version__,
    )
    watcher = watcher or Watcher()
    watcher.start(sum(tokens) * len(methods))
    task = _Task(examples, prober, ladder, settings, watcher)
    rows: list[Row] = []
    with nullcontext() if folder is None else open_store(folder, settings, Row) as store:
        for index in chosen:
            for example in one_token_each(examples.classified(index)):
                here = []
                for method in methods:
                    watcher.task(dataset.name(index), method)
                    here.append(task.row(example, method, store))
                    watcher.row(here[-1])
                check_sound(here)
                rows += here
    return Comparison(settings, tuple(methods), tuple(rows))


def one_token_each(example: Example) -> list[Example]:
    """An image as it is; of a text one example for every position that moves."""
    if example.positions is None:
        return [example]
    return [dataclasses.replace(example, positions=[position]) for position in example.positions]


def check_sound(rows: Sequence[Row]) -> None:
    """Of one input: no method may certify what the attack breaks."""
    broken = min(
        (row.radius for row in rows if row.method == ATTACK and row.status != "misclassified"), default=math.inf
    )
    for row in rows:
        if row.method != ATTACK:
            require_order(row.radius, broken, row.method)


@dataclass(frozen=True)
class _Task:
    examples: Examples
    prober: Prober
    ladder: Ladder
    settings: Settings
    watcher: Watcher

    def row(self, example: Example, method: str, store: RowStore[Row] | None) -> Row:
        """The row that is stored, or a new one, stored before it is returned."""
        key = self._key(example, method)
        if store is not None and key in store.finished:
            return store.finished[key]
        if example.correct:
            outcome = self._run(example, method)
            status = outcome.stopped or "done"
        else:
            outcome, status = Outcome(0.0, ()), "misclassified"
        row = Row(
            key=key,
            settings=self.settings.digest,
            index=example.index,
            name=self.examples.dataset.name(example.index),
            label=example.label,
            predicted=example.predicted,
            position=None if example.positions is None else example.positions[0],
            method=method,
            status=status,
            radius=outcome.radius,
            trials=[dataclasses.asdict(trial) for trial in outcome.trials],
            seconds=sum(trial.seconds for trial in outcome.trials),
            peak_bytes=max((trial.peak_bytes for trial in outcome.trials), default=0),
            guarantee=None if method == ATTACK else guarantee(method),
            arithmetic="real",
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )
        if store is not None:
            store.append(row)
        return row

    def _run(self, example: Example, method: str) -> Outcome:
        def spec_at(radius: float) -> Spec:
            return self.examples.spec(example, radius)

        if method == ATTACK:
            return self.prober.broken(self.ladder, spec_at, self.watcher.trial)
        return self.prober.proved(method, self.ladder, spec_at, self.watcher.trial)

    def _key(self, example: Example, method: str) -> str:
        content = fingerprint(example.raw)
        return digest((self.settings.digest, example.index, content, example.label, example.positions, method))
