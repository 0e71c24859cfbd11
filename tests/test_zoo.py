"""The bundled model and digits, and its accuracy on the whole test set where that is at hand."""

from pathlib import Path

import pytest
import torch

import zonogpt
from zonogpt.datasets.idx import find, read_idx

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


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs the MNIST files beside the repository")
def test_accuracy_on_the_whole_test_set():
    hf = zonogpt.GPT2ForImageClassification.from_pretrained(zonogpt.zoo.path("digits"))
    images = torch.tensor(read_idx(find(MNIST, "t10k-images-idx3-ubyte"), 3)).float() / 255
    labels = torch.tensor(read_idx(find(MNIST, "t10k-labels-idx1-ubyte"), 1)).long()
    with torch.no_grad():
        accuracy = (hf(images).logits.argmax(-1) == labels).double().mean()
    assert float(accuracy) >= 0.965
