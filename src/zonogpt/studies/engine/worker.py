"""A worker process: reads jobs from a pipe and writes their rows back. It ends when the other end is gone."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from zonogpt.studies.engine.hands import Done, Failed, Known, Note
from zonogpt.studies.engine.job import Solver, Task
from zonogpt.studies.engine.messages import receive, send


def main(pipe: Connection, task: Task[Any, Any]) -> None:
    solver: Solver[Any, Any] | None = None
    while True:
        number, job = receive(pipe)
        try:
            solver = solver or task.open()
            for row in solver.solve(job, lambda text: send(pipe, Note(text))):
                send(pipe, Known(number, row))
            send(pipe, Done(number))
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:  # whatever it is, the run that this job belongs to is told
            send(pipe, Failed(portable(error)))


def portable(error: Exception) -> Exception:
    """The error with a note of where it was raised or, if it cannot be pickled, a RuntimeError that says the same."""
    said = traceback.format_exc()
    try:
        error.add_note(f"in a worker process:\n{said}")
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error's own class decides what goes wrong here
        return RuntimeError(said)
    return error


def read_task(descriptor: int) -> Task[Any, Any]:
    """The task, from a file that all workers have open: each reads it at its own position."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        return torch.load(content, weights_only=False)  # type: ignore[arg-type]  # it takes whatever can be read


def end_with(parent: int) -> None:
    """Ends this process, in the middle of whatever it does, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    pipe_, task_, parent_, threads_ = map(int, sys.argv[1:])
    threading.Thread(target=end_with, args=(parent_,), daemon=True).start()
    torch.set_num_threads(threads_)
    try:
        main(Connection(pipe_), read_task(task_))
    except (EOFError, BrokenPipeError):
        sys.exit(0)  # the run is over
