"""Certified accuracy: counts in order, rows that survive a crash, directories that are not mixed, mistakes refused."""

import dataclasses
import itertools
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import zonogpt
import zonogpt.studies.accuracy.job as job_module
from builders import config, image_model, language_model, text_classifier
from data_files import write_mnist
from program import stopped, zono
from zonogpt.cli import app
from zonogpt.errors import UnsoundError
from zonogpt.studies.accuracy.rows import AccuracyRow
from zonogpt.studies.accuracy.table import as_csv, tabulate

DIGITS = str(zonogpt.zoo.path("digits"))
MODEL = zonogpt.load(image_model(1))
TEXT = zonogpt.load(text_classifier(3))
RADII = (1e-3, 1e-2, 0.1, 1.0)
OUTPUTS = {"rows.jsonl", "settings.json", "table.csv", "certified.png"}


@dataclasses.dataclass(frozen=True)
class Memory:
    """A data set of random 6 x 4 images; the labels are the model's answers, but for every fifth."""

    n: int
    labelled: bool = True

    def __len__(self):
        return self.n

    def name(self, index):
        return f"image {index}"

    def read(self, index):
        return torch.rand(6, 4, generator=torch.Generator().manual_seed(index))

    def label(self, index):
        answer = int(zonogpt.logits(MODEL, self.read(index)).argmax())
        return (answer + (index % 5 == 4)) % 3 if self.labelled else None


def lasting(rows):
    """The rows without the fields that differ from run to run."""
    return [dataclasses.replace(row, seconds=None, attack_seconds=None, finished="", margin=None) for row in rows]


@pytest.mark.parametrize("norm", [float("inf"), 2.0, 1.0])
def test_certified_at_most_survived_at_most_clean(norm):
    found = zonogpt.certify(MODEL, Memory(10), RADII, norm=norm)
    assert len(found.rows) == 40
    table = found.table
    for line in table:
        assert line.certified <= line.survived <= line.clean == 8
        assert line.certified + line.unknown == line.survived
    for smaller, larger in itertools.pairwise(table):
        assert smaller.certified >= larger.certified
        assert smaller.survived >= larger.survived
    assert table[0].certified > table[-1].certified
    assert table[0].survived > table[-1].survived
    for row in found.rows:
        assert row.correct == (row.label == row.predicted) == (row.status != "misclassified")


def test_implied_rows_are_true_and_carry_no_margins():
    found = zonogpt.certify(MODEL, Memory(6), RADII)
    implied = [row for row in found.rows if row.implied]
    assert implied
    for row in found.rows:
        run = row.correct and not row.implied
        assert [value is not None for value in (row.margin, row.seconds, row.attack_margin)] == [run] * 3
    for row in implied:
        spec = zonogpt.image_ball(MODEL, Memory(6).read(row.index), row.radius, row.label)
        assert zonogpt.verify(MODEL, spec).status == "verified"


def test_rows_are_what_verify_and_attack_say():
    found = zonogpt.certify(MODEL, Memory(3), (0.01,), seed=3)
    for row in found.rows:
        spec = zonogpt.image_ball(MODEL, Memory(3).read(row.index), 0.01, row.label)
        assert row.margin == pytest.approx(float(zonogpt.verify(MODEL, spec).margins.min()), abs=1e-9)
        assert row.attack_margin == pytest.approx(zonogpt.attack(MODEL, spec, seed=3).lowest, abs=1e-9)


def test_without_labels_and_without_attack():
    found = zonogpt.certify(MODEL, Memory(5, labelled=False), (1e-3,), attack=False, method="A")
    (line,) = found.table
    assert (line.clean, line.survived, line.examples, line.certified) == (None, None, 5, 5)
    assert all(row.broken is None and row.correct and row.label is None for row in found.rows)


def test_an_attack_that_breaks_a_proof_is_loud(monkeypatch):
    def planted(model, spec, seed):
        return zonogpt.Attack(torch.tensor([-1.0, 2.0]), spec.input.anchor, -1.0)

    monkeypatch.setattr(job_module, "attack", planted)
    with pytest.raises(UnsoundError, match="bug in zonogpt"):
        zonogpt.certify(MODEL, Memory(1), (1e-3,))
    assert not issubclass(UnsoundError, zonogpt.ZonoGptError)  # never an exit code 2


