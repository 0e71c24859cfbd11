"""The work of a comparison: an input under one method becomes a row. Its purpose is described in compare()."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch

from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec
from zonogpt.studies.engine.job import Tell
from zonogpt.studies.examples import Answer, Balls, Example
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.studies.radii.prober import Prober
from zonogpt.studies.radii.rows import ATTACK, RadiusRow, RadiusSettings, key_of
from zonogpt.studies.radii.search import Outcome, Trial
from zonogpt.studies.rows.record import now
from zonogpt.support.tensors import moved
from zonogpt.verification.options import Options, usable
from zonogpt.verification.session import Session


@dataclass(frozen=True)
class RadiusJob:
    settings: str  # digest
    example: Example
    method: str

    @property
    def name(self) -> str:
        return f"{self.example.entry.name}, {self.method}"

    @property
    def key(self) -> str:
        return key_of(self.settings, self.example.entry, self.method)

    def rest(self, finished: Mapping[str, RadiusRow]) -> Self | None:
        return None if self.key in finished else self


@dataclass(frozen=True)
class RadiusTask:
    """What all jobs of a run share; see zonogpt.studies.engine.job."""

    model: Model
    options: Options  # except for the method, which each job names
    settings: RadiusSettings
    ladder: Ladder
    norm: float

    @property
    def device(self) -> torch.device:
        return self.options.device or self.model.device

    def open(self) -> RadiusSolver:
        net = moved(self.model, usable(self.options.device, self.model), torch.float64)
        return RadiusSolver(self, Balls(net, self.norm), Session.open(net, self.options))


@dataclass(frozen=True)
class RadiusSolver:
    task: RadiusTask
    balls: Balls
    session: Session

    def solve(self, job: RadiusJob, tell: Tell) -> Iterator[RadiusRow]:
        answer = self.balls.answer(job.example)
        if answer.correct:
            outcome = self._search(job, tell)
            yield self._row(job, answer, outcome, outcome.stopped or "done")
        else:
            yield self._row(job, answer, Outcome(0.0, ()), "misclassified")

    def _search(self, job: RadiusJob, tell: Tell) -> Outcome:
        def spec_at(radius: float) -> Spec:
            return self.balls.spec(job.example, radius)

        def on_trial(trial: Trial) -> None:
            tell(f"{job.name}, radius {trial.radius:g}: {trial.status}")

        prober = Prober(self.session, self.task.options, self.task.ladder, on_trial)
        return prober.broken(spec_at) if job.method == ATTACK else prober.of(job.method).proved(spec_at)

    def _row(self, job: RadiusJob, answer: Answer, outcome: Outcome, status: str) -> RadiusRow:
        entry = job.example.entry
        options = self.task.options
        return RadiusRow(
            key=job.key,
            settings=job.settings,
            index=entry.index,
            name=entry.name,
            label=entry.label,
            predicted=answer.predicted,
            positions=None if entry.positions is None else list(entry.positions),
            tokens=None if entry.tokens is None else list(entry.tokens),
            method=job.method,
            status=status,
            radius=outcome.radius,
            trials=[dataclasses.asdict(trial) for trial in outcome.trials],
            seconds=sum(trial.seconds for trial in outcome.trials),
            peak_bytes=max((trial.peak_bytes for trial in outcome.trials), default=0),
            guarantee=None if job.method == ATTACK else options.of(job.method).guarantee,
            arithmetic=options.arithmetic,
            finished=now(),
        )
