"""The wheel: what is in it, and that it works in an environment that has never seen the source."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_wheel_in_an_empty_environment(tmp_path):
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("zonogpt/py.typed", "zonogpt/model/zoo/digits/model.safetensors",
                   "zonogpt/model/zoo/digits/samples.npz", "zonogpt/model/zoo/digits/config.json"):  # fmt: skip
        assert wanted in names
    for wanted in ("LICENSE", "CITATION.cff"):
        assert any(name.endswith(f"dist-info/licenses/{wanted}") for name in names)
    assert not any(name.startswith("tests") for name in names)

    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    pip = [tmp_path / "env" / "bin" / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(pip, check=True)
    run = subprocess.run(
        [tmp_path / "env" / "bin" / "zonogpt", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Digits proved, of 20" in run.stdout
    assert (tmp_path / "zonogpt-demo.png").stat().st_size > 50_000