def test_table_takes_a_break_to_larger_radii_and_refuses_one_below_a_proof():
    found = zonogpt.certify(MODEL, Memory(1), (1e-3, 1.0))
    small, large = found.rows
    missed = [dataclasses.replace(small, status="unknown", broken=True), dataclasses.replace(large, broken=False)]
    assert [line.survived for line in tabulate(missed, found.radii)] == [0, 0]
    with pytest.raises(UnsoundError):
        tabulate([missed[0], dataclasses.replace(missed[1], status="verified")], found.radii)


def test_texts(tmp_path):
    (tmp_path / "lines.txt").write_text("3,5,1\n2,4,6,8\n7\n3,4,0,0\n")  # the last two of line 4 are padding
    data = zonogpt.open_dataset(tmp_path / "lines.txt", TEXT, "no tokenizer needed")
    last = zonogpt.certify(TEXT, data, (1e-4, 0.5))
    assert [row.positions for row in last.rows[::2]] == [[2], [3], [0], [1]]
    both = [zonogpt.certify(TEXT, data, (1e-4,), positions="random:2", seed=4).rows for _ in range(2)]
    assert lasting(both[0]) == lasting(both[1])
    assert len(both[0][1].positions) == 2
    with pytest.raises(zonogpt.SpecError, match="line 3: position 1"):
        zonogpt.certify(TEXT, data, (1e-4,), positions="0,1")


def test_a_model_with_one_output_keeps_its_sign(tmp_path):
    model = zonogpt.load(text_classifier(3, config(num_labels=1, pad_token_id=0)))
    (tmp_path / "lines.txt").write_text("3,5,1\n2,4,6,8\n")
    data = zonogpt.open_dataset(tmp_path / "lines.txt", model, "")
    found = zonogpt.certify(model, data, (1e-5,))
    assert found.table[0].certified == 2
    assert found.rows[0].predicted is None


def test_a_language_model_with_many_rows(tmp_path):
    model = zonogpt.load(language_model(4, config(vocab_size=150)))
    (tmp_path / "lines.txt").write_text("3,5,1\n")
    data = zonogpt.open_dataset(tmp_path / "lines.txt", model, "")
    assert zonogpt.certify(model, data, (1e-6,)).table[0].certified == 1


def test_resume_recomputes_nothing_and_gives_the_same(tmp_path, monkeypatch):
    whole = zonogpt.certify(MODEL, Memory(6), RADII, out=tmp_path / "a")
    file = tmp_path / "a" / "rows.jsonl"
    content = file.read_bytes()
    assert [AccuracyRow.from_json(line) for line in content.decode().splitlines()] == sorted(
        whole.rows, key=lambda row: content.index(row.key.encode())
    )
    lines = content.splitlines(keepends=True)
    runs = []
    real = job_module.attack
    monkeypatch.setattr(job_module, "attack", lambda *args, **options: runs.append(1) or real(*args, **options))
    again = zonogpt.certify(MODEL, Memory(6), RADII, out=tmp_path / "a")
    assert (again, runs) == (whole, [])  # with the old timestamps
    for keep in (0, 9, len(lines) - 1):
        file.write_bytes(b"".join(lines[:keep]) + lines[keep][:-5])  # the last line is cut off
        runs.clear()
        again = zonogpt.certify(MODEL, Memory(6), RADII, out=tmp_path / "a")
        assert lasting(again.rows) == lasting(whole.rows)
        assert len(runs) == sum(AccuracyRow.from_json(line.decode()).attack_margin is not None for line in lines[keep:])
        assert file.read_bytes().splitlines(keepends=True)[:keep] == lines[:keep]
        for new, old in zip(again.rows, whole.rows, strict=True):
            assert new.margin == (None if old.margin is None else pytest.approx(old.margin, abs=1e-9))


def test_more_examples_and_radii_in_the_same_directory(tmp_path):
    first = zonogpt.certify(MODEL, Memory(6), RADII[1:3], count=2, out=tmp_path)
    zonogpt.certify(MODEL, Memory(6), RADII, count=4, out=tmp_path)
    fresh = zonogpt.certify(MODEL, Memory(6), RADII, count=4)
    again = zonogpt.certify(MODEL, Memory(6), RADII, count=4, out=tmp_path)
    assert tabulate(again.rows, RADII)[0].certified == fresh.table[0].certified
    assert [(r.index, r.radius, r.status) for r in again.rows] == [(r.index, r.radius, r.status) for r in fresh.rows]
    assert all(row in again.rows for row in first.rows)  # with the old timestamps


