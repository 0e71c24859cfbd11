"""Builds both distributions, tries them in empty environments, and says what would be uploaded. Uploads nothing.

    python tools/release.py [--out dist]

1. An sdist of each, and from it the wheel; twine looks at their metadata.
2. zonogpt installed from its wheel verifies a digit and writes a certificate.
3. zonogpt-check installed alone, with numpy and safetensors, checks it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECTS = (ROOT / "checker", ROOT)
ALONE = {"numpy", "safetensors", "zonogpt-check"}
DIGIT = ("zoo:digits", "--image", "zoo:digits/0", "--radius", "2e-3")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What it prints. No path of ours leads into the source."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=outside, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def build(out: Path) -> list[Path]:
    """sdist and wheel of each project."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"{out} is not empty")
    for project in PROJECTS:
        run(sys.executable, "-m", "build", "--outdir", out, project)
    files = sorted(out.iterdir(), key=lambda file: (not file.name.startswith("zonogpt_check"), file.name))
    print(run(sys.executable, "-m", "twine", "check", "--strict", *files))
    return files


def environment(place: Path, wheels: Sequence[Path]) -> Path:
    """The programs of an environment that holds nothing but these and what they need."""
    venv.create(place, with_pip=True)
    run(place / "bin" / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *wheels)
    return place / "bin"


def try_out(files: Sequence[Path], scratch: Path) -> None:
    checker, prover = [file for file in files if file.suffix == ".whl"]
    whole = environment(scratch / "whole", [prover])
    print(run(whole / "zonogpt", "verify", *DIGIT, "--certificate", "digit.cert", "--quiet", cwd=scratch))
    model = run(whole / "python", "-c", "import zonogpt; print(zonogpt.zoo.path('digits'))", cwd=scratch).strip()

    alone = environment(scratch / "alone", [checker])
    there = run(alone / "pip", "list", "--format=freeze").splitlines()
    print("in the checker's environment:", *there)
    assert {one.split("==")[0] for one in there} - {"pip", "setuptools"} == ALONE
    print(run(alone / "zonogpt-check", "digit.cert", model, cwd=scratch))


def source() -> str:
    """To be asked before anything is built."""
    changed = "with changes that are not committed" if run("git", "status", "--porcelain") else "as committed"
    return f"commit {run('git', 'rev-parse', 'HEAD').strip()}, {changed}"


def tell(files: Sequence[Path], of: str) -> None:
    print(f"of {of}; would be uploaded, in this order:")
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"{file.name:36} {file.stat().st_size:>9,} bytes  sha256 {digest}")
    print("nothing was uploaded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out.resolve()
    of = source()
    files = build(out)
    with tempfile.TemporaryDirectory() as scratch:
        try_out(files, Path(scratch))
    tell(files, of)


if __name__ == "__main__":
    main()
