"""One engine for all long work: worker processes and a Ray cluster give the rows of this process, whoever dies."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch

import zonogpt
from builders import image_model
from zonogpt.errors import OptionError, WorkerError
from zonogpt.studies.engine.engine import TRIES, Engine, collect
from zonogpt.studies.engine.watcher import Watcher
from zonogpt.studies.rows.record import StoredRow
from zonogpt.studies.rows.store import open_store

MODEL = zonogpt.load(image_model(1))
RADII = (1e-3, 1e-2, 0.1)
LOCAL, ON_RAY = "zonogpt.studies.engine.worker", "ray::solve_job"  # what workers are called in the list of processes


@dataclasses.dataclass(frozen=True)
class Images:
    n: int

    def __len__(self):
        return self.n

    def name(self, index):
        return f"image {index}"

    def read(self, index):
        return torch.rand(6, 4, generator=torch.Generator().manual_seed(index))

    def label(self, index):
        return int(zonogpt.logits(MODEL, self.read(index)).argmax())


def processes(called: str) -> list[int]:
    """Workers on this machine, by their pids."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if called in (place / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(place.name))
        except OSError:
            continue
    return found


class KillOne:
    """Is called with every row, and kills one worker at the first."""

    def __init__(self, called: str) -> None:
        self.called, self.seen, self.killed = called, 0, 0

    def __call__(self, row) -> None:
        if not self.killed:
            workers = processes(self.called)
            self.seen, self.killed = len(workers), workers[0]
            os.kill(self.killed, signal.SIGKILL)


def assert_same_rows(found, wanted):
    """The rows are the same, but for what differs from run to run: times, and the last bits of margins, because a job
    that is begun anew has a smaller batch."""
    volatile = {"margin": None, "attack_margin": None, "seconds": None, "attack_seconds": None, "finished": ""}
    for one, other in zip(found, wanted, strict=True):
        assert dataclasses.replace(one, **volatile) == dataclasses.replace(other, **volatile)
        for margin, same in ((one.margin, other.margin), (one.attack_margin, other.attack_margin)):
            assert margin == same is None or margin == pytest.approx(same, rel=1e-9)


@pytest.fixture(scope="module")
def undisturbed():
    return zonogpt.certify(MODEL, Images(12), RADII).rows


def test_certify_with_a_killed_process(undisturbed, tmp_path):
    killer = KillOne(LOCAL)
    found = zonogpt.certify(MODEL, Images(12), RADII, workers=2, on_row=killer, out=tmp_path)
    assert killer.seen == 2
    assert_same_rows(found.rows, undisturbed)
    assert zonogpt.certify(MODEL, Images(12), RADII, out=tmp_path).rows == found.rows  # which are on the disk


@pytest.fixture
def two_nodes(monkeypatch):
    """A Ray cluster of two nodes with one processor each, all on this machine."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    cluster.shutdown()


def test_certify_on_two_nodes_with_a_killed_worker(two_nodes, undisturbed, tmp_path):
    """Two workers at a time, of a processor each: one is on either node."""
    killer = KillOne(ON_RAY)
    found = zonogpt.certify(MODEL, Images(12), RADII, engine="ray", workers=2, on_row=killer, out=tmp_path)
    assert killer.seen == 2
    assert_same_rows(found.rows, undisturbed)
    assert zonogpt.certify(MODEL, Images(12), RADII, out=tmp_path).rows == found.rows


def test_compare_in_worker_processes():
    """One method has the radii of `zonogpt radius`. Nothing is batched here, so radii are the same."""
    search = {"methods": ("E", "ibp", "attack"), "low": 1e-4, "high": 1.0, "tolerance": 0.5}
    wanted = zonogpt.compare(MODEL, Images(2), **search)
    found = zonogpt.compare(MODEL, Images(2), **search, workers=2)
    assert [(r.name, r.method, r.status, r.radius) for r in found.rows] == [
        (r.name, r.method, r.status, r.radius) for r in wanted.rows
    ]


# A task of nothing


@dataclasses.dataclass(frozen=True)
class Said(StoredRow):
    """A row: that a job was done."""

    name: str
    finished: str = ""

    @property
    def summary(self):
        return self.name


@dataclasses.dataclass(frozen=True)
class Say:
    name: str

    def rest(self, finished):
        return None if self.name in finished else self


@dataclasses.dataclass(frozen=True)
class Speakers:
    """A task whose workers return their jobs' names; one job kills its worker, another raises an error."""

    @property
    def device(self):
        return torch.device("cpu")

    def open(self):
        return self

    def solve(self, job, tell):
        if job.name == "die":
            os._exit(7)
        if job.name == "fail":
            raise OptionError("said no")
        yield Said(key=job.name, settings="", name=job.name)


def said(names, **engine):
    with open_store(None, None, Said) as store:
        try:
            collect(Engine(**engine), Speakers(), [(store, [Say(name) for name in names])], Watcher())
        finally:
            kept = set(store.finished)
    return kept


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_job_is_done_once(workers):
    names = [f"job {i}" for i in range(7)]
    assert said(names, workers=workers) == set(names)


def test_a_job_that_kills_its_workers_is_given_up():
    with pytest.raises(WorkerError, match=f"die: {TRIES} workers in turn died of it, the last with exit code 7"):
        said(["one", "die", "two"], workers=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_job_raises_ends_the_run(workers):
    with pytest.raises(OptionError, match="said no"):
        said(["one", "fail", "two"], workers=workers)


def test_no_worker_is_left():
    said(["one", "two", "three"], workers=3)
    assert processes(LOCAL) == []


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        ({"name": "slurm"}, "local and ray"),
        ({"workers": 0}, "at least 1"),
        ({"workers": True}, "at least 1"),
        ({"workers": "2"}, "at least 1"),
    ],
)
def test_engines_that_do_not_exist(engine, word):
    with pytest.raises(OptionError, match=word):
        Engine(**engine)