def test_skip_and_count(tmp_path):
    found = zonogpt.certify(MODEL, Memory(6), (1e-3,), skip=2, count=3)
    assert [row.index for row in found.rows] == [2, 3, 4]
    assert len(zonogpt.certify(MODEL, Memory(6), (1e-3,), skip=4, count=9).rows) == 2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"method": "A"}, "method was 'E', is 'A'"),
        ({"norm": 2.0}, "norm"),
        ({"seed": 1}, "seed"),
        ({"attack": False}, "attack"),
        ({"dtype": "float32"}, "dtype"),
        ({"model": zonogpt.load(image_model(2))}, "model"),
    ],
)
def test_another_run_in_the_same_directory_is_refused(tmp_path, change, word):
    zonogpt.certify(MODEL, Memory(1), (1e-3,), out=tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    options = dict(change)
    model = options.pop("model", MODEL)
    with pytest.raises(zonogpt.OptionError, match=word):
        zonogpt.certify(model, Memory(1), (1e-3,), out=tmp_path, **options)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_damaged_or_foreign_directories(tmp_path):
    zonogpt.certify(MODEL, Memory(2), (1e-3,), out=tmp_path)
    rows, settings = tmp_path / "rows.jsonl", tmp_path / "settings.json"
    good, kept = rows.read_bytes(), settings.read_bytes()

    def refused(word):
        with pytest.raises(zonogpt.OptionError, match=word):
            zonogpt.certify(MODEL, Memory(2), (1e-3,), out=tmp_path)

    rows.write_bytes(b"{}\n" + good)
    refused("line 1 is damaged")
    rows.write_bytes(good)
    settings.unlink()
    refused("no readable settings.json")
    settings.write_bytes(kept)
    rows.write_bytes(good.replace(b'"settings": "', b'"settings": "0'))
    refused("do not belong")
    rows.write_bytes(good + b"\0\0\0\n")  # what a power cut may leave
    zonogpt.certify(MODEL, Memory(2), (1e-3,), out=tmp_path)
    assert rows.read_bytes() == good
    with pytest.raises(zonogpt.OptionError, match="cannot keep rows"):
        zonogpt.certify(MODEL, Memory(2), (1e-3,), out=rows)


def test_two_runs_at_once_are_refused(tmp_path):
    from zonogpt.studies.rows.store import open_store

    settings = zonogpt.certify(MODEL, Memory(1), (1e-3,), out=tmp_path).settings
    with open_store(tmp_path, settings, AccuracyRow), pytest.raises(zonogpt.OptionError, match="another run"):
        zonogpt.certify(MODEL, Memory(1), (1e-3,), out=tmp_path)


def test_csv():
    table = zonogpt.certify(MODEL, Memory(2, labelled=False), (1e-3, 1e-2), attack=False).table
    header, *lines = as_csv(table).splitlines()
    assert header == "radius,examples,clean,certified,survived,unknown,seconds,guarantee,arithmetic"
    assert lines[0].startswith("0.001,2,,2,,0,")


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("mnist"))


