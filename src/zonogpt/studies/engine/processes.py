"""Worker processes on this machine.

Each is a separate Python that runs zonogpt.studies.engine.worker and nothing else. The caller's script is not imported
again, so it needs no `if __name__ == "__main__"`. Nothing is forked, as threads and GPUs do not survive a fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import IO, Generic

import torch

from zonogpt.errors import OptionError
from zonogpt.studies.engine.hands import Done, Event, Hands, Lost
from zonogpt.studies.engine.job import J, R, Task
from zonogpt.studies.engine.messages import receive, send

MODULE = "zonogpt.studies.engine.worker"


@dataclass(eq=False)
class Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    number: int | None = None  # its job's number

    def kill(self) -> int:
        """Ends the worker at once, as it has nothing to lose; returns its exit code."""
        self.process.kill()
        self.pipe.close()
        return self.process.wait()


@dataclass(eq=False)
class Processes(Generic[J, R]):
    """As many processes as there are jobs at a time, up to `most`; a dead one is replaced."""

    task: IO[bytes]  # a file without a name: it is gone once no process has it open
    most: int
    workers: list[Worker] = field(default_factory=list)

    @staticmethod
    @contextmanager
    def working(task: Task[J, R], most: int) -> Iterator[Hands[J, R]]:
        if os.name != "posix":
            raise OptionError("several workers need Linux or macOS: here, files cannot be handed to another process")
        with tempfile.TemporaryFile() as file:
            torch.save(task, file)  # once for all workers; weights that are shared are stored once
            file.flush()
            hands: Processes[J, R] = Processes(file, most)
            try:
                yield hands
            finally:
                for worker in hands.workers:
                    worker.kill()

    @property
    def free(self) -> bool:
        return len(self.workers) < self.most or any(worker.number is None for worker in self.workers)

    def give(self, number: int, job: J) -> None:
        worker = next((worker for worker in self.workers if worker.number is None), None)
        if worker is None:
            worker = started(self.task.fileno(), max(1, torch.get_num_threads() // self.most))
            self.workers.append(worker)
        worker.number = number
        with contextlib.suppress(OSError):  # it has died: `wait` will see that
            send(worker.pipe, (number, job))

    def wait(self) -> Sequence[Event[R]]:
        busy = [worker for worker in self.workers if worker.number is not None]
        ready = wait([worker.pipe for worker in busy])
        return [self._event(worker) for worker in busy if worker.pipe in ready]

    def _event(self, worker: Worker) -> Event[R]:
        assert worker.number is not None
        try:
            event: Event[R] = receive(worker.pipe)
        except (EOFError, OSError):
            self.workers.remove(worker)
            return Lost(worker.number, f"with exit code {worker.kill()}")
        if isinstance(event, Done):
            worker.number = None
        return event


def started(task: int, threads: int) -> Worker:
    """A new process that reads the task from this open file."""
    ours, theirs = multiprocessing.Pipe()
    with theirs:
        numbers = (theirs.fileno(), task, os.getpid(), threads)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, *map(str, numbers)],
            pass_fds=(theirs.fileno(), task),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path)},
        )
    return Worker(process, ours)
