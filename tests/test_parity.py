"""The first test: the IR computes what transformers computes."""

import pytest
import torch
from transformers import GPT2ForSequenceClassification, GPT2LMHeadModel

import zonogpt
from builders import config, image_config, image_model, language_model, shaken, text_classifier

IDS = [3, 5, 1, 12, 7]


def image_difference(hf) -> float:
    image = torch.rand(*hf.config.image_size, generator=torch.Generator().manual_seed(1), dtype=hf.dtype)
    with torch.no_grad():
        return float((zonogpt.logits(zonogpt.load(hf), image) - hf(image[None]).logits[0]).abs().max())


def text_difference(hf, ids) -> float:
    with torch.no_grad():
        expected = hf(torch.tensor([ids])).logits[0]
        expected = expected[-1] if isinstance(hf, GPT2LMHeadModel) else expected
        return float((zonogpt.logits(zonogpt.load(hf), ids) - expected).abs().max())


@pytest.mark.parametrize("seed", range(3))
def test_small_models_in_float32(seed):
    assert image_difference(image_model(seed)) < 1e-5
    assert text_difference(text_classifier(seed), IDS) < 1e-5
    assert text_difference(language_model(seed), IDS) < 1e-5


def test_small_models_in_float64():
    assert image_difference(image_model().double()) < 1e-12
    assert text_difference(text_classifier().double(), IDS) < 1e-12
    assert text_difference(language_model().double(), IDS) < 1e-12


@pytest.mark.parametrize(
    "changes",
    [{"n_inner": 20}, {"activation_function": "gelu_pytorch_tanh"}, {"layer_norm_epsilon": 1e-2}, {"n_head": 1},
     {"n_layer": 3}, {"tie_word_embeddings": False}],
)  # fmt: skip
def test_config_variations(changes):
    assert text_difference(language_model(1, config(**changes)), IDS) < 1e-5


@pytest.mark.parametrize(
    "ids",
    [[3, 5, 1, 0, 0], [0, 0, 3, 5], [0, 3, 0, 5, 0], [4], [0, 0]],
    ids=["right", "left", "both", "one", "only"],
)
def test_padding_follows_transformers(ids):
    """The classifier reads the last token that is not padding (pad id 0 here); earlier padding is an ordinary token."""
    assert text_difference(text_classifier(), ids) < 1e-5


def test_classifier_without_padding_token_reads_the_last_token():
    assert text_difference(text_classifier(cfg=config(pad_token_id=None)), [3, 0, 0]) < 1e-5


@pytest.mark.parametrize("patch", [(1, 4), (6, 4), (3, 2), (2, 1)])
def test_patch_shapes(patch):
    cfg = image_config(n_positions=24)
    cfg.patch_size = patch
    assert image_difference(image_model(2, cfg)) < 1e-5


@pytest.mark.parametrize(("width", "heads"), [(768, 12), (1024, 16)], ids=["small", "medium"])
def test_real_widths(width, heads):
    sizes = {"n_embd": width, "n_head": heads, "n_layer": 2, "n_positions": 48, "vocab_size": 500}
    ids = torch.randint(1, 500, (32,), generator=torch.Generator().manual_seed(0)).tolist()
    torch.manual_seed(0)
    cfg = image_config(**sizes, num_labels=10)
    cfg.image_size, cfg.patch_size = (28, 28), (1, 28)
    assert image_difference(zonogpt.GPT2ForImageClassification(cfg).eval()) < 1e-5
    classifier = shaken(GPT2ForSequenceClassification, config(**sizes, pad_token_id=0), 0, size=0.01)
    assert text_difference(classifier, ids) < 1e-5
    assert text_difference(GPT2LMHeadModel(config(**sizes)).eval(), ids) < 1e-5


def test_bundled_model():
    hf = zonogpt.GPT2ForImageClassification.from_pretrained(zonogpt.zoo.path("digits"))
    images, labels = zonogpt.zoo.samples("digits")
    model = zonogpt.load(zonogpt.zoo.path("digits"))
    ours = torch.stack([zonogpt.logits(model, image) for image in images])
    with torch.no_grad():
        assert float((ours - hf(images).logits).abs().max()) < 1e-5
    assert torch.equal(ours.argmax(-1), labels)
