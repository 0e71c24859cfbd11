"""The work of a run over a data set: a few examples become rows. Its purpose is described in certify()."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from zonogpt.errors import UnsoundError
from zonogpt.model.ir import Model
from zonogpt.search.descent import attack
from zonogpt.spec.spec import Spec
from zonogpt.studies.accuracy.rows import AccuracyRow, AccuracySettings, key_of
from zonogpt.studies.engine.job import Tell
from zonogpt.studies.examples import Answer, Balls, Example
from zonogpt.studies.rows.record import now
from zonogpt.support.tensors import moved
from zonogpt.verification.options import Options, usable
from zonogpt.verification.result import Result
from zonogpt.verification.session import Session


@dataclass(frozen=True)
class AccuracyJob:
    """A few examples at every radius. They share propagations."""

    settings: str  # digest
    examples: tuple[Example, ...]
    radii: tuple[float, ...]  # increasing
    known: Mapping[str, AccuracyRow] = field(default_factory=dict)  # rows of these examples that exist already

    @property
    def name(self) -> str:
        first, last = self.examples[0].entry.name, self.examples[-1].entry.name
        return first if len(self.examples) == 1 else f"{first} to {last}"

    def key(self, example: Example, radius: float) -> str:
        return key_of(self.settings, example.entry, radius)

    def rest(self, finished: Mapping[str, AccuracyRow]) -> Self | None:
        left = [example for example in self.examples if any(self.key(example, r) not in finished for r in self.radii)]
        keys = [self.key(example, radius) for example in left for radius in self.radii]
        known = {key: finished[key] for key in keys if key in finished}
        return replace(self, examples=tuple(left), known=known) if left else None


@dataclass(frozen=True)
class AccuracyTask:
    """What all jobs of a run share; see zonogpt.studies.engine.job."""

    model: Model
    options: Options
    settings: AccuracySettings
    norm: float

    @property
    def device(self) -> torch.device:
        return self.options.device or self.model.device

    @property
    def proving(self) -> Options:
        """The options of the proofs, which are made without an attack."""
        return replace(self.options, attack=False)

    def open(self) -> AccuracySolver:
        # Converted to float64 once, where the work is done: the question is about the model in exact arithmetic.
        net = moved(self.model, usable(self.options.device, self.model), torch.float64)
        return AccuracySolver(self, Balls(net, self.norm), Session.open(net, self.options))


@dataclass(frozen=True)
class AccuracySolver:
    task: AccuracyTask
    balls: Balls
    session: Session

    def solve(self, job: AccuracyJob, tell: Tell) -> Iterator[AccuracyRow]:
        """Makes the rows from the largest radius down: a proof settles all smaller radii."""
        answers = {example.entry: self.balls.answer(example) for example in job.examples}
        proofs: dict[tuple[int, tuple[int, ...]], AccuracyRow] = {}  # each example's proof
        for radius in reversed(job.radii):
            todo = []
            for example in job.examples:
                blank = self._blank(job, example, answers[example.entry], radius)
                known = job.known.get(blank.key)
                row = known or self._without_a_run(blank, proofs.get(blank.place))
                if row is None:
                    todo.append((example, blank))
                    continue
                if row.status == "verified":
                    proofs.setdefault(row.place, row)
                if known is None:
                    yield row
            tell(f"{job.name}, radius {radius:g}")
            for row in self._run(todo, radius):
                if row.status == "verified":
                    proofs[row.place] = row
                yield row

    def _run(self, todo: Sequence[tuple[Example, AccuracyRow]], radius: float) -> Iterator[AccuracyRow]:
        """The rows of these examples, each from a proof and, if that is wanted, an attack."""
        specs = [self.balls.spec(example, radius) for example, _ in todo]
        if not specs:
            return
        for i, result in self.session.prepare(specs, self.task.proving).results(specs):
            yield self._judged(todo[i][1], specs[i], result)

    def _without_a_run(self, blank: AccuracyRow, proof: AccuracyRow | None) -> AccuracyRow | None:
        """The row of an example that is misclassified, or proved at a larger radius; None for all others."""
        if not blank.correct:
            return replace(blank, status="misclassified", reason="the unperturbed input is not given its label")
        if proof is None:
            return None
        return replace(
            blank,
            status="verified",
            reason=f"implied by the proof at radius {proof.radius:g}",
            implied=True,
            broken=False if self.task.options.attack else None,  # the proof says that no attack can succeed
        )

    def _judged(self, blank: AccuracyRow, spec: Spec, result: Result) -> AccuracyRow:
        """The row for this result, after an attack that does not know the result."""
        margin = float(result.margins.min())
        row = replace(
            blank, status=result.status, reason=result.reason, margin=margin, seconds=result.seconds, finished=now()
        )
        if not self.task.options.attack:
            return row
        started = time.perf_counter()
        found = attack(self.balls.net, spec, seed=self.task.options.seed)
        if found.broken and row.status == "verified":
            raise UnsoundError(
                f"{row.name} is certified at radius {row.radius:g} with margin {margin:.6g},"
                f" but an input of the ball has margin {found.lowest:.6g}. This is a bug in zonogpt; please report it."
            )
        return replace(
            row,
            broken=found.broken,
            attack_margin=found.lowest,
            attack_seconds=time.perf_counter() - started,
            finished=now(),
        )

    def _blank(self, job: AccuracyJob, example: Example, answer: Answer, radius: float) -> AccuracyRow:
        """A row that says what is asked, without a verdict."""
        entry = example.entry
        return AccuracyRow(
            key=job.key(example, radius),
            settings=job.settings,
            index=entry.index,
            name=entry.name,
            label=entry.label,
            predicted=answer.predicted,
            correct=answer.correct,
            positions=None if entry.positions is None else list(entry.positions),
            tokens=None if entry.tokens is None else list(entry.tokens),
            radius=radius,
            status="unknown",
            implied=False,
            margin=None,
            seconds=None,
            broken=None,
            attack_margin=None,
            attack_seconds=None,
            reason="",
            guarantee=self.task.options.guarantee,
            arithmetic=self.task.options.arithmetic,
            finished=now(),
        )
