"""Loading: every way in gives the same model; what cannot be read or expressed is refused by name."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2ForTokenClassification, GPT2Model

import zonogpt
from builders import config, image_config, image_model, language_model
from zonogpt.errors import ModelError
from zonogpt.support.tensors import tensors_in

IDS = [3, 5, 1]


def same_model(model, hf):
    """Weights must agree bit by bit. Outputs may differ in the last bits: memory layout changes the order of sums."""
    ours, theirs = (list(tensors_in((m.embedding, m.blocks, m.head))) for m in (model, zonogpt.load(hf)))
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture
def saved(tmp_path):
    hf = language_model()
    hf.save_pretrained(tmp_path / "model")
    return hf, tmp_path / "model"


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_directory_and_object_agree(saved):
    hf, folder = saved
    expected = zonogpt.logits(zonogpt.load(hf), IDS)
    assert same_model(zonogpt.load(folder), hf)
    assert same_model(zonogpt.load(str(folder)), hf)
    torch.testing.assert_close(zonogpt.logits(zonogpt.load(folder), IDS), expected)


def test_image_model_round_trip(tmp_path):
    hf = image_model()
    hf.save_pretrained(tmp_path)
    image = torch.rand(6, 4)
    again = zonogpt.GPT2ForImageClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(again(image[None]).logits, hf(image[None]).logits)
    torch.testing.assert_close(zonogpt.logits(zonogpt.load(tmp_path), image), again(image[None]).logits[0].detach())


def test_training_step_works():
    hf = image_model()
    out = hf(torch.rand(3, 6, 4), labels=torch.tensor([0, 1, 2]))
    out.loss.backward()
    assert float(hf.projection.weight.grad.abs().sum()) > 0


def test_shards(tmp_path):
    hf = language_model()
    hf.save_pretrained(tmp_path, max_shard_size="5KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert same_model(zonogpt.load(tmp_path), hf)
    index = tmp_path / "model.safetensors.index.json"
    good = index.read_text()
    index.write_text(json.dumps({"weight_map": {"a": 5}}))
    with pytest.raises(ModelError, match="5"):
        zonogpt.load(tmp_path)
    index.write_text(good)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(ModelError, match=shard.name):
        zonogpt.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_widens_exactly(tmp_path, dtype):
    hf = language_model().to(dtype)
    hf.save_pretrained(tmp_path)
    model = zonogpt.load(tmp_path)
    assert model.dtype == torch.float32
    assert torch.equal(zonogpt.logits(model, IDS), zonogpt.logits(zonogpt.load(hf.float()), IDS))


def test_loaded_object_is_a_copy():
    hf = language_model()
    model = zonogpt.load(hf)
    before = zonogpt.logits(model, IDS)
    with torch.no_grad():
        hf.transformer.wte.weight.zero_()
    assert torch.equal(zonogpt.logits(model, IDS), before)


def test_hub_name_from_the_local_cache(saved, tmp_path, monkeypatch):
    """With a cache laid out like Hugging Face's, the hub is never asked."""
    hf, folder = saved
    commit = "a" * 40
    repo = tmp_path / "hub" / "models--someone--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    shutil.copytree(folder, repo / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = zonogpt.load("someone/tiny")
    assert same_model(model, hf)
    with pytest.raises(ModelError, match="someone/else"):
        zonogpt.load("someone/else")


