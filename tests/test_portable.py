"""Windows has no `resource`, no `fcntl` and no /proc: these tests run a Python that has none either."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zonogpt.support import memory
from zonogpt.support.locks import lock

NOWHERE = Path("nowhere/at/all")

HIDDEN = """
import fcntl, sys
from pathlib import Path

import psutil  # here it needs what Windows' own does without

FLOCK, HOW = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB
for name in ("resource", "fcntl", "termios", "pwd", "grp"):
    sys.modules[name] = None

from zonogpt.support import memory
for name in ("_STATUS", "_RESET", "_FREE", "_GROUP"):
    setattr(memory, name, Path("nowhere/at/all"))
"""

MODULES = """
import importlib, pkgutil
import zonogpt, zonogpt_apps, zonogpt_check

count = 0
for package in (zonogpt, zonogpt_apps, zonogpt_check):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
            count += 1
print("modules", count)
"""

DIGIT = """
model = zonogpt.load("zoo:digits")
images, labels = zonogpt.zoo.samples("digits")
result = zonogpt.verify(model, zonogpt.image_ball(model, images[0], radius=1e-3))
print(result.status, result.peak_bytes > 1 << 24)
"""

# A stand-in for Windows' module for locks; only the lock itself is this system's. It is installed last, because
# Python's library takes a system that has this module for Windows.
STUDY = """
import errno, os, types

def locking(descriptor, mode, count):
    assert (mode, count, os.lseek(descriptor, 0, os.SEEK_CUR)) == (2, 1, 1 << 40)
    try:
        FLOCK(descriptor, HOW)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "denied") from None

sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=locking)

from zonogpt.cli.app import main

def run():
    try:
        main()
    except SystemExit as end:
        print("exit", end.code)

sys.argv = "zonogpt certify zoo:digits --data zoo:digits --count 2 --radius 1e-3 --no-attack --out run --quiet".split()
run()
other = os.open("run/rows.jsonl", os.O_RDWR)
FLOCK(other, HOW)
run()
"""


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=300)


def test_without_resource_and_fcntl(tmp_path):
    """Every module is imported, a digit is verified, a study keeps its rows and keeps another run out."""
    run = python(HIDDEN + MODULES + DIGIT + STUDY, tmp_path)
    assert run.returncode == 0, run.stderr
    modules, verdict, certified, first, second = run.stdout.splitlines()
    source = Path(memory.__file__).parents[2]
    files = [file for package in ("zonogpt", "zonogpt_apps", "zonogpt_check") for file in (source / package).rglob("*")]
    ours = [file for file in files if file.suffix == ".py" and file.name != "__main__.py"]
    assert modules == f"modules {len(ours) - 3}"  # but for the packages' own
    assert verdict == "verified True"
    assert certified.startswith("certified 2 of 2 at radius 0.001")
    assert (first, second) == ("exit 0", "exit 2")
    assert "another run is writing" in run.stderr
    assert (tmp_path / "run" / "rows.jsonl").read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("hidden", [(), ("resource",)], ids=["macOS", "Windows"])
def test_memory_without_proc(monkeypatch, hidden):
    """Memory use is close to what /proc says; the peak since the process began is no less than that."""
    import torch

    cpu = torch.device("cpu")
    told = memory.resident_bytes(cpu), memory.free_bytes(cpu)
    for name in ("_STATUS", "_RESET", "_FREE", "_GROUP"):
        monkeypatch.setattr(memory, name, NOWHERE)
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    memory.reset_peak(cpu)
    assert memory.resident_bytes(cpu) == pytest.approx(told[0], rel=0.2)
    assert memory.peak_bytes(cpu) >= 0.8 * told[0]
    assert memory.free_bytes(cpu) > 1 << 20


LOCKER = "import os, sys, time; from zonogpt.support.locks import lock; "
LOCKER += "print(lock(os.open(sys.argv[1], os.O_RDWR)), flush=True); time.sleep(60)"


def test_a_lock_goes_with_its_process_and_its_file(tmp_path):
    file = tmp_path / "rows"
    file.touch()
    other = subprocess.Popen([sys.executable, "-c", LOCKER, file], stdout=subprocess.PIPE, text=True)
    mine = os.open(file, os.O_RDWR)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not lock(mine)
        other.kill()
        other.wait()
        assert lock(mine)
        again = os.open(file, os.O_RDWR)
        assert not lock(again)
    finally:
        other.kill()
        other.communicate()
        os.close(mine)
    assert lock(again)
    os.close(again)
