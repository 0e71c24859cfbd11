"""Messages between this process and its workers, pickled by value.

The pipe's own `send` passes tensors as file descriptors, which only processes that multiprocessing itself has started
may fetch.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any


def send(pipe: Connection, message: object) -> None:
    pipe.send_bytes(pickle.dumps(message))


def receive(pipe: Connection) -> Any:
    """The next message; EOFError or OSError if the other end is gone."""
    return pickle.loads(pipe.recv_bytes())