def test_original_gpt2_layout(saved):
    """OpenAI's checkpoint on the hub: no "transformer." prefix, causal masks among the weights, tied head left out."""
    hf, folder = saved

    def as_published(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
        tensors.pop("lm_head.weight", None)

    edit_weights(folder, as_published)
    assert same_model(zonogpt.load(folder), hf)


def test_untied_head_must_be_there(tmp_path):
    language_model(cfg=config(tie_word_embeddings=False)).save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        zonogpt.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"activation_function": "relu"}, "activation_function"),
        ({"activation_function": "gelu"}, "activation_function"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn"),
        ({"scale_attn_weights": False}, "scale_attn_weights"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon"),
        ({"n_head": 5}, "n_head"),
        ({"model_type": "llama"}, "llama"),
        ({"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2DoubleHeadsModel"),
        ({"architectures": None}, "architecture"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quanti"),
        ({"n_layer": 1}, "no place"),
        ({"n_layer": 3}, "transformer.h.2"),
        ({"n_embd": 24}, "shape"),
        ({"n_embd": "12"}, "config"),
        ({"n_head": 0}, "n_head"),
        ({"n_layer": 2.5}, "config"),
        ({"layer_norm_epsilon": None}, "config|epsilon"),
        ({"n_positions": None}, "config"),
        ({"architectures": "GPT2LMHeadModel"}, "architecture"),
        ({"architectures": {"a": 1}}, "architecture"),
        ({"architectures": [5]}, "architecture"),
    ],
)
def test_config_is_refused_by_name(saved, changes, word):
    _, folder = saved
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=word):
        zonogpt.load(folder)


def put(name, value):
    def change(tensors):
        tensors[name] = value(tensors.get(name))

    return change


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (put("transformer.h.0.ln_1.weight", lambda t: t * float("nan")), "ln_1.weight.*NaN"),
        (put("transformer.wte.weight", lambda t: t / 0), "wte.weight.*infinity"),
        (put("transformer.h.0.crossattention.weight", lambda t: torch.ones(2)), "crossattention"),
        (put("transformer.h.1.mlp.c_fc.bias", lambda t: t[:-1].clone()), "c_fc.bias"),
        (put("transformer.h.1.mlp.c_fc.bias", lambda t: t.to(torch.int8)), "int8"),
        (lambda tensors: tensors.pop("transformer.ln_f.bias"), "ln_f.bias"),
    ],
)
def test_weights_are_refused_by_name(saved, change, word):
    _, folder = saved
    edit_weights(folder, change)
    with pytest.raises(ModelError, match=word):
        zonogpt.load(folder)


def test_corrupt_and_missing_files(saved, tmp_path):
    _, folder = saved
    with pytest.raises(ModelError, match="no directory"):
        zonogpt.load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="is a file"):
        zonogpt.load(folder / "config.json")
    weights = folder / "model.safetensors"
    raw = weights.read_bytes()
    for broken in (raw[:100], b"", b"hello" * 50, raw[:-10]):
        weights.write_bytes(broken)
        with pytest.raises(ModelError, match="safetensors"):
            zonogpt.load(folder)
    weights.unlink()
    with pytest.raises(ModelError, match="holds no"):
        zonogpt.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="JSON"):
        zonogpt.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        zonogpt.load(folder)


def test_pickles_are_refused_with_the_command_that_converts_them(saved):
    hf, folder = saved
    (folder / "model.safetensors").unlink()
    torch.save(hf.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="from transformers import GPT2LMHeadModel") as caught:
        zonogpt.load(folder)
    assert "save_pretrained" in str(caught.value)


def test_unsupported_classes_and_objects():
    with pytest.raises(ModelError, match="GPT2Model"):
        zonogpt.load(GPT2Model(config()))
    with pytest.raises(ModelError, match="GPT2ForTokenClassification"):
        zonogpt.load(GPT2ForTokenClassification(config()))
    with pytest.raises(ModelError, match="int"):
        zonogpt.load(3)


def test_image_layout_is_checked():
    layouts = [((6, 4), (4, 4)), ((6, 4), (0, 1)), ((6, 4), (1, 1)), ((6, 4), 2), ("ab", (1, 1)), ((6.0, 4.0), (2, 2))]
    for image_size, patch_size in layouts:
        cfg = image_config()
        cfg.image_size, cfg.patch_size = image_size, patch_size
        with pytest.raises(ModelError):
            zonogpt.GPT2ForImageClassification(cfg)
    with pytest.raises(ModelError, match="image_size"):
        zonogpt.GPT2ForImageClassification(config())


def test_zoo_names():
    with pytest.raises(ModelError, match="digits"):
        zonogpt.zoo.path("letters")