def test_the_command(mnist, tmp_path):
    base = ("certify", DIGITS, "--data", mnist, "--count", 3, "--radius", "1e-3,0.3", "--out", "run")
    run = zono(*base, "--json", "all.json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""  # no bar in a pipe
    first, *rest = run.stdout.splitlines()
    # planted: nothing survives 0.3
    assert first == (
        "certified 3 of 3 at radius 0.001, 0 at 0.3 (clean 3; survived the attack 3, 0; rounding bounded, real"
        " arithmetic)"
    )
    assert any("0.001" in line and "certified" not in line for line in rest)
    assert {file.name for file in (tmp_path / "run").iterdir()} == OUTPUTS
    with Image.open(tmp_path / "run" / "certified.png") as picture:
        assert picture.size[0] > 800
    whole = json.loads((tmp_path / "all.json").read_text())
    assert [line["certified"] for line in whole["table"]] == [3, 0]
    assert len(whole["rows"]) == 6
    rows = (tmp_path / "run" / "rows.jsonl").read_bytes()
    run = zono(*base, "--quiet", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (0, first + "\n")
    assert (tmp_path / "run" / "rows.jsonl").read_bytes() == rows


def test_stopped_twice_and_continued(mnist, tmp_path):
    """Ctrl-C, then kill -9, then to the end: no row is computed twice or lost."""
    rows = tmp_path / "run" / "rows.jsonl"
    total = 16 * 3  # many more than are waited for: the run must not reach its end before the signal does
    base = ("certify", DIGITS, "--data", mnist, "--count", 16, "--radius", "3e-4,5e-4,1e-3", "--method", "M", "-q",
            "--out", rows.parent)  # fmt: skip
    kept = b""
    for wanted, how in ((3, signal.SIGINT), (9, signal.SIGKILL)):
        code, out, err = stopped(base, rows, wanted, how)
        assert out == ""
        if how == signal.SIGINT:
            assert code == 130
            assert "the same command goes on" in err
            assert "Traceback" not in err
        content = rows.read_bytes()
        assert content.startswith(kept)
        assert wanted <= content.count(b"\n") < total
        kept = content[: content.rindex(b"\n") + 1]
    run = zono(*base)
    assert run.returncode == 0, run.stderr
    content = rows.read_bytes()
    assert content.startswith(kept)
    assert content.count(b"\n") == total
    assert len({AccuracyRow.from_json(line).key for line in content.decode().splitlines()}) == total


def in_process(monkeypatch, capsys, *args):
    """The command line without a new process: (exit code, standard error)."""
    monkeypatch.setattr(sys, "argv", ["zonogpt", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        app.main()
    printed = capsys.readouterr()
    assert printed.out == ""
    return stop.value.code, printed.err


GOOD = {"--radius": "1e-3", "--count": "2"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"--data": "nowhere"}, "no file or directory"),
        ({"--data": "x" * 300}, "cannot be read"),
        ({"--data": "empty"}, "no pictures"),
        ({"--data": "wrong-magic"}, "begin like an MNIST file"),
        ({"--data": "label-12"}, "12/a.npy: label 12 is out of range"),
        ({"--data": "small"}, "shape (27, 28)"),
        ({"--split": "train"}, "train-images"),
        ({"--radius": "0"}, "positive"),
        ({"--radius": "-1e-3"}, "radius"),
        ({"--radius": "nan"}, "radius"),
        ({"--radius": "2e-3,1e-3"}, "increasing"),
        ({"--radius": "1e-3,1e-3"}, "increasing"),
        ({"--radius": "small"}, "--radius"),
        ({"--count": "0"}, "count"),
        ({"--skip": "20"}, "skipped"),
        ({"--skip": "-1"}, "skip"),
        ({"--seed": "-1"}, "seed"),
        ({"--method": "Z"}, "method"),
        ({"--norm": "3"}, "norm"),
        ({"--dtype": "float16"}, "dtype"),
        ({"--device": "moon"}, "device"),
        ({"--timeout": "0"}, "timeout"),
        ({"--budget": "lots"}, "budget"),
        ({"--positions": "last"}, "for texts"),
        ({"--json": "no/such/place.json"}, "cannot write"),
        ({"--out": "file"}, "cannot keep rows"),
    ],
)
def test_mistakes_end_before_any_work(mnist, tmp_path, monkeypatch, capsys, changes, word):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    write_mnist(Path("wrong-magic"), 3, packed=False)
    magic = Path("wrong-magic/t10k-images-idx3-ubyte")
    magic.write_bytes(b"\1" + magic.read_bytes()[1:])
    for folder, shape in (("label-12/12", (28, 28)), ("small/1", (27, 28))):
        Path(folder).mkdir(parents=True)
        np.save(Path(folder) / "a.npy", np.zeros(shape))
    before = sorted(tmp_path.rglob("*"))
    options = {"--data": mnist, "--out": "run"} | GOOD | changes
    code, err = in_process(monkeypatch, capsys, "certify", DIGITS, *(part for pair in options.items() for part in pair))
    assert code == 2
    assert word in err, err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before
