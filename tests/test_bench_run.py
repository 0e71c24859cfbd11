"""The benchmark's chain: instances, runs that survive anything, the Ray engine."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

import zonogpt
from bench_data import write_data
from program import PROGRAM, stopped, zono
from second_device import second_device
from zonogpt.errors import ModelError, OptionError, SpecError
from zonogpt.studies.engine.watcher import Watcher
from zonogpt.studies.rows.store import open_store, parse
from zonogpt.verification.result import Result
from zonogpt_apps.bench.grid import ModelId
from zonogpt_apps.bench.instances import Benchmark, Instance
from zonogpt_apps.bench.make import Candidate, candidates, chosen, make
from zonogpt_apps.bench.rows import BenchRow, BenchSettings
from zonogpt_apps.bench.run import run, source_commit
from zonogpt_apps.bench.train import train
from zonogpt_apps.bench.work import claim_reason, claim_status, first_inputs, one_claim

MODELS = (ModelId("mnist", "tiny", 1), ModelId("sst", "tiny", 1))
RADII = (1e-5, 1e-3)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    """Two small models and 42 instances: 2 radii, one image with nine rivals, six sentences with two claims."""
    folder = tmp_path_factory.mktemp("chain")
    data = write_data(folder / "data")
    train(MODELS, data, folder / "models")
    make(MODELS, data, folder / "models", folder / "instances", RADII, images=1, sentences=6)
    return folder


def run_chain(chain: Path, out: Path, methods: tuple[str, ...] = ("E", "ibp"), **options: object):
    return run(chain / "instances", chain / "models", methods, out, **options)


def rows_in(folder: Path) -> list[BenchRow]:
    return [row for file in sorted(folder.glob("*.jsonl")) for row in parse(file.read_bytes(), file, BenchRow)[0]]


def content(rows: list[BenchRow]) -> dict[str, tuple[object, ...]]:
    """The fields of the rows that must not depend on how a run went."""
    return {row.key: (row.instance, row.claim, row.radius, row.method, row.status, row.margin) for row in rows}


# Instances


def test_instances_of_images(chain):
    mine = Benchmark.read(chain / "instances").of(MODELS[0])
    assert len(mine) == 2 * 9
    assert {instance.radius for instance in mine} == set(RADII)
    assert len({(instance.radius, instance.instance) for instance in mine}) == 18
    assert len({instance.input_hash for instance in mine}) == 1
    label = mine[0].label
    assert [instance.rival for instance in mine[:9]] == [k for k in range(10) if k != label]


def test_instances_of_sentences(chain):
    benchmark = Benchmark.read(chain / "instances")
    mine = benchmark.of(MODELS[1])
    assert len(mine) == 2 * 6 * 2
    assert len({(instance.radius, instance.instance) for instance in mine}) == 24
    for radius in RADII:
        here = [instance for instance in mine if instance.radius == radius]
        assert sum(instance.label for instance in here) == len(here) // 2  # half of each class
        for one, three in zip(here[::2], here[1::2], strict=True):
            assert one.input == three.input
            assert len(one.positions) == 1
            assert len(three.positions) == 3
            assert set(one.positions) < set(three.positions)
            assert max(three.positions) < len(benchmark.read_input(one)[0])
    assert [i.positions for i in mine[:12]] == [i.positions for i in mine[12:]]  # the draw does not see the radius


def test_every_chosen_input_is_classified_correctly(chain):
    benchmark = Benchmark.read(chain / "instances")
    for model in MODELS:
        net = zonogpt.load(chain / "models" / str(model))
        for instance in benchmark.of(model):
            raw, _ = benchmark.read_input(instance)
            given = raw.float() / 255 if model.task == "mnist" else raw.tolist()
            assert int(zonogpt.logits(net, given).argmax()) == instance.label


def answers(chain, label: int | None = None) -> list[Candidate]:
    """All sentences, labelled as the model answers, or all with this label."""
    net = zonogpt.load(chain / "models" / str(MODELS[1]))
    found = list(candidates(MODELS[1], chain / "data"))
    own = [int(zonogpt.logits(net, one.for_model()).argmax()) for one in found]
    return [dataclasses.replace(one, label=k if label is None else label) for one, k in zip(found, own, strict=True)]


def test_inputs_that_the_model_gets_wrong_are_passed_over(chain):
    net = zonogpt.load(chain / "models" / str(MODELS[1]))
    right = [one.index for one in answers(chain) if one.label == 1]
    kept = chosen(net, iter(answers(chain, label=1)), 5, balanced=False)
    assert [one.index for one in kept] == right[:5]


def test_classes_are_balanced_however_they_come(chain):
    net = zonogpt.load(chain / "models" / str(MODELS[1]))
    given = sorted(answers(chain), key=lambda one: one.label)
    kept = chosen(net, iter(given), 6, balanced=True)
    assert [one.label for one in kept] == [0, 0, 0, 1, 1, 1]


def test_relative_radius(chain):
    benchmark = Benchmark.read(chain / "instances")
    net = zonogpt.load(chain / "models" / str(MODELS[1]))
    for instance in benchmark.of(MODELS[1])[:4]:
        raw, _ = benchmark.read_input(instance)
        moving = net.embedding.tokens[raw[list(instance.positions)]]
        corner = torch.full_like(moving, instance.radius).norm()
        assert instance.relative_radius == pytest.approx(float(corner / moving.norm()), rel=1e-3)
    for instance in benchmark.of(MODELS[0])[:2]:
        raw, _ = benchmark.read_input(instance)
        corner = instance.radius * math.sqrt(raw.numel())
        assert instance.relative_radius == pytest.approx(corner / float((raw.double() / 255).norm()), rel=1e-3)


def test_making_again_writes_the_same_bytes(chain, tmp_path):
    make(MODELS, chain / "data", chain / "models", tmp_path, RADII, images=1, sentences=6)
    for file in sorted((chain / "instances").rglob("*.*")):
        assert file.read_bytes() == (tmp_path / file.relative_to(chain / "instances")).read_bytes()


def test_too_few_correct_inputs_is_an_error(chain, tmp_path):
    with pytest.raises(SpecError, match="only 20 of the 21"):
        make(MODELS[:1], chain / "data", chain / "models", tmp_path, RADII, images=21)


def test_a_changed_input_is_refused(chain, tmp_path):
    benchmark = copied(chain, tmp_path)
    sentence = benchmark.of(MODELS[1])[0]
    (tmp_path / sentence.input).write_text(json.dumps({"text": "x", "ids": [1, 2, 3, 4]}))
    with pytest.raises(SpecError, match="is not the input"):
        benchmark.read_input(sentence)
    (tmp_path / sentence.input).write_text("[]")
    with pytest.raises(SpecError, match="cannot be read"):
        benchmark.read_input(sentence)
    with pytest.raises(SpecError, match="no list of instances"):
        Benchmark.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "change",
    [{"radius": 1}, {"rival": 99}, {"rival": "1"}, {"label": True}, {"task": "cifar"}, {"blocks": 0}, {"size": "huge"}],
)
def test_instances_that_make_no_sense_are_refused(chain, tmp_path, change):
    benchmark = copied(chain, tmp_path)
    changed = [dataclasses.replace(benchmark.instances[0], **change), *benchmark.instances[1:]]
    (tmp_path / "instances.jsonl").write_text("".join(instance.to_json() + "\n" for instance in changed))
    with pytest.raises(SpecError, match="no list of instances"):
        Benchmark.read(tmp_path)


def test_an_instance_twice_is_refused(chain, tmp_path):
    benchmark = copied(chain, tmp_path)
    twice = [*benchmark.instances, benchmark.instances[0]]
    (tmp_path / "instances.jsonl").write_text("".join(instance.to_json() + "\n" for instance in twice))
    with pytest.raises(SpecError, match="twice"):
        Benchmark.read(tmp_path)


def test_making_one_model_keeps_the_others(chain, tmp_path):
    for model in reversed(MODELS):
        make([model], chain / "data", chain / "models", tmp_path, RADII, images=1, sentences=6)
    assert (tmp_path / "instances.jsonl").read_bytes() == (chain / "instances" / "instances.jsonl").read_bytes()


def test_a_folder_under_another_name_is_refused(chain, tmp_path):
    shutil.copytree(chain / "models" / "mnist-tiny-1", tmp_path / "mnist-tiny-2")
    with pytest.raises(ModelError, match="holds mnist-tiny-1"):
        make([ModelId("mnist", "tiny", 2)], chain / "data", tmp_path, tmp_path / "instances", RADII, images=1)


def copied(chain: Path, to: Path) -> Benchmark:
    for file in (chain / "instances").rglob("*.*"):
        target = to / file.relative_to(chain / "instances")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    return Benchmark.read(to)


# Runs


def test_the_whole_chain_by_commands(tmp_path):
    """train, make, run, report: as a user would type it."""
    data = write_data(tmp_path / "data")
    names = ",".join(map(str, MODELS))
    done = zono("bench", "train", "--data", data, "--models", names, "--out", tmp_path / "models")
    assert done.returncode == 0, done.stderr
    assert "2 models" in done.stdout
    made = zono(
        "bench", "make", "--data", data, "--models", names, "--trained", tmp_path / "models",
        "--out", tmp_path / "instances", "--radii", "1e-5,1e-3", "--images", 1, "--sentences", 6,
    )  # fmt: skip
    assert made.stdout.startswith("42 instances of 2 models"), made.stderr
    where = ("--instances", tmp_path / "instances", "--trained", tmp_path / "models", "--out", tmp_path / "rows")
    ran = zono("bench", "run", *where, "--methods", "E,A,ibp", "--timeout", 60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("proved of 42: E 4"), ran.stdout
    assert "126 new rows" in ran.stdout
    again = zono("bench", "run", *where, "--methods", "E,A,ibp", "--timeout", 60)
    assert "0 new rows and 126 that were there" in again.stdout
    report = zono(
        "bench",
        "report",
        "--rows",
        tmp_path / "rows",
        "--instances",
        tmp_path / "instances",
        "--out",
        tmp_path / "page",
    )
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "page" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "page" / "report.md").exists()


def test_rows_say_what_verify_says(chain, tmp_path):
    outcome = run_chain(chain, tmp_path, ("E", "A"))
    benchmark = Benchmark.read(chain / "instances")
    assert len(outcome.rows) == 2 * 42
    for model in MODELS:
        net = zonogpt.load(chain / "models" / str(model))
        for instance in benchmark.of(model)[::5]:
            result = zonogpt.verify(net, benchmark.spec(net, instance), method="A")
            (row,) = [r for r in outcome.rows if (r.model, r.instance, r.radius, r.method) == (
                model, instance.instance, instance.radius, "A")]  # fmt: skip
            rivals = [k for k in range(net.n_outputs) if k != instance.label]
            margin = float(result.margins[rivals.index(instance.rival)])
            assert row.margin == pytest.approx(margin, abs=1e-9)
            assert row.status == ("verified" if margin > 0 else "unknown")
            assert (row.model_hash, row.input_hash) == (instance.model_hash, instance.input_hash)
            assert row.commit == source_commit()


def test_rows_have_the_fields_that_others_read(chain, tmp_path):
    run_chain(chain, tmp_path)
    files = sorted(tmp_path.glob("*.jsonl"))
    assert [file.name for file in files] == ["mnist-tiny-1.jsonl", "sst-tiny-1.jsonl"]
    names = ("task", "size", "blocks", "instance", "claim", "radius", "method", "status", "margin", "seconds",
             "accuracy", "model_hash", "input_hash", "device", "commit")  # fmt: skip
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            assert all(name in row for name in names)
            assert row["method"] in zonogpt.METHODS


def test_several_methods_and_inputs_are_added_to_what_is_there(chain, tmp_path):
    first = run_chain(chain, tmp_path, ("E",), inputs=1)
    assert len(first.rows) == 2 * (9 + 2)
    second = run_chain(chain, tmp_path, ("E", "ibp"))
    assert len(second.rows) == 2 * 42
    assert content(first.rows).items() <= content(second.rows).items()
    assert len(rows_in(tmp_path)) == 84


def test_first_inputs_are_the_same_at_every_radius(chain):
    instances = Benchmark.read(chain / "instances").of(MODELS[1])
    kept = first_inputs(instances, 2)
    assert len(kept) == 2 * 2 * 2
    assert len({instance.input for instance in kept}) == 2


def test_other_settings_are_not_mixed(chain, tmp_path):
    run_chain(chain, tmp_path, ("ibp",), inputs=1, timeout=60)
    with pytest.raises(OptionError, match=r"timeout was 60.0, is 30.0"):
        run_chain(chain, tmp_path, ("ibp",), inputs=1, timeout=30)


def test_other_weights_are_refused(chain, tmp_path):
    lines = (chain / "instances" / "instances.jsonl").read_text().splitlines()
    instances = [dataclasses.replace(Instance.from_json(line), model_hash="0" * 64) for line in lines]
    copied(chain, tmp_path)
    (tmp_path / "instances.jsonl").write_text("".join(i.to_json() + "\n" for i in instances))
    with pytest.raises(ModelError, match="other weights"):
        run(tmp_path, chain / "models", ("ibp",), tmp_path / "rows")


@pytest.mark.parametrize("change", [{"layer_norm_epsilon": 1.0}, {"n_head": 4}])
def test_another_configuration_is_refused(chain, tmp_path, change):
    """The same weights with another epsilon or other heads are another network, but have the same hash."""
    shutil.copytree(chain / "models", tmp_path / "models")
    file = tmp_path / "models" / "sst-tiny-1" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelError, match="is no sst-tiny-1"):
        run(chain / "instances", tmp_path / "models", ("ibp",), tmp_path / "rows")


def test_weights_that_change_while_they_are_read_are_refused(chain, tmp_path, monkeypatch):
    shutil.copytree(chain / "models", tmp_path / "models")

    def load_and_train(folder):
        net = zonogpt.load(folder)
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        return net

    monkeypatch.setattr("zonogpt_apps.bench.work.load", load_and_train)
    with pytest.raises(ModelError, match="other weights"):
        run(chain / "instances", tmp_path / "models", ("ibp",), tmp_path / "rows")


def test_sixty_seconds_are_sixty_seconds(chain, tmp_path):
    run_chain(chain, tmp_path, ("ibp",), inputs=1, timeout=60)
    assert run_chain(chain, tmp_path, ("ibp",), timeout=60.0).rows
    assert len({row.settings for row in rows_in(tmp_path)}) == 1


def test_a_full_disk_is_said_and_loses_nothing(chain, tmp_path, monkeypatch):
    real, left = os.write, [20]

    def write(descriptor: int, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("zonogpt.studies.rows.store.os.write", write)
    with pytest.raises(OptionError, match="No space left"):
        run_chain(chain, tmp_path, ("ibp",))
    monkeypatch.undo()
    assert len(rows_in(tmp_path)) == 20
    assert len(run_chain(chain, tmp_path, ("ibp",)).rows) == len(rows_in(tmp_path)) == 42


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"methods": ()}, "at least one method"),
        ({"methods": ("E", "E")}, "each once"),
        ({"methods": ("X",)}, "unknown"),
        ({"engine": "slurm"}, "local and ray"),
        ({"inputs": 0}, "at least 1"),
        ({"models": (ModelId("mnist", "small", 2),)}, "no instances of mnist-small-2"),
        ({"timeout": -1}, "timeout"),
        ({"engine": "ray", "workers": 0}, "at least 1"),
    ],
)
def test_bad_options_are_refused_before_any_work(chain, tmp_path, options, said):
    with pytest.raises(OptionError, match=said):
        run_chain(chain, tmp_path / "rows", **options)
    assert not (tmp_path / "rows").exists()


class Counter(Watcher):
    def __init__(self) -> None:
        self.planned, self.done, self.expected, self.seen = 0.0, 0.0, 0, 0

    def start(self, work: float, rows: int, found: int) -> None:
        self.planned, self.expected = work, rows

    def row(self, row) -> None:
        self.done += row.work
        self.seen += 1


def test_the_estimate_adds_up(chain, tmp_path):
    watcher = Counter()
    run_chain(chain, tmp_path, watcher=watcher)
    assert (watcher.seen, watcher.expected) == (84, 84)
    assert watcher.done == pytest.approx(watcher.planned)


def test_kill_9_in_the_middle(chain, tmp_path):
    """Killed twice, once with a torn line, then run to its end: no row is lost or doubled, no verdict is another."""
    arguments = ("bench", "run", "--instances", chain / "instances", "--trained", chain / "models", "--out", tmp_path,
                 "--methods", "ibp,E,A")  # fmt: skip
    first, second = tmp_path / "mnist-tiny-1.jsonl", tmp_path / "sst-tiny-1.jsonl"
    assert stopped(arguments, first, 19, signal.SIGKILL)[0] == -signal.SIGKILL
    kept = first.read_bytes()
    with first.open("ab") as file:
        file.write(b'{"key": "torn')
    assert stopped(arguments, second, 5, signal.SIGKILL)[0] == -signal.SIGKILL
    done = zono(*arguments)
    assert done.returncode == 0, done.stderr
    assert first.read_bytes().startswith(kept)
    rows = rows_in(tmp_path)
    assert len(rows) == len({row.key for row in rows}) == 3 * 42
    fresh = run_chain(chain, tmp_path / "fresh", ("ibp", "E", "A"))
    assert {key: value[:5] for key, value in content(rows).items()} == {
        key: value[:5] for key, value in content(fresh.rows).items()
    }


def test_ctrl_c_says_how_to_go_on(chain, tmp_path):
    arguments = ("bench", "run", "--instances", chain / "instances", "--trained", chain / "models", "--out", tmp_path,
                 "--methods", "A,E,ibp")  # fmt: skip
    code, _, said = stopped(arguments, tmp_path / "mnist-tiny-1.jsonl", 1, signal.SIGINT)
    assert code == 130
    assert "the same command goes on from there" in said


def test_two_runs_share_a_directory(chain, tmp_path):
    """Started together: each takes the models that the other has not, and nothing is done twice."""
    arguments = [PROGRAM, "bench", "run", "--instances", chain / "instances", "--trained", chain / "models",
                 "--out", tmp_path, "--methods", "E,A"]  # fmt: skip
    orders = ("mnist-tiny-1,sst-tiny-1", "sst-tiny-1,mnist-tiny-1")
    runs = [subprocess.Popen([*map(str, arguments), "--models", order], stdout=subprocess.PIPE) for order in orders]
    assert [process.wait(timeout=300) for process in runs] == [0, 0]
    rows = rows_in(tmp_path)
    assert len(rows) == len({row.key for row in rows}) == 84


def test_a_model_that_another_run_has_is_left_out(chain, tmp_path):
    run_chain(chain, tmp_path, ("ibp",), inputs=1)
    settings = json.loads((tmp_path / "settings.json").read_text())
    with open_store(tmp_path, BenchSettings(**settings), BenchRow, "mnist-tiny-1.jsonl"):
        outcome = run_chain(chain, tmp_path, ("ibp",))
    assert outcome.busy == [MODELS[0]]
    assert {row.model for row in outcome.rows} == {MODELS[1]}


def test_attack_settles_what_is_not_proved(chain, tmp_path):
    """At a radius of 0.5 three tokens suffice to change any sentence's label; without a search nobody would know."""
    make(MODELS[1:], chain / "data", chain / "models", tmp_path / "wide", (0.5,), sentences=2)
    plain = run(tmp_path / "wide", chain / "models", ("E",), tmp_path / "plain")
    assert {row.status for row in plain.rows} == {"unknown"}
    assert {row.attack_margin for row in plain.rows} == {None}
    searched = run(tmp_path / "wide", chain / "models", ("E",), tmp_path / "searched", attack=True)
    for row in searched.rows:
        assert row.attack_margin >= row.margin
        assert (row.status == "falsified") == (row.attack_margin <= 0)
    assert all(row.status == "falsified" for row in searched.rows if len(row.positions) == 3)
    with second_device() as device:
        there = run(tmp_path / "wide", chain / "models", ("E",), tmp_path / "there", attack=True, device=str(device))
    assert [row.status for row in there.rows] == [row.status for row in searched.rows]
    assert {row.device for row in there.rows} == {"hpu"}


