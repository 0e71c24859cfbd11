"""Without matplotlib everything works but drawing, and commands that draw say so before they begin."""

import json
import subprocess
import sys

import pytest

SAID = "matplotlib is not installed; pip install 'zonogpt[plots]'"
PROGRAM = """
import json, sys
sys.modules["matplotlib"] = None
from typer.testing import CliRunner
from zonogpt.cli.app import app
for line in sys.stdin:
    run = CliRunner().invoke(app, line.split())
    print(json.dumps([run.exit_code, run.stdout.splitlines(), str(run.exception)]), flush=True)
"""

DIGIT = "zoo:digits --image zoo:digits/0"
WORK = {  # commands, and how their answers begin
    f"verify {DIGIT} --radius 1e-3 --certificate digit.cert": "verified",
    "check digit.cert zoo:digits": "valid",
    f"verify {DIGIT} --radius 0.05 --attack": "falsified",
    "certify zoo:digits --data zoo:digits --count 2 --radius 1e-3 --no-attack --quiet": "certified 2 of 2",
    "radius zoo:digits --data zoo:digits --count 1 --no-attack --tolerance 0.5 --quiet": "certified ",
    "inspect zoo:digits": "",
}
DRAW = (
    "certify zoo:digits --data zoo:digits --count 2 --radius 1e-3 --out run",
    "radius zoo:digits --data zoo:digits --count 2 --out run",
    "compare zoo:digits --data zoo:digits --count 2 --out run",
    f"verify {DIGIT} --radius 0.05 --attack --counterexample found.npz",
    "demo",
    "demo --example",
    "bench report --rows rows --instances instances --out run",
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """In a Python without matplotlib: every command's exit code, output and error; and the files that they leave."""
    folder = tmp_path_factory.mktemp("plots")
    commands = [*DRAW, *WORK]
    run = subprocess.run([sys.executable, "-c", PROGRAM], input="\n".join(commands), capture_output=True, text=True,
                         cwd=folder, timeout=300)  # fmt: skip
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    return dict(zip(commands, answers, strict=True)), sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("command", WORK)
def test_what_draws_nothing_works(seen, command):
    code, lines, _ = seen[0][command]
    assert code in (0, 20), lines
    assert lines[0].startswith(WORK[command])


@pytest.mark.parametrize("command", DRAW)
def test_what_draws_says_what_is_missing(seen, command):
    assert seen[0][command] == [1, [], SAID]  # the command line makes exit code 2 and one line of it


def test_nothing_was_begun(seen):
    assert seen[1] == ["digit.cert"]
