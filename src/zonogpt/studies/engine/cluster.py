"""Workers on a Ray cluster: the one place that knows Ray.

Ray itself retries nothing: a job whose worker or machine is gone comes back as Lost, as it does from a local process.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic

import torch

from zonogpt.errors import OptionError
from zonogpt.studies.engine.hands import Done, Event, Failed, Hands, Known, Lost
from zonogpt.studies.engine.job import J, R, Solver, Task
from zonogpt.studies.rows.record import StoredRow


@dataclass(eq=False)
class Cluster(Generic[J, R]):
    """Workers with one CPU each, and one GPU each if the work is done on a GPU. Ray chooses the machine."""

    ray: Any
    remote: Any  # solve_job as a remote function of Ray
    task: Any  # Ray's reference to the task
    most: int
    running: dict[Any, int] = field(default_factory=dict)  # the stream of a job's rows -> the job's number

    @staticmethod
    @contextmanager
    def working(task: Task[J, R], workers: int | None) -> Iterator[Hands[J, R]]:
        content = io.BytesIO()
        torch.save(task, content)
        on_gpu = task.device.type == "cuda"
        with connected(workers) as ray:
            remote = ray.remote(num_cpus=1, num_gpus=int(on_gpu), max_retries=0, num_returns="streaming")(solve_job)
            most = workers or int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 1))
            hands: Cluster[J, R] = Cluster(ray, remote, ray.put(content.getvalue()), most)
            try:
                yield hands
            finally:
                for rows in hands.running:
                    with contextlib.suppress(ray.exceptions.RayError):
                        ray.cancel(rows, force=True)

    @property
    def free(self) -> bool:
        return len(self.running) < self.most

    def give(self, number: int, job: J) -> None:
        self.running[self.remote.remote([self.task], job)] = number  # in a list, so that Ray does not fetch it per job

    def wait(self) -> Sequence[Event[R]]:
        ready, _ = self.ray.wait(list(self.running))
        return [self._event(rows) for rows in ready]

    def _event(self, rows: Any) -> Event[R]:
        number = self.running[rows]
        try:
            return Known(number, self.ray.get(next(rows)))
        except StopIteration:
            del self.running[rows]
            return Done(number)
        except self.ray.exceptions.RayTaskError as error:
            return Failed(error.cause)
        except self.ray.exceptions.RayError as error:
            del self.running[rows]
            return Lost(number, f"by {type(error).__name__}")


@contextmanager
def connected(workers: int | None) -> Iterator[Any]:
    """Ray, on the cluster that this process is connected to, else the one that RAY_ADDRESS names, else a new one."""
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


def solve_job(task: list[Any], job: Any) -> Iterator[StoredRow]:
    """Runs in a worker process."""
    yield from opened(task[0]).solve(job, lambda text: None)


@lru_cache(maxsize=1)
def opened(task: Any) -> Solver[Any, Any]:
    """The solver of the current run. Only the latest is kept, as a worker may live longer than a run."""
    import ray

    content: Task[Any, Any] = torch.load(io.BytesIO(ray.get(task)), weights_only=False)
    return content.open()
