"""What a long run consists of: a task, its jobs, and the rows that they become."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, Self, TypeVar

import torch

from zonogpt.studies.rows.record import StoredRow

Tell = Callable[[str], None]  # takes what is done at the moment, for people

R = TypeVar("R", bound=StoredRow)
R_contra = TypeVar("R_contra", bound=StoredRow, contravariant=True)
R_co = TypeVar("R_co", bound=StoredRow, covariant=True)
J = TypeVar("J", bound="Job")  # type: ignore[type-arg]
J_contra = TypeVar("J_contra", bound="Job", contravariant=True)  # type: ignore[type-arg]


class Job(Protocol[R_contra]):
    """Some inputs and what to find out about them. It is small, as it is sent to a worker."""

    @property
    def name(self) -> str:
        """Which inputs, for people."""

    def rest(self, finished: Mapping[str, R_contra]) -> Self | None:
        """What is left of the job once these rows, given by their keys, are known; None if nothing is left."""


class Solver(Protocol[J_contra, R_co]):
    """A task that is ready to work on jobs."""

    def solve(self, job: J_contra, tell: Tell) -> Iterator[R_co]:
        """The rows of a job that are not known yet, each as soon as it is known."""


class Task(Protocol[J_contra, R_co]):
    """What all jobs of a run share: the model, or where it is, and the options. Each worker gets it once."""

    @property
    def device(self) -> torch.device:
        """Where the work is done."""

    def open(self) -> Solver[J_contra, R_co]:
        """Loads or converts what all jobs need, in the process that solves them."""
