"""The work of a run: instances that share a propagation, propagations that become rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch

from zonogpt.errors import ModelError
from zonogpt.methods.ledger import Ledger
from zonogpt.model.hf import load
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec
from zonogpt.studies.engine.job import Tell
from zonogpt.studies.rows.record import digest, now
from zonogpt.support.tensors import moved
from zonogpt.verification.options import Options, usable
from zonogpt.verification.result import Result
from zonogpt.verification.session import Session
from zonogpt_apps.bench.grid import ModelId, check_shape
from zonogpt_apps.bench.instances import Benchmark, Instance
from zonogpt_apps.bench.rows import BenchRow, BenchSettings
from zonogpt_apps.bench.training.record import weights_hash


def key_of(settings: str, method: str, instance: Instance) -> str:
    """The key of the row of an instance under a method, in runs with these settings."""
    return digest([settings, method, instance.hash])


@dataclass(frozen=True)
class Propagation:
    """An input set, and the open claims about it."""

    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class BenchJob:
    """Some propagations of a model by one method, which may run together."""

    settings: str  # digest
    model: ModelId
    method: str
    propagations: tuple[Propagation, ...]

    @property
    def name(self) -> str:
        return f"{self.model}, {self.method}"

    def key(self, instance: Instance) -> str:
        return key_of(self.settings, self.method, instance)

    def rest(self, finished: Mapping[str, BenchRow]) -> Self | None:
        """The job without the claims that are done; None if all are."""
        left = []
        for propagation in self.propagations:
            instances = tuple(one for one in propagation.instances if self.key(one) not in finished)
            if instances:
                left.append(Propagation(instances))
        return replace(self, propagations=tuple(left)) if left else None


def propagations(instances: Iterable[Instance]) -> list[Propagation]:
    found: dict[str, list[Instance]] = {}
    for instance in instances:
        found.setdefault(instance.set_hash, []).append(instance)
    return [Propagation(tuple(group)) for group in found.values()]


@dataclass(frozen=True)
class BenchTask:
    """What all jobs of a run share, here or on another machine that sees the same files."""

    benchmark: Benchmark
    trained: Path
    options: Options  # except the method, which each job names
    settings: BenchSettings
    commit: str

    @property
    def device(self) -> torch.device:
        return self.options.device or torch.device("cpu")

    def open(self) -> BenchSolver:
        return BenchSolver(self)

    def load(self, model: ModelId) -> Model:
        """The model on the device; ModelError if it is not the one that the instances were made for."""
        folder = self.trained / str(model)
        wanted = {instance.model_hash for instance in self.benchmark.of(model)}
        before = weights_hash(folder)
        net = load(folder)
        check_shape(net, model)
        if {before, weights_hash(folder)} != wanted:  # hashed twice: a training may be writing to the folder
            raise ModelError(f"{folder} holds other weights than the instances were made for; make them again")
        return moved(net, usable(self.device, net), net.dtype)


class BenchSolver:
    """Solves jobs. It holds one model at a time: jobs come model by model."""

    def __init__(self, task: BenchTask) -> None:
        self.task = task
        self._loaded: tuple[ModelId, Session] | None = None

    def session(self, model: ModelId) -> Session:
        if self._loaded is None or self._loaded[0] != model:
            self._loaded = None  # frees the model before the next is loaded
            self._loaded = model, Session.open(self.task.load(model), self.task.options)
        return self._loaded[1]

    def solve(self, job: BenchJob, tell: Tell) -> Iterator[BenchRow]:
        session = self.session(job.model)
        specs = [self.task.benchmark.spec(session.model, one.instances[0]) for one in job.propagations]
        options = replace(self.task.options, method=job.method, attack=False)
        for i, result in session.prepare(specs, options).results(specs):
            solved = Solved(self.task, session, job, specs[i], result)
            for k, instance in enumerate(job.propagations[i].instances):
                yield solved.row(instance, first=k == 0)


@dataclass(frozen=True)
class Solved:
    """A propagation, and what it says about each of its claims."""

    task: BenchTask
    session: Session
    job: BenchJob
    spec: Spec
    result: Result

    def row(self, instance: Instance, first: bool) -> BenchRow:
        """The row of one claim; the first row of a propagation has its ledger."""
        at, result = rivals(self.spec).index(instance.rival), self.result
        status, margin = claim_status(result, at), float(result.margins[at])
        reason, lowest = claim_reason(result, status), None
        if status in ("unknown", "timeout") and self.task.options.attack:
            finding = self.session.search(one_claim(self.spec, at), self.task.options)
            lowest = finding.lowest
            if finding.counterexample is not None:
                status, reason = "falsified", finding.said
        return BenchRow(
            **instance.subject,
            key=self.job.key(instance),
            settings=self.job.settings,
            claim=instance.claim,
            method=self.job.method,
            status=status,
            margin=margin,
            seconds=result.seconds / (self.spec.n_outputs - 1),
            device=device_name(self.session.device),
            commit=self.task.commit,
            dtype=result.dtype,
            peak_bytes=result.peak_bytes,
            attack_margin=lowest,
            reason=reason,
            ledger=by_block(result.ledger) if first else None,
            guarantee=result.guarantee,
            arithmetic=result.arithmetic,
            finished=now(),
        )


def claim_status(result: Result, at: int) -> str:
    """The status of one claim of several: proved if its margin is positive, unless the run distrusts its bounds."""
    if result.status in ("verified", "timeout"):
        return result.status
    if result.status == "falsified":
        return result.status if len(result.margins) == 1 else "unknown"
    distrusted = bool((result.margins > 0).all())
    return "verified" if float(result.margins[at]) > 0 and not distrusted else "unknown"


def claim_reason(result: Result, status: str) -> str:
    """The reason for one claim's status: the propagation's, unless this claim was proved and others were not."""
    if status == "verified" and result.status != "verified":
        return "this margin is certified positive; others of the same propagation are not"
    return result.reason


def rivals(spec: Spec) -> list[int]:
    """All outputs but the label, in the order of a result's margins."""
    return [k for k in range(spec.n_outputs) if k != spec.label]


def one_claim(spec: Spec, at: int) -> Spec:
    """The spec with only this row of its claim, which says that the label is above one rival."""
    rows = torch.zeros(1, spec.n_outputs, dtype=torch.float64)
    assert spec.label is not None
    rows[0, spec.label] = 1.0
    rows[0, rivals(spec)[at]] = -1.0
    return spec.with_claim(rows, [0.0])


def by_block(ledger: Ledger) -> dict[str, float] | None:
    totals = {str(block): ledger.total(block) for block in ledger.blocks()}
    if not totals or not all(math.isfinite(total) for total in totals.values()):
        return None
    return {block: float(f"{total:.4g}") for block, total in totals.items()}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def first_inputs(instances: Sequence[Instance], count: int | None) -> list[Instance]:
    """The instances about the first `count` inputs of each model."""
    if count is None:
        return list(instances)
    order: dict[str, dict[str, None]] = {}
    for instance in instances:
        order.setdefault(str(instance.model), {}).setdefault(instance.input)
    kept = {model: set(list(inputs)[:count]) for model, inputs in order.items()}
    return [instance for instance in instances if instance.input in kept[str(instance.model)]]
