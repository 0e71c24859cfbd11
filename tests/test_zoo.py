"""The bundled model and digits, and its accuracy on the whole test set where that is at hand."""

from pathlib import Path

import pytest
import torch

import zonogpt
from program import zono
from zonogpt.datasets.idx import find, read_idx
from zonogpt.datasets.pictures import read_image

ROOT = Path(__file__).parent.parent
MNIST = ROOT.parent / "shared" / "data" / "mnist"


def test_samples():
    images, labels = zonogpt.zoo.samples("digits")
    assert images.shape == (20, 28, 28)
    assert images.dtype == torch.float32
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert labels.dtype == torch.int64
    assert sorted(labels.tolist()) == sorted(list(range(10)) * 2)
    model = zonogpt.load(zonogpt.zoo.path("digits"))
    assert [int(zonogpt.logits(model, image).argmax()) for image in images] == labels.tolist()


def test_a_sample_by_its_number():
    images, _ = zonogpt.zoo.samples("digits")
    for i in (0, 7, 19):
        assert torch.equal(read_image(Path(f"zoo:digits/{i}")), images[i])
    for name in ("digits", "digits/20", "digits/-1", "digits/00", "digits/one", "digits/0/1", "digits/²"):
        with pytest.raises(zonogpt.SpecError, match="there are zoo:digits/0 to zoo:digits/19"):
            read_image(Path(f"zoo:{name}"))
    with pytest.raises(zonogpt.ModelError, match="no bundled model"):
        read_image(Path("zoo:../digits/0"))


def test_a_sample_on_the_command_line():
    """The verdict on zoo:digits/2 is that of verify on the third sample; a wrong name gives one line."""
    images, _ = zonogpt.zoo.samples("digits")
    model = zonogpt.load("zoo:digits")
    result = zonogpt.verify(model, zonogpt.image_ball(model, images[2], 1e-3))
    run = zono("verify", "zoo:digits", "--image", "zoo:digits/2", "--radius", "1e-3")
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[:2] == [result.verdict, result.reason]
    assert "label 1" in run.stdout
    run = zono("radius", "zoo:digits", "--image", "zoo:digits/2", "--no-attack", "--low", "1e-3", "--high", "2e-3")
    assert run.returncode == 0, run.stderr
    assert "zoo:digits/2" in run.stdout
    run = zono("verify", "zoo:digits", "--image", "zoo:digits/20", "--radius", "1e-3")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: there is no bundled image zoo:digits/20")
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs the MNIST files beside the repository")
def test_accuracy_on_the_whole_test_set():
    hf = zonogpt.GPT2ForImageClassification.from_pretrained(zonogpt.zoo.path("digits"))
    images = torch.tensor(read_idx(find(MNIST, "t10k-images-idx3-ubyte"), 3)).float() / 255
    labels = torch.tensor(read_idx(find(MNIST, "t10k-labels-idx1-ubyte"), 1)).long()
    with torch.no_grad():
        accuracy = (hf(images).logits.argmax(-1) == labels).double().mean()
    assert float(accuracy) >= 0.965
