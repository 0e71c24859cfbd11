"""bench run: every instance by every method, each row on the disk as soon as it is known (by Ray: piece by piece).

Rows go to OUT/MODEL.jsonl, one file per model, which one process at a time may write: several runs may share OUT, and
each takes the models that no other has. What is there is not done again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from zonogpt._version import __version__
from zonogpt.errors import ModelError, OptionError
from zonogpt.search.descent import RESTARTS, STEPS
from zonogpt.studies.rows.store import BusyError, RowStore, content_of, open_store, parse
from zonogpt.verification.options import as_dtype, check_limits, check_method
from zonogpt_apps.bench.grid import SIZES, ModelId
from zonogpt_apps.bench.instances import Benchmark, Instance
from zonogpt_apps.bench.rows import Row, Settings
from zonogpt_apps.bench.work import Job, Worker, first_inputs


class Watcher:
    """Told what a run does; a command line shows it. Work is counted in units about as long as each other."""

    def start(self, work: float, rows: int, found: int) -> None:
        """So much is to be done, for so many rows; so many were there."""

    def model(self, model: ModelId, method: str) -> None: ...

    def rows(self, work: float, rows: Sequence[Row]) -> None: ...


@dataclass
class Outcome:
    rows: list[Row] = field(default_factory=list)  # of the models and methods that were asked for, old and new
    busy: list[ModelId] = field(default_factory=list)  # models that another run was at


def run(
    instances: Path,
    trained: Path,
    methods: Sequence[str],
    out: Path,
    models: Sequence[ModelId] | None = None,
    inputs: int | None = None,
    timeout: float | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    budget_bytes: int | None = None,
    attack: bool = False,
    commit: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Rows for the instances in `instances` about the models in `trained`, which `out` then holds.

    `models` and `inputs` (the first so many of each model) say which; `attack` searches counterexamples of what was not
    proved. `engine` "ray" spreads the work over a Ray cluster: `workers` at a time (all there is room for, without).
    """
    for method in methods:
        check_method(method)
    check_limits(timeout, budget_bytes)
    if not methods or len(set(methods)) != len(methods):
        raise OptionError(f"give at least one method, each once; got {', '.join(methods)}")
    if engine not in ("local", "ray"):
        raise OptionError(f"engine {engine!r} is unknown; there are local and ray")
    for what, number in (("inputs", inputs), ("workers", workers)):
        if number is not None and number < 1:
            raise OptionError(f"the number of {what} must be at least 1; got {number}")
    instances, trained = instances.resolve(), trained.resolve()  # workers elsewhere have another working directory
    benchmark = Benchmark.read(instances)
    chosen = benchmark.models if models is None else tuple(dict.fromkeys(models))
    for model in chosen:
        if model not in benchmark.models:
            raise OptionError(f"{instances} has no instances of {model}")
        if not (trained / str(model)).is_dir():
            raise ModelError(f"{trained} has no {model}")
    settings = Settings(
        dtype=str(as_dtype(dtype)).removeprefix("torch."),
        timeout=None if timeout is None else float(timeout),  # 60 and 60.0 are the same settings
        budget=budget_bytes,
        attack=f"{RESTARTS} restarts, {STEPS} steps" if attack else None,
        version=__version__,
    )
    worker = Worker(benchmark, trained, settings, device, commit or source_commit())
    work = Work(worker, tuple(methods), inputs, out, watcher or Watcher())
    work.announce(chosen)
    if engine == "ray":
        from zonogpt_apps.bench.ray_engine import spread  # ray is an extra

        return spread(work, chosen, workers)
    return one_by_one(work, chosen)


@dataclass(frozen=True)
class Work:
    """What is to be done for each model, and where its rows go."""

    worker: Worker
    methods: tuple[str, ...]
    inputs: int | None
    out: Path
    watcher: Watcher

    def instances(self, model: ModelId) -> list[Instance]:
        return first_inputs(self.worker.benchmark.of(model), self.inputs)

    def jobs(self, model: ModelId, done: Collection[str]) -> list[Job]:
        return self.worker.open_jobs(self.instances(model), self.methods, done)

    def announce(self, models: Sequence[ModelId]) -> None:
        """Tells the watcher how much there is to do, as far as the files say at the moment."""
        jobs, wanted = [], 0
        for model in models:
            file = self.out / rows_file(model)
            known = parse(content_of(file), file, Row)[0] if file.exists() else []
            jobs += self.jobs(model, {row.key for row in known})
            wanted += len(self.instances(model)) * len(self.methods)
        todo = sum(len(job.instances) for job in jobs)
        self.watcher.start(sum(cost(job.method, job.instances[0].model) for job in jobs), todo, wanted - todo)

    def store(self, model: ModelId) -> AbstractContextManager[RowStore[Row]]:
        return open_store(self.out, self.worker.settings, Row, rows_file(model))

    def keep(self, store: RowStore[Row], rows: Sequence[Row]) -> None:
        for row in rows:
            store.append(row)
        self.watcher.rows(cost(rows[0].method, rows[0].model), rows)

    def finished(self, model: ModelId, store: RowStore[Row]) -> list[Row]:
        """All rows that were asked for, in the order of the instances."""
        keys = [self.worker.key(method, instance) for method in self.methods for instance in self.instances(model)]
        return [store.finished[key] for key in keys]


def one_by_one(work: Work, models: Sequence[ModelId]) -> Outcome:
    """In this process, one model after the other."""
    outcome = Outcome()
    for model in models:
        try:
            with work.store(model) as store:
                solve_model(work, model, store)
                outcome.rows += work.finished(model, store)
        except BusyError:
            outcome.busy.append(model)
    return outcome


def solve_model(work: Work, model: ModelId, store: RowStore[Row]) -> None:
    jobs = work.jobs(model, store.finished.keys())
    if not jobs:
        return
    net = work.worker.load(model)
    for method in work.methods:
        todo = [job for job in jobs if job.method == method]
        if todo:
            work.watcher.model(model, method)
            work.worker.solve(net, todo, lambda rows: work.keep(store, rows))


def rows_file(model: ModelId) -> str:
    return f"{model}.jsonl"


SLOWER = {"E": 1.0, "A": 6.0, "F": 4.0, "D": 4.0, "M": 2.0, "ibp": 0.2, "deepz": 60.0, "crown": 60.0, "covenn": 30.0}


def cost(method: str, model: ModelId) -> float:
    """About how long a propagation takes, in units of its own: for the estimate on the progress bar."""
    return SLOWER.get(method.removesuffix("-literal"), 1.0) * model.blocks * (SIZES[model.size][0] / 768) ** 2


def source_commit() -> str:
    """The commit of the source tree that runs, with -dirty where files differ; without git, the version."""
    file = Path(__file__)
    git = ["git", "-C", str(file.parent)]
    try:
        # Installed inside somebody's repository, this file is none of that repository's.
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], capture_output=True, check=True)
        asked = [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"v{__version__}"
