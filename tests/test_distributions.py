"""Both distributions, as far as nothing need be built: versions, dependencies, licences, and the pages around them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import zonogpt
import zonogpt_check

ROOT = Path(__file__).parent.parent
CHECKER = ROOT / "checker"
VERSION = zonogpt.__version__
WHOLE, ALONE = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, CHECKER))
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", CHECKER / "README.md",
         ROOT / "benchmarks" / "instances" / "LICENSE.md", zonogpt.zoo.path("digits") / "LICENSE.md"]  # fmt: skip


def packages(requirements):
    return {re.match(r"[\w-]+", one)[0] for one in requirements}


def test_one_version_everywhere():
    assert zonogpt_check.__version__ == VERSION
    cited = dict(re.findall(r"^(version|date-released): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    newest = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert (cited["version"], cited["date-released"]) == newest.groups()
    assert cited["version"] == VERSION


def test_the_checker_needs_numpy_and_safetensors_only():
    assert packages(ALONE["dependencies"]) == {"numpy", "safetensors"}
    assert set(ALONE["dependencies"]) <= set(WHOLE["dependencies"])
    assert ALONE["requires-python"] == WHOLE["requires-python"]
    assert (CHECKER / "zonogpt_check").resolve() == Path(zonogpt_check.__file__).parent
    assert (CHECKER / "zonogpt_check" / "py.typed").is_file()
    assert (CHECKER / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_extras_by_need():
    extras = {name: packages(wanted) for name, wanted in WHOLE["optional-dependencies"].items()}
    assert extras["plots"] == {"matplotlib"}
    assert extras["bench"] == {"zonogpt", "pyarrow"}
    assert extras["ray"] == {"ray"}
    assert not {"matplotlib", "pyarrow", "ray"} & packages(WHOLE["dependencies"])


def test_everything_has_its_pin():
    """Every package that continuous integration installs has an exact version."""
    pinned = packages((ROOT / "constraints.txt").read_text().replace("#", "-").splitlines()[1:])
    extras = WHOLE["optional-dependencies"].values()
    wanted = packages([*WHOLE["dependencies"], *(one for extra in extras for one in extra)])
    assert wanted - pinned == {"zonogpt"}


def test_licences_are_beside_the_data():
    digits = zonogpt.zoo.path("digits")
    assert "CC BY-SA 3.0" in (digits / "LICENSE.md").read_text()
    said = (ROOT / "benchmarks" / "instances" / "LICENSE.md").read_text()
    assert "Rotten" in said or "rottentomatoes" in said
    kinds = {file.name.split("-")[0]: 0 for file in (ROOT / "benchmarks" / "instances" / "inputs").iterdir()}
    assert all(f"inputs/{kind}-" in said for kind in kinds)
    for file in digits.iterdir():
        assert file.name == "LICENSE.md" or f"`{file.name}`" in (digits / "LICENSE.md").read_text()
    assert "src/zonogpt/model/zoo/digits/LICENSE.md" in WHOLE["license-files"]


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "zonogpt_check", *arguments], capture_output=True, text=True)


def test_the_checkers_own_command():
    assert ALONE["scripts"] == {"zonogpt-check": "zonogpt_check.__main__:main"}
    assert run("--version").stdout == f"zonogpt-check {VERSION}\n"
    assert run("--help").stdout.startswith("usage: zonogpt-check CERTIFICATE MODEL_DIRECTORY\n")
    wrong = run("one")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("usage:")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        assert target.startswith("https:") or (page.parent / target).exists(), target
    for span in re.findall(r"`((?:src|tests|tools|docs|checker)/[\w./-]+)`", text):
        assert (ROOT / span).exists(), span
    targets = set(re.findall(r"^([\w./$()]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make ([\w./]+)`", text):
        assert target.replace(".venv", "$(VENV)") in targets, target
