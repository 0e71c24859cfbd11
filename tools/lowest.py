"""Runs fast tests with the lowest versions that pyproject.toml allows.

    python tools/lowest.py [--keep]

Every `>=` of the package and of `plots` becomes `==`. The environment, .venv-lowest, is made anew unless it is to be
kept. Linux' PyTorch brings CUDA with it, some gigabytes; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
spares them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
HERE = ROOT / ".venv-lowest"
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "python-flint", "jsonschema", "psutil")  # not what is tested
TESTS = ("load", "verify", "certificate_format", "surface", "plots", "portable", "spec")
# The old command line imports more before it listens to Ctrl-C than the moment that this test leaves it.
LEFT_OUT = "tests/test_surface.py::test_ctrl_c_while_it_starts_is_quiet"


def lowest() -> list[str]:
    """torch==2.4 for torch>=2.4, and so on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["plots"]]
    return [re.sub(">=", "==", one) for one in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="use .venv-lowest as it is")
    python = HERE / "bin" / "python"
    if not parser.parse_args().keep:
        venv.create(HERE, clear=True, with_pip=True)
        pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith(TOOLS)]
        own = ["-e", f"{ROOT}[plots]"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *lowest(), *pins, *own], check=True)
    subprocess.run([python, "-m", "pip", "list", "--format=freeze"], check=True)
    tests = [*(f"tests/test_{name}.py" for name in TESTS), "tests/test_cli.py::test_verified"]
    return subprocess.run([python, "-m", "pytest", "-n", "2", "--deselect", LEFT_OUT, *tests], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
