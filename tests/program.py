"""The command line as a program of its own: run to its end, or stopped on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = str(Path(sys.executable).parent / "zonogpt")


def zono(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=300)


def stopped(args: tuple[object, ...], rows: Path, wanted: int, how: signal.Signals) -> tuple[int, str, str]:
    """Stops the program by a signal once the file has `wanted` lines: (exit code, standard output, standard error)."""
    # A job that was started in the background ignores Ctrl-C, and so would its children.
    run = subprocess.Popen(
        [PROGRAM, *map(str, args)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (rows.exists() and rows.read_bytes().count(b"\n") >= wanted) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(run.pid, how)
    out, err = run.communicate(timeout=60)
    return run.returncode, out, err
