"""Files and streams that cannot be written: the verdict comes first, the loss is one line, no file is half written."""

import json
import os
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest

import zonogpt
from builders import text_classifier
from program import PROGRAM

DIGITS = "zoo:digits"
FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("lost")
    images, _ = zonogpt.zoo.samples("digits")
    np.save(path / "digit.npy", images[0].numpy())
    text_classifier(3).save_pretrained(path / "text")
    return path


def zono(*args, cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, largest_file=None):
    """Runs the command; with `largest_file`, the disk counts as full after that many bytes."""

    def limit():
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    command = [PROGRAM, *map(str, args)]
    return subprocess.run(command, stdout=stdout, stderr=stderr, text=True, cwd=cwd, timeout=300, preexec_fn=limit)


def one_line(said):
    assert said.startswith("error: "), said
    assert said.count("\n") == 1, said
    return said


VERIFY = ("verify", DIGITS, "--image", "digit.npy", "--radius")
SMALL, LARGE = (*VERIFY, "1e-4"), (*VERIFY, "0.05", "--attack")
TEXT = ("verify", "text", "--ids", "3,5,1,12", "--positions", "1", "--radius")


# Files


@pytest.mark.parametrize(
    ("option", "name", "args", "code", "verdict"),
    [
        ("--json", "all.json", (*TEXT, "0.5", "--no-hint"), 10, "unknown"),
        ("--certificate", "proof.cert", (*TEXT, "1e-7"), 0, "verified"),
        ("--counterexample", "found.npz", (*TEXT, "6", "--attack"), 20, "falsified"),
    ],
)
def test_verify_on_a_full_disk(folder, option, name, args, code, verdict):
    run = zono(*args, option, name, cwd=folder, largest_file=100)
    assert run.stdout.split()[0] == verdict
    assert name not in run.stdout
    assert run.returncode == code
    assert f"cannot write {name}" in one_line(run.stderr)
    assert sorted(file.name for file in folder.iterdir()) == ["digit.npy", "text"]


def test_verify_names_every_file_that_failed(folder, tmp_path):
    """The picture beside the counterexample is one of them, and the files that can be written are."""
    (tmp_path / "found.png").mkdir()
    run = zono(*LARGE, "--json", FULL, "--counterexample", tmp_path / "found.npz", cwd=folder)
    assert (run.returncode, run.stdout.splitlines()[0]) == (20, "falsified")
    first, second = run.stderr.splitlines()
    assert "cannot write /dev/full" in first
    assert f"cannot write {tmp_path / 'found.png'}" in second
    assert (tmp_path / "found.npz").exists()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("command", ["certify", "radius", "compare"])
def test_runs_over_data_on_a_full_disk(folder, tmp_path, command):
    """Table and picture cannot be written: the answer stands, the rows are kept, and the rest is written."""
    out, picture = tmp_path / "run", {"certify": "certified.png", "radius": "radius.png", "compare": "comparison.png"}
    for name in ("table.csv", picture[command]):
        (out / name).mkdir(parents=True)
    extra = {
        "certify": ("--radius", "1e-4", "--no-attack"),
        "radius": ("--tolerance", "9", "--no-attack"),
        "compare": ("--methods", "E,M", "--tolerance", "9"),
    }
    run = zono(command, DIGITS, "--data", DIGITS, "--count", "1", *extra[command], "--out", out, "--json",
               tmp_path / "all.json", cwd=folder)  # fmt: skip
    assert run.returncode == 0
    assert run.stdout.startswith("certified")
    assert "in " + str(out) not in run.stdout
    table, drawing = run.stderr.splitlines()
    assert "cannot write" in table
    assert "table.csv" in table
    assert picture[command] in drawing
    assert json.loads((tmp_path / "all.json").read_text())["rows"]
    assert sorted(file.name for file in out.iterdir()) == sorted(
        ["rows.jsonl", "settings.json", "table.csv", picture[command]]
    )


def test_rows_on_a_full_disk(folder, tmp_path):
    """A row that cannot be written ends the run; those before it are kept, and the same command continues from them."""
    args = ("certify", DIGITS, "--data", DIGITS, "--count", "9", "--radius", "1e-4", "--no-attack", "-q", "--out")
    run = zono(*args, tmp_path / "run", cwd=folder, largest_file=1500)
    assert run.returncode == 2
    assert "a row could not be written" in one_line(run.stderr)
    assert zono(*args, tmp_path / "run", cwd=folder).returncode == 0
    assert len((tmp_path / "run" / "rows.jsonl").read_text().splitlines()) == 9


def test_commands_that_only_write(folder, tmp_path):
    """If the file is all that was asked for, the exit code says that it is missing."""
    for args, said in (
        (("inspect", DIGITS, "--json", FULL), "supported"),
        (("demo", "--example", "--out", tmp_path / "example.png"), "value at the centre"),
    ):
        run = zono(*args, cwd=folder, largest_file=100)
        assert run.returncode == 2
        assert said in run.stdout
        assert "cannot write" in one_line(run.stderr)
    assert list(tmp_path.iterdir()) == []


# Standard output and standard error


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (SMALL, 0),
        (("inspect", DIGITS), 2),
        (("certify", DIGITS, "--data", DIGITS, "--count", "1", "--radius", "1e-4", "--no-attack"), 2),
    ],
)
def test_standard_output_is_full(folder, args, code):
    with FULL.open("w") as full:
        run = zono(*args, cwd=folder, stdout=full)
    assert run.returncode == code
    assert one_line(run.stderr) == "error: cannot write to standard output: No space left on device\n"


def test_standard_output_is_a_pipe_that_nobody_reads(folder):
    reader, writer = os.pipe()
    os.close(reader)
    run = zono(*SMALL, cwd=folder, stdout=writer)
    os.close(writer)
    assert run.returncode == 0
    assert one_line(run.stderr) == "error: cannot write to standard output: Broken pipe\n"


def test_closed_streams(folder):
    """Standard streams may be closed, as when a daemon starts a program."""
    for redirection, code in ((">&-", 0), ("> /dev/full 2> /dev/full", 0)):
        command = f"{PROGRAM} {' '.join(SMALL)} {redirection}"
        run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=folder, timeout=300)
        assert run.returncode == code, redirection
        assert "Traceback" not in run.stdout + run.stderr
        if redirection == ">&-":
            assert one_line(run.stderr) == "error: cannot write to standard output: it is closed\n"


def test_an_error_with_standard_error_full(folder):
    with FULL.open("w") as full:
        assert zono("inspect", "nowhere", cwd=folder, stderr=full).returncode == 2
