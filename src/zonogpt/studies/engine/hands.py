"""The workers, and what they report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol

from zonogpt.studies.engine.job import J, J_contra, R, R_co, Solver, Task, Tell


@dataclass(frozen=True)
class Known(Generic[R_co]):
    """A row of this job is known."""

    number: int
    row: R_co


@dataclass(frozen=True)
class Note:
    """What a worker does at the moment, for people."""

    text: str


@dataclass(frozen=True)
class Done:
    """This job has no more rows."""

    number: int


@dataclass(frozen=True)
class Lost:
    """The worker of this job died."""

    number: int
    how: str


@dataclass(frozen=True)
class Failed:
    """This job raised an error: the run is over."""

    error: Exception


Event = Known[R_co] | Note | Done | Lost | Failed


class Hands(Protocol[J_contra, R_co]):
    """Workers, each with one job at most."""

    @property
    def free(self) -> bool:
        """Whether one of them has no job."""

    def give(self, number: int, job: J_contra) -> None:
        """Gives the job to a worker that has none."""

    def wait(self) -> Sequence[Event[R_co]]:
        """What the workers report next, at least one event: a job's rows one by one, before it is Done or Lost."""


class InProcess(Generic[J, R]):
    """One worker: this process. What a job raises is raised by `wait` itself."""

    def __init__(self, task: Task[J, R], tell: Tell) -> None:
        self._task, self._tell = task, tell
        self._solver: Solver[J, R] | None = None
        self._now: tuple[int, Iterator[R]] | None = None

    @staticmethod
    @contextmanager
    def working(task: Task[J, R], tell: Tell) -> Iterator[Hands[J, R]]:
        yield InProcess(task, tell)

    @property
    def free(self) -> bool:
        return self._now is None

    def give(self, number: int, job: J) -> None:
        self._solver = self._solver or self._task.open()
        self._now = number, self._solver.solve(job, self._tell)

    def wait(self) -> Sequence[Event[R]]:
        assert self._now is not None
        number, rows = self._now
        for row in rows:
            return [Known(number, row)]
        self._now = None
        return [Done(number)]
