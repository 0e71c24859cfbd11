"""bench run: every instance by every method, each row on the disk as soon as it is known.

Rows go to OUT/MODEL.jsonl, one file per model, which one run at a time may write: several runs may share OUT, and each
takes the models that no other has. Rows that exist are not computed again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from zonogpt._version import __version__
from zonogpt.errors import ModelError, OptionError
from zonogpt.model.arithmetic import check_arithmetic
from zonogpt.search.descent import RESTARTS, STEPS
from zonogpt.studies.engine.engine import Engine, collect
from zonogpt.studies.engine.watcher import Watcher
from zonogpt.studies.rows.store import BusyError, RowStore, content_of, open_store, parse
from zonogpt.verification.options import Options, as_device, as_dtype
from zonogpt_apps.bench.grid import SEED, ModelId
from zonogpt_apps.bench.instances import Benchmark, Instance
from zonogpt_apps.bench.rows import BenchRow, BenchSettings, work
from zonogpt_apps.bench.work import BenchJob, BenchTask, first_inputs, key_of, propagations

TOGETHER = 20  # propagations in a job for another process: enough for batches, few enough to lose


@dataclass
class Outcome:
    rows: list[BenchRow] = field(default_factory=list)  # of the models and methods that were asked for, old and new
    busy: list[ModelId] = field(default_factory=list)  # models that another run was working on


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
    arithmetic: str = "real",
) -> Outcome:
    """The rows of the instances in `instances` about the models in `trained`; they are also written to `out`.

    `models` and `inputs` (the first so many of each model) select instances; `attack` searches for counterexamples to
    what was not proved. `engine` and `workers` spread the work over processes here or on a Ray cluster, whose machines
    must see the same files: see zonogpt.certify.
    """
    where = Engine(engine, workers)
    if not methods or len(set(methods)) != len(methods):
        raise OptionError(f"give at least one method, each once; got {', '.join(methods)}")
    options = Options(
        method=methods[0], attack=attack, timeout=None if timeout is None else float(timeout), device=as_device(device),
        dtype=as_dtype(dtype), budget_bytes=budget_bytes, arithmetic=check_arithmetic(arithmetic), seed=SEED,
    )  # fmt: skip
    for method in methods:
        options.of(method)  # raises if the method is unknown or refuses the arithmetic
    if inputs is not None and inputs < 1:
        raise OptionError(f"the number of inputs must be at least 1; got {inputs}")
    instances, trained = instances.resolve(), trained.resolve()  # workers elsewhere have another working directory
    benchmark = Benchmark.read(instances)
    chosen = benchmark.models if models is None else tuple(dict.fromkeys(models))
    for model in chosen:
        if model not in benchmark.models:
            raise OptionError(f"{instances} has no instances of {model}")
        if not (trained / str(model)).is_dir():
            raise ModelError(f"{trained} has no {model}")
    settings = BenchSettings(
        dtype=options.dtype_name,
        timeout=options.timeout,  # a float: 60 and 60.0 are the same settings
        budget=budget_bytes,
        attack=f"{RESTARTS} restarts, {STEPS} steps" if attack else None,
        version=__version__,
        arithmetic=options.arithmetic,
    )
    task = BenchTask(benchmark, trained, options, settings, commit or source_commit())
    return BenchRun(task, tuple(methods), inputs, out, where, watcher or Watcher()).over(chosen)


@dataclass(frozen=True)
class BenchRun:
    """A run: what it does for each model, on which engine, and where its rows go."""

    task: BenchTask
    methods: tuple[str, ...]
    inputs: int | None
    out: Path
    engine: Engine
    watcher: Watcher

    def over(self, models: Sequence[ModelId]) -> Outcome:
        """Runs the models: one by one if this process works alone, so that other runs may take those that wait."""
        self.announce(models)
        outcome = Outcome()
        for some in [[model] for model in models] if self.engine.alone else [models]:
            with ExitStack() as stack:
                stores: dict[ModelId, RowStore[BenchRow]] = {}
                for model in some:
                    try:
                        store = open_store(self.out, self.task.settings, BenchRow, rows_file(model))
                        stores[model] = stack.enter_context(store)
                    except BusyError:
                        outcome.busy.append(model)
                parts = [(store, self.jobs(model)) for model, store in stores.items()]
                collect(self.engine, self.task, parts, self.watcher)
                outcome.rows += [store.finished[key] for model, store in stores.items() for key in self.keys(model)]
        return outcome

    def announce(self, models: Sequence[ModelId]) -> None:
        """Tells the watcher how much there is to do, as far as the files say at the moment."""
        todo, found = [], 0
        for model in models:
            file = self.out / rows_file(model)
            known = {row.key for row in parse(content_of(file), file, BenchRow)[0]} if file.exists() else set()
            open_ = [
                work(method, instance)
                for method in self.methods
                for instance in self.instances(model)
                if key_of(self.task.settings.digest, method, instance) not in known
            ]
            todo += open_
            found += len(self.instances(model)) * len(self.methods) - len(open_)
        self.watcher.start(sum(todo), len(todo), found)

    def instances(self, model: ModelId) -> list[Instance]:
        return first_inputs(self.task.benchmark.of(model), self.inputs)

    def jobs(self, model: ModelId) -> Iterator[BenchJob]:
        """The jobs of a model, method by method."""
        whole = propagations(self.instances(model))
        size = len(whole) if self.engine.alone else TOGETHER
        for method in self.methods:
            for start in range(0, len(whole), size):
                yield BenchJob(self.task.settings.digest, model, method, tuple(whole[start : start + size]))

    def keys(self, model: ModelId) -> list[str]:
        """The keys of all rows that were asked for, by method, in the order of the instances."""
        digest = self.task.settings.digest
        return [key_of(digest, method, instance) for method in self.methods for instance in self.instances(model)]


def rows_file(model: ModelId) -> str:
    return f"{model}.jsonl"


def source_commit() -> str:
    """The commit of the source tree that runs, with -dirty where files differ; without git, the version."""
    file = Path(__file__)
    git = ["git", "-C", str(file.parent)]
    try:
        # If it is installed inside somebody's repository, this file is not tracked there.
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], capture_output=True, check=True)
        asked = [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"v{__version__}"
