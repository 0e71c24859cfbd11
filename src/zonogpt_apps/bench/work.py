"""The work of a run: instances that share a propagation become a job, and a solved job becomes rows."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from zonogpt.errors import ModelError
from zonogpt.methods.ledger import Ledger
from zonogpt.model.hf import load
from zonogpt.model.ir import Model
from zonogpt.search.falsify import Finding, falsify
from zonogpt.spec.spec import Spec
from zonogpt.studies.rows.record import digest
from zonogpt.support.tensors import moved
from zonogpt.verification.result import Result
from zonogpt.verification.run import verify_many
from zonogpt_apps.bench.grid import SEED, ModelId, check_shape
from zonogpt_apps.bench.instances import Benchmark, Instance
from zonogpt_apps.bench.rows import Row, Settings
from zonogpt_apps.bench.training.record import weights_hash


@dataclass(frozen=True)
class Job:
    """One propagation: an input set, and the claims about it."""

    method: str
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class Worker:
    """All that is needed to solve jobs, here or on another machine that sees the same files."""

    benchmark: Benchmark
    trained: Path
    settings: Settings
    device: str
    commit: str

    def key(self, method: str, instance: Instance) -> str:
        return digest([self.settings.digest, method, instance.hash])

    def open_jobs(self, instances: Iterable[Instance], methods: Sequence[str], done: Collection[str]) -> list[Job]:
        """What is not done, method by method; a propagation of which some claims are done gives only the others."""
        jobs: dict[tuple[str, str], list[Instance]] = {}
        for instance in instances:
            for method in methods:
                if self.key(method, instance) not in done:
                    jobs.setdefault((method, instance.set_hash), []).append(instance)
        return sorted(
            (Job(method, tuple(group)) for (method, _), group in jobs.items()),
            key=lambda job: methods.index(job.method),
        )

    def load(self, model: ModelId) -> Model:
        """The model on the device; ModelError if it is not the one that the instances were made for."""
        folder = self.trained / str(model)
        wanted = {instance.model_hash for instance in self.benchmark.of(model)}
        before = weights_hash(folder)
        net = load(folder)
        check_shape(net, model)
        if {before, weights_hash(folder)} != wanted:  # twice: a training may be writing to the folder at this moment
            raise ModelError(f"{folder} holds other weights than the instances were made for; make them again")
        return moved(net, torch.device(self.device), net.dtype)

    def solve(self, net: Model, jobs: Sequence[Job], on_rows: Callable[[list[Row]], None]) -> None:
        """Jobs of one model and method. `on_rows` gets the rows of each job as soon as they are known."""
        specs = [self.benchmark.spec(net, job.instances[0]) for job in jobs]
        search = None if self.settings.attack is None else Search(net)

        def keep(index: int, result: Result) -> None:
            on_rows(self.rows(net, search, jobs[index], specs[index], result))

        verify_many(
            net, specs, jobs[0].method, timeout=self.settings.timeout, dtype=self.settings.dtype,
            budget_bytes=self.settings.budget, on_result=keep,
        )  # fmt: skip

    def rows(self, net: Model, search: Search | None, job: Job, spec: Spec, result: Result) -> list[Row]:
        places = [rivals(spec).index(instance.rival) for instance in job.instances]
        return [self.row(net, search, job, k, spec, at, result) for k, at in enumerate(places)]

    def row(self, net: Model, search: Search | None, job: Job, k: int, spec: Spec, at: int, result: Result) -> Row:
        """Of the job's claim `k`, which is row `at` of the spec's."""
        instance = job.instances[k]
        status, margin = claim_status(result, at), float(result.margins[at])
        reason, lowest = claim_reason(result, status), None
        if status in ("unknown", "timeout") and search is not None:
            finding = search(one_claim(spec, at))
            lowest = finding.lowest
            if finding.counterexample is not None:
                status, reason = "falsified", finding.said
        return Row(
            key=self.key(job.method, instance),
            settings=self.settings.digest,
            task=instance.task,
            size=instance.size,
            blocks=instance.blocks,
            instance=instance.instance,
            claim=instance.claim,
            radius=instance.radius,
            method=job.method,
            status=status,
            margin=margin,
            seconds=result.seconds / (spec.n_outputs - 1),
            accuracy=instance.accuracy,
            model_hash=instance.model_hash,
            input_hash=instance.input_hash,
            device=device_name(net.device),
            commit=self.commit,
            relative_radius=instance.relative_radius,
            training=instance.training,
            input=instance.input,
            positions=None if instance.positions is None else list(instance.positions),
            dtype=result.dtype,
            peak_bytes=result.peak_bytes,
            attack_margin=lowest,
            reason=reason,
            ledger=by_block(result.ledger) if k == 0 else None,
            guarantee=result.guarantee,
            arithmetic=result.arithmetic,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )


class Search:
    """Looks for counterexamples of claims about one model, which is converted once for all of them."""

    def __init__(self, net: Model) -> None:
        self.exact = moved(net, net.device, torch.float64)
        self.judge = net.source

    def __call__(self, spec: Spec) -> Finding:
        with torch.enable_grad():  # which verify_many has switched off around its callbacks
            return falsify(self.exact, spec, self.judge, seed=SEED)


def claim_status(result: Result, at: int) -> str:
    """Of one claim of several: proved if its own margin is positive, unless the run distrusts its own bounds."""
    if result.status in ("verified", "timeout"):
        return result.status
    if result.status == "falsified":
        return result.status if len(result.margins) == 1 else "unknown"
    distrusted = bool((result.margins > 0).all())
    return "verified" if float(result.margins[at]) > 0 and not distrusted else "unknown"


def claim_reason(result: Result, status: str) -> str:
    """The propagation's, unless that is about claims that were not proved, and this one was."""
    if status == "verified" and result.status != "verified":
        return "this margin is certified positive; others of the same propagation are not"
    return result.reason


def rivals(spec: Spec) -> list[int]:
    """In the order of a result's margins."""
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
    """Those about the first `count` inputs of each model."""
    if count is None:
        return list(instances)
    order: dict[str, dict[str, None]] = {}
    for instance in instances:
        order.setdefault(str(instance.model), {}).setdefault(instance.input)
    kept = {model: set(list(inputs)[:count]) for model, inputs in order.items()}
    return [instance for instance in instances if instance.input in kept[str(instance.model)]]
