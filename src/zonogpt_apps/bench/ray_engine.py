"""The same work on a Ray cluster: pieces of a model's jobs go to workers, rows come back to one writer.

A piece whose worker dies is given to another by Ray itself; its rows are written once, when it comes back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from zonogpt.errors import OptionError
from zonogpt.model.ir import Model
from zonogpt.studies.rows.store import BusyError, RowStore
from zonogpt_apps.bench.grid import ModelId
from zonogpt_apps.bench.rows import Row
from zonogpt_apps.bench.run import Outcome, Work
from zonogpt_apps.bench.work import Job, Worker

TOGETHER = 20  # propagations in a piece: enough for batches, few enough to lose
RETRIES = 5  # of a piece whose worker died


@dataclass(frozen=True)
class Piece:
    model: ModelId
    jobs: tuple[Job, ...]  # of one method


def spread(work: Work, models: Sequence[ModelId], workers: int | None) -> Outcome:
    """Solves the jobs on the cluster that RAY_ADDRESS names, or on one of its own on this machine.

    At most `workers` pieces run at a time; without a number, as many as the cluster has GPUs (or CPUs, on those).
    """
    outcome = Outcome()
    stores: dict[ModelId, RowStore[Row]] = {}
    with ExitStack() as stack:
        for model in models:
            try:
                stores[model] = stack.enter_context(work.store(model))
            except BusyError:
                outcome.busy.append(model)
        pieces = [piece for model, store in stores.items() for piece in pieces_of(work, model, store)]
        if pieces:
            _solve(work, stores, pieces, workers)
        for model, store in stores.items():
            outcome.rows += work.finished(model, store)
    return outcome


def pieces_of(work: Work, model: ModelId, store: RowStore[Row]) -> Iterator[Piece]:
    jobs = work.jobs(model, store.finished.keys())
    for method in work.methods:
        mine = [job for job in jobs if job.method == method]
        for k in range(0, len(mine), TOGETHER):
            yield Piece(model, tuple(mine[k : k + TOGETHER]))


def _solve(work: Work, stores: dict[ModelId, RowStore[Row]], pieces: list[Piece], workers: int | None) -> None:
    on_gpu = work.worker.device.startswith("cuda")
    with _cluster(workers) as ray:
        remote: Any = ray.remote(num_cpus=1, num_gpus=int(on_gpu), max_retries=RETRIES)(solve_piece)
        shared = ray.put(work.worker)
        most = workers or int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 1))
        waiting, running = list(reversed(pieces)), dict[Any, Piece]()
        while waiting or running:
            while waiting and len(running) < most:
                piece = waiting.pop()
                work.watcher.model(piece.model, piece.jobs[0].method)
                running[remote.remote(shared, piece)] = piece
            for reference in ray.wait(list(running))[0]:
                piece = running.pop(reference)
                for rows in ray.get(reference):
                    work.keep(stores[piece.model], rows)


@contextmanager
def _cluster(workers: int | None) -> Iterator[Any]:
    try:
        import ray
    except ImportError as error:
        raise OptionError("--engine ray needs Ray: pip install 'zonogpt[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS")
    if address:
        try:
            ray.init(address=address, log_to_driver=False)
        except ConnectionError as error:
            raise OptionError(f"no Ray cluster answers at RAY_ADDRESS = {address}: {error}") from error
    else:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


def solve_piece(worker: Worker, piece: Piece) -> list[list[Row]]:
    """Runs in a worker process."""
    out: list[list[Row]] = []
    worker.solve(_loaded(worker, piece.model), piece.jobs, out.append)
    return out


@lru_cache(maxsize=1)
def _loaded(worker: Worker, model: ModelId) -> Model:
    return worker.load(model)