# The status of one claim of several


def result_with(status: str, *margins: float) -> Result:
    values = torch.tensor(margins, dtype=torch.float64)
    return Result(status, values, "", "E", 1e-3, 0, 0.1, 0, "float64", "cpu")  # type: ignore[arg-type]


def test_a_claim_is_proved_by_its_own_margin():
    assert [claim_status(result_with("unknown", 1.0, -1.0), at) for at in (0, 1)] == ["verified", "unknown"]
    assert claim_status(result_with("verified", 1.0, 2.0), 1) == "verified"
    assert claim_status(result_with("timeout", 1.0, 2.0), 0) == "timeout"
    assert claim_status(result_with("unknown", float("nan"), 1.0), 0) == "unknown"


def test_a_run_that_distrusts_its_bounds_proves_nothing():
    assert claim_status(result_with("unknown", 1.0, 2.0), 0) == "unknown"
    assert claim_status(result_with("falsified", 1.0, 2.0), 0) == "unknown"
    assert claim_status(result_with("falsified", 1.0), 0) == "falsified"


def test_one_claim_is_the_row_of_that_rival(chain):
    benchmark = Benchmark.read(chain / "instances")
    net = zonogpt.load(chain / "models" / str(MODELS[0]))
    spec = benchmark.spec(net, benchmark.of(MODELS[0])[0])
    output = torch.randn(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for at in range(9):
        assert float(one_claim(spec, at).claim.margins(output)[0]) == pytest.approx(
            float(spec.claim.margins(output)[at])
        )


# Ray


def test_ray_engine_with_a_killed_worker(chain, tmp_path):
    """A real cluster of two workers on this machine; one dies in the middle of its job."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not killed:
            for pid in pids_of_jobs():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one)
    try:
        killer.start()
        outcome = run_chain(chain, tmp_path, ("A", "E"), engine="ray", workers=2)
        killer.join()
    finally:
        ray.shutdown()
    assert killed, "no worker was there to be killed"
    rows = rows_in(tmp_path)
    assert len(rows) == len({row.key for row in rows}) == len(outcome.rows) == 84
    local = run_chain(chain, tmp_path / "local", ("A", "E"))
    assert {k: v[:5] for k, v in content(rows).items()} == {k: v[:5] for k, v in content(local.rows).items()}


def pids_of_jobs() -> list[int]:
    """Ray names its workers after what they do."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if "ray::solve_job" in (place / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def test_a_proved_claim_does_not_give_the_reason_of_its_neighbours():
    mixed = dataclasses.replace(result_with("unknown", 1.0, -1.0), reason="1 of 2 margins are not certified")
    assert claim_reason(mixed, "verified").startswith("this margin is certified positive")
    assert claim_reason(mixed, "unknown") == "1 of 2 margins are not certified"
    proved = dataclasses.replace(result_with("verified", 1.0, 2.0), reason="all are")
    assert claim_reason(proved, "verified") == "all are"
