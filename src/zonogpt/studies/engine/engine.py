"""Turns jobs into rows: in this process, in worker processes on this machine, or on a Ray cluster.

Rows are stored one by one as they become known, by this process only. A run that was stopped, for whatever reason, goes
on from the rows that are stored; so does a job whose worker died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic

from zonogpt.errors import OptionError, WorkerError
from zonogpt.studies.engine.hands import Done, Event, Failed, Hands, InProcess, Known, Lost, Note
from zonogpt.studies.engine.job import J, R, Task, Tell
from zonogpt.studies.engine.watcher import Watcher
from zonogpt.studies.rows.store import RowStore

ENGINES = ("local", "ray")
TRIES = 5  # how often a job is tried if its workers die


@dataclass(frozen=True)
class Engine:
    """Who works on the jobs of a run."""

    name: str = "local"  # or "ray": the cluster that RAY_ADDRESS names, else a new one on this machine
    workers: int | None = None  # at a time. None: one, in this process; on a cluster, as many as it has room for

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise OptionError(f"engine {self.name!r} is unknown; there are {' and '.join(ENGINES)}")
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise OptionError(f"the number of workers must be at least 1; got {self.workers!r}")

    @property
    def remote(self) -> bool:
        """Whether work may be done on other machines, with other devices."""
        return self.name == "ray"

    def share(self, total: int, most: int) -> int:
        """How many of `total` things make a job: an equal share for each worker, rounded up, and at most `most`."""
        return min(most, max(1, -(-total // (self.workers or 1))))

    @property
    def alone(self) -> bool:
        """Whether all work is done in this process."""
        return self.name == "local" and self.workers in (None, 1)

    def hands(self, task: Task[J, R], tell: Tell) -> AbstractContextManager[Hands[J, R]]:
        """The workers, which have the task; they are gone when the context ends."""
        if self.alone:
            return InProcess.working(task, tell)
        if self.name == "ray":
            from zonogpt.studies.engine.cluster import Cluster  # ray is an extra

            return Cluster.working(task, self.workers)
        from zonogpt.studies.engine.processes import Processes

        return Processes.working(task, self.workers or 1)


@dataclass
class Order(Generic[J, R]):
    """A job, where its rows go, and how often it was tried."""

    job: J
    store: RowStore[R]
    tries: int = 0


def collect(
    engine: Engine,
    task: Task[J, R],
    parts: Iterable[tuple[RowStore[R], Iterable[J]]],
    watcher: Watcher,
    on_row: Callable[[R], None] | None = None,
) -> None:
    """Fills each store with the rows of its jobs, except those that it has. `on_row` gets each new row once it is
    stored, and may raise.

    Raises what a job raises; the rows known by then are stored. WorkerError for a job whose workers die again and
    again.
    """
    todo = _open(Order(job, store) for store, jobs in parts for job in jobs)
    first = next(todo, None)
    if first is None:
        return  # without workers
    with engine.hands(task, watcher.note) as hands:
        dispatcher = Dispatcher(hands, watcher, on_row or (lambda row: None), chain([first], todo))
        while dispatcher.hand_out():
            for event in hands.wait():
                dispatcher.take_in(event)


@dataclass
class Dispatcher(Generic[J, R]):
    """Hands orders out to the workers and takes in what they report."""

    hands: Hands[J, R]
    watcher: Watcher
    on_row: Callable[[R], None]
    todo: Iterator[Order[J, R]]
    again: list[Order[J, R]] = field(default_factory=list)  # orders that dead workers left
    running: dict[int, Order[J, R]] = field(default_factory=dict)
    given: int = 0  # how many jobs so far

    def hand_out(self) -> bool:
        """Gives jobs to all workers that have none, while there are any; returns whether any worker has one now."""
        while self.hands.free:
            order = self.again.pop() if self.again else next(self.todo, None)
            if order is None:
                break
            self.given += 1
            self.running[self.given] = order
            self.watcher.job(order.job.name)
            self.hands.give(self.given, order.job)
        return bool(self.running)

    def take_in(self, event: Event[R]) -> None:
        match event:
            case Known(number, row):
                self.running[number].store.append(row)
                self.watcher.row(row)
                self.on_row(row)
            case Note(text):
                self.watcher.note(text)
            case Done(number):
                del self.running[number]
            case Failed(error):
                raise error
            case Lost(number, how):
                self.again += _open([_tried_once_more(self.running.pop(number), how)])


def _open(orders: Iterable[Order[J, R]]) -> Iterator[Order[J, R]]:
    """The orders with something left to do, reduced to what is left."""
    for order in orders:
        rest = order.job.rest(order.store.finished)
        if rest is not None:
            yield Order(rest, order.store, order.tries)


def _tried_once_more(order: Order[J, R], how: str) -> Order[J, R]:
    if order.tries + 1 == TRIES:
        raise WorkerError(
            f"{order.job.name}: {TRIES} workers in turn died of it, the last {how}; the rows that are there are kept."
            " If memory ran out, fewer workers or a smaller budget may help"
        )
    return Order(order.job, order.store, order.tries + 1)
