"""benchmarks/peers: the plain network is Hugging Face's, and what is not installed is skipped with a line."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import zonogpt
from builders import image_model

PEERS = Path(__file__).parent.parent / "benchmarks" / "peers"


def load(name):
    spec = importlib.util.spec_from_file_location(f"peers_{name}", PEERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [0, 1])
def test_the_plain_network_is_hugging_faces(seed):
    net = image_model(seed)
    images = torch.rand(3, net.height, net.width, generator=torch.Generator().manual_seed(seed))
    plain = load("network").plain_network(net, images)  # ValueError if it is not the same network
    expected = net.double()(images.double()).logits
    torch.testing.assert_close(plain(plain.patches(images.double())), expected, rtol=1e-9, atol=1e-9)
    for image, patches in zip(images, plain.patches(images), strict=True):
        assert torch.equal(zonogpt.load(net).embedding.patches(image), patches)


def test_another_network_is_noticed(monkeypatch):
    network = load("network")
    monkeypatch.setattr(network, "gelu", torch.nn.functional.silu)
    with pytest.raises(ValueError, match="from Hugging Face's"):
        network.plain_network(image_model(0), torch.rand(2, 6, 4))


WITHOUT = """
import importlib.util as util, runpy, sys
find = util.find_spec
util.find_spec = lambda name, *package: None if name == "auto_LiRPA" else find(name, *package)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_peers_that_are_not_there_are_skipped_with_a_line_each(tmp_path):
    """In a process that cannot find auto_LiRPA, wherever this runs."""
    out = tmp_path / "rows.jsonl"
    options = ["--model", "random:2x8x1", "--count", "1", "--radius", "1e-4", "--ours", "ibp,crown", "--out", str(out)]
    paths = os.pathsep.join([str(PEERS), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(PEERS / "compare.py"), *options],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "skipped" in line] == [
        "auto_LiRPA is skipped: it is not installed",
        "DeepT is skipped: no --deept DIRECTORY is given",
    ]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["tool"], row["method"]) for row in rows] == [("zonogpt", "ibp"), ("zonogpt", "crown")]
    assert rows[0]["margin"] <= rows[1]["margin"]
