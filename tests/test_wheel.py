"""The distributions: what is in them, and that they work in environments that have never seen the source."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """What `make release` builds and prints."""
    out = tmp_path_factory.mktemp("release")
    command = [sys.executable, ROOT / "tools" / "release.py", "--out", out]
    return out, subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def names(out, pattern):
    (file,) = out.glob(pattern)
    if file.suffix == ".whl":
        return zipfile.ZipFile(file).namelist()
    with tarfile.open(file) as content:
        assert all(member.isfile() or member.isdir() for member in content)  # no links out of it
        return [name.partition("/")[2] for name in content.getnames()]


@pytest.mark.slow
def test_what_is_in_the_wheels(release):
    out, _ = release
    found = names(out, "zonogpt-*.whl")
    for wanted in ("zonogpt/py.typed", "zonogpt/model/zoo/digits/model.safetensors",
                   "zonogpt/model/zoo/digits/samples.npz", "zonogpt/model/zoo/digits/config.json",
                   "zonogpt/model/zoo/digits/LICENSE.md", "zonogpt/verification/schemas/result.json",
                   "zonogpt_apps/bench/report/page.html"):  # fmt: skip
        assert wanted in found
    for wanted in ("LICENSE", "CITATION.cff"):
        assert any(name.endswith(f"dist-info/licenses/{wanted}") for name in found)
    assert {name.split("/")[0] for name in found if ".dist-info" not in name} == {
        "zonogpt", "zonogpt_apps", "zonogpt_check",
    }  # fmt: skip

    checker = names(out, "zonogpt_check-*.whl")
    source = {f"zonogpt_check/{file.name}" for file in (ROOT / "src" / "zonogpt_check").iterdir() if file.is_file()}
    assert {name for name in checker if ".dist-info" not in name} == source
    assert "zonogpt_check/py.typed" in source
    assert source <= {*names(out, "zonogpt_check-*.tar.gz")}


@pytest.mark.slow
def test_what_the_release_says(release):
    """It proves a digit, the checker alone checks the proof, and four files would be uploaded, the checker's first."""
    out, said = release
    lines = said.splitlines()
    assert said.count("PASSED") == 4
    assert "verified (rounding bounded, real arithmetic)" in lines
    assert "valid" in lines
    files = [line.split()[0] for line in lines if " sha256 " in line and " bytes " in line]
    assert sorted(files) == sorted(file.name for file in out.iterdir())
    assert [name.startswith("zonogpt_check-0") for name in files] == [True, True, False, False]
    assert lines[-1] == "nothing was uploaded"


@pytest.mark.slow
def test_wheel_in_an_empty_environment(release, tmp_path):
    """The demo draws, so the wheel is installed with the extra `plots`."""
    (wheel,) = release[0].glob("zonogpt-*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    pip = [tmp_path / "env" / "bin" / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{wheel}[plots]"], check=True)
    run = subprocess.run(
        [tmp_path / "env" / "bin" / "zonogpt", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Digits proved, of 20" in run.stdout
    assert (tmp_path / "zonogpt-demo.png").stat().st_size > 50_000
