"""A verdict is about the network that was passed: anything that changes that network is refused, by name and place."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import GPT2ForSequenceClassification
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt2 import modeling_gpt2

import zonogpt
from builders import config, image_model, language_model
from zonogpt.errors import ModelError
from zonogpt.model import agreement, sensitivity
from zonogpt.model.replay import HuggingFaceModel

IDS = [3, 5, 1, 2]


def classifier(**changes):
    torch.manual_seed(0)
    return GPT2ForSequenceClassification(config(pad_token_id=0, **changes)).eval()


def double(module, args, output):
    return (2 * output[0], *output[1:]) if isinstance(output, tuple) else 2 * output


def subclass_of_the_same_name(net):
    class GPT2ForSequenceClassification(type(net)):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = -out.logits
            return out

    net.__class__ = GPT2ForSequenceClassification


class Adapter(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def wrapped_layer(net):
    net.transformer.h[0].mlp.c_fc = Adapter(net.transformer.h[0].mlp.c_fc)


def forward_of_its_own(net):
    mlp = net.transformer.h[1].mlp
    mlp.forward = lambda x: -type(mlp).forward(mlp, x)


def parametrised(net):
    nn.utils.parametrizations.weight_norm(net.score)


def other_config_inside(net):
    attention = net.transformer.h[0].attn
    attention.config = copy.deepcopy(attention.config)
    attention.config.is_causal = False


def flash_attention(net):
    net.config._attn_implementation = "flash_attention_2"


def shared_block(net):
    net.transformer.h[1] = net.transformer.h[0]


def reordered(blocks):
    blocks._modules = dict(reversed(blocks._modules.items()))


class Odd(dict):
    pass


def other_dictionary(net):
    vars(net.score)["_parameters"] = Odd(net.score._parameters)


TAMPERED = {
    "forward hook": (lambda net: net.transformer.h[0].mlp.register_forward_hook(double), "h.0.mlp .*forward hooks"),
    "forward pre-hook": (lambda net: net.score.register_forward_pre_hook(lambda m, a: (2 * a[0],)), "score.*hooks"),
    "state-dict hook": (lambda net: net.register_state_dict_post_hook(lambda *a: None), "state dict hooks"),
    "subclass": (subclass_of_the_same_name, "which zonogpt does not know"),
    "activation": (lambda net: setattr(net.transformer.h[0].mlp, "act", nn.ReLU()), r"h\.0\.mlp\.act is a .*ReLU"),
    "epsilon": (lambda net: setattr(net.transformer.ln_f, "eps", 0.5), "ln_f .*eps = 0.5"),
    "adapter layer": (wrapped_layer, "c_fc is a .*Adapter"),
    "forward of an instance": (forward_of_its_own, r"h\.1\.mlp .*forward was added"),
    "parametrisation": (parametrised, "score is a .*Parametrized"),
    "scaling": (lambda net: setattr(net.transformer.h[0].attn, "scaling", 1.0), "scaling = 1.0"),
    "mask": (lambda net: setattr(net.transformer.h[0].attn, "is_causal", False), "is_causal = False"),
    "config inside": (other_config_inside, "its config is not the model's config"),
    "is_causal": (lambda net: setattr(net.config, "is_causal", False), "config.is_causal = False"),
    "max_norm": (lambda net: setattr(net.transformer.wte, "max_norm", 0.1), "max_norm = 0.1"),
    "buffer": (lambda net: net.score.register_buffer("extra", torch.ones(1)), "buffers extra"),
    "bias": (lambda net: setattr(net.score, "bias", nn.Parameter(torch.ones(3))), "bias"),
    "module": (lambda net: net.add_module("more", nn.Linear(2, 2)), "modules more"),
    "module list": (lambda net: net.transformer.h.append(nn.Linear(2, 2)), "modules 2"),
    "shared block": (shared_block, "lacks the module transformer.h.1"),
    "flash attention": (flash_attention, "attn_impl.*sdpa"),
    "meta weights": (lambda net: net.to("meta"), "meta device"),
    "order of blocks": (lambda net: reordered(net.transformer.h), "modules"),
    "dictionary of parameters": (other_dictionary, "parameters"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_an_object_that_is_another_network_is_refused(name):
    change, word = TAMPERED[name]
    net = classifier()
    zonogpt.load(net)
    change(net)
    with pytest.raises(ModelError, match=word):
        zonogpt.load(net)


def test_classes_and_registries_that_were_changed_are_refused(monkeypatch):
    net = classifier()
    with monkeypatch.context() as patch:
        patch.setattr(modeling_gpt2.GPT2MLP, "forward", lambda self, x: x)
        with pytest.raises(ModelError, match=r"GPT2MLP\.forward has been replaced"):
            zonogpt.load(net)
    with monkeypatch.context() as patch:
        patch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", lambda *a, **k: None)
        with pytest.raises(ModelError, match="registered as 'sdpa'"):
            zonogpt.load(net)
    handle = nn.modules.module.register_module_forward_hook(double)
    try:
        with pytest.raises(ModelError, match="hooks for all modules"):
            zonogpt.load(net)
    finally:
        handle.remove()
    zonogpt.load(net)


def test_the_object_is_never_modified():
    net = classifier().train()
    before = {name: (tensor, tensor.clone()) for name, tensor in net.state_dict(keep_vars=True).items()}
    spec = zonogpt.embedding_ball(model := zonogpt.load(net), IDS, [1], 1e-4)
    zonogpt.verify(model, spec, attack=True)
    assert net.training
    assert all(net.state_dict(keep_vars=True)[n] is t and torch.equal(t, c) for n, (t, c) in before.items())
    with torch.no_grad():
        net.score.weight.neg_()  # the verdict was, and is, about the object as it was
    assert zonogpt.verify(model, spec).status == "verified"


@pytest.mark.parametrize("make", [classifier, language_model, image_model])
def test_transformers_judges_at_load(monkeypatch, make):
    """The comparison of outputs alone, without that of the structure, notices a judge that is a little off."""
    answers = {name: getattr(HuggingFaceModel, name) for name in ("on_image", "on_ids")}
    for name, answer in answers.items():
        monkeypatch.setattr(HuggingFaceModel, name, lambda self, *a, f=answer: f(self, *a) * (1 + 1e-8))
    with pytest.raises(ModelError, match="Hugging Face's model and zonogpt's disagree"):
        zonogpt.load(make())


def negated(function):
    return lambda *args, **kwargs: -function(*args, **kwargs)


@pytest.mark.parametrize("name", ["layer_norm", "gelu", "linear"])
def test_functions_that_every_network_is_made_of_are_torchs_own(monkeypatch, name):
    """The IR may use the replaced function too: then it agrees with the judge, but the bounds are about neither."""
    monkeypatch.setattr(nn.functional, name, negated(getattr(nn.functional, name)))
    with pytest.raises(ModelError, match=f"{name} has been replaced"):
        zonogpt.load(classifier())


def test_the_machinery_of_modules_is_torchs_own(monkeypatch):
    net = classifier()
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "_call_impl", lambda self, *args, **kwargs: self.forward(*args, **kwargs))
        with pytest.raises(ModelError, match="_call_impl has been replaced"):
            zonogpt.load(net)
    with monkeypatch.context() as patch:
        patch.setattr(modeling_gpt2.GPT2MLP, "forward", nn.Identity.forward)
        with pytest.raises(ModelError, match=r"GPT2MLP\.forward has been replaced by Identity\.forward"):
            zonogpt.load(net)

    class Scaled(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            return 1.5 * out if function is nn.functional.layer_norm else out

    with Scaled(), pytest.raises(ModelError, match="function mode"):
        zonogpt.load(net)
    with torch.device("meta"), pytest.raises(ModelError, match="meta"):
        zonogpt.load(net)
    with torch.device("cpu"):
        zonogpt.load(net)


def test_what_using_and_training_a_model_leaves_behind_is_allowed():
    net = classifier()
    net(torch.tensor([IDS]), output_hidden_states=True)
    zonogpt.load(net)
    net.set_attn_implementation("eager")
    zonogpt.load(net)
    net(torch.tensor([IDS]), output_attentions=True)
    net.set_attn_implementation("sdpa")
    net.gradient_checkpointing_enable()
    net.train()
    net(torch.tensor([IDS]), labels=torch.tensor([1])).loss.backward()
    assert zonogpt.load(net).problem == "single_label_classification"
    net.gradient_checkpointing_disable()
    torch.compile(net)
    zonogpt.load(net.eval())


def test_a_model_that_transformers_cannot_run_is_no_raw_error():
    net = classifier(return_dict=False)
    with pytest.raises(ModelError, match="cannot run this model"):
        zonogpt.load(net)


@pytest.mark.parametrize("make", [classifier, image_model])
def test_transformers_judges_at_every_centre(make):
    model = zonogpt.load(make())
    judge = model.source
    if make is image_model:
        spec = zonogpt.image_ball(model, torch.rand(6, 4), 1e-4)
        judge._in(torch.float64).classifier.bias.data += 1e-6
    else:
        spec = zonogpt.embedding_ball(model, IDS, [1], 1e-4)
        judge._in(torch.float64).transformer.wpe.weight.data[1, 0] += 1e-6
    for _ in range(2):  # a disagreement is not forgotten
        with pytest.raises(ModelError, match=r"disagree.*on the unperturbed input"):
            zonogpt.verify(model, spec)


def test_agreement_allows_rounding_of_an_ill_conditioned_network():
    net = image_model().double()
    with torch.no_grad():
        net.classifier.bias.copy_(-net(torch.rand(1, 6, 4).double()).logits[0] * 0 + 1e9)
        net.classifier.weight.mul_(1e3)
    assert zonogpt.load(net).dtype == torch.float64
    assert 1000 * torch.finfo(torch.float64).eps < sensitivity.SHAKE


def test_agreement_is_not_granted_by_a_network_that_overflows_when_shaken(monkeypatch):
    model = zonogpt.load(image_model())
    x = torch.zeros(4, 8, dtype=torch.float64)
    monkeypatch.setattr(agreement, "sensitivity", lambda *_: torch.full((3,), torch.inf))
    with pytest.raises(ModelError, match="disagree"):
        agreement._require_close(model, x, torch.ones(3), torch.full((3,), 2.0), "the original", "an input")


REFUSED = {
    "is_causal": False, "transformers_weights": "other.safetensors", "per_layer_config": {"0": {"n_head": 1}},
    "auto_map": {"AutoModel": "code.Model"}, "n_inner": 0, "num_labels": 7, "num_attention_heads": True,
    "hidden_size": 13, "pruned_heads": {"0": [1]}, "rope_theta": 1e4, "made_up": 1, "scale_attn_weights": 0,
    "quantization_config": {"load_in_8bit": True}, "pad_token_id": [1],
    "layer_norm_epsilon": True, "attn_implementation": "flash_attention_2", "dtype": "int8",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    classifier().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("key", REFUSED)
def test_every_key_of_a_config_is_known_or_refused(folder, key):
    """By the prover and, independently, by the checker."""
    model = zonogpt.load(folder)
    certificate = folder.parent / "certificate"
    zonogpt.write_certificate(model, zonogpt.embedding_ball(model, IDS, [1], 1e-6), certificate)
    assert check(certificate, folder).returncode == 0
    edit(folder, **{key: REFUSED[key]})
    with pytest.raises(ModelError, match=key):
        zonogpt.load(folder)
    assert check(certificate, folder).returncode in (1, 2)


def check(certificate, folder):
    command = [sys.executable, "-m", "zonogpt_check", str(certificate), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


OLDEST = {  # what transformers 4.50.0, the oldest that is supported, has in GPT2Config().to_dict()
    "return_dict": True, "output_hidden_states": False, "output_attentions": False, "torchscript": False,
    "torch_dtype": "float32", "use_bfloat16": False, "tf_legacy_loss": False, "pruned_heads": {},
    "chunk_size_feed_forward": 0, "is_encoder_decoder": False, "is_decoder": False,
    "cross_attention_hidden_size": None, "add_cross_attention": False, "tie_encoder_decoder": False, "max_length": 20,
    "min_length": 0, "do_sample": False, "early_stopping": False, "num_beams": 1, "num_beam_groups": 1,
    "diversity_penalty": 0.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0,
    "repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None, "num_return_sequences": 1, "output_scores": False, "return_dict_in_generate": False,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "remove_invalid_values": False,
    "exponential_decay_length_penalty": None, "suppress_tokens": None, "begin_suppress_tokens": None,
    "finetuning_task": None, "tokenizer_class": None, "prefix": None, "sep_token_id": None,
    "decoder_start_token_id": None, "task_specific_params": None, "problem_type": None, "_name_or_path": "",
    "_attn_implementation_autoset": False, "transformers_version": "4.50.0", "n_ctx": 8,
}  # fmt: skip


def test_configs_of_the_oldest_and_newest_transformers_load(folder):
    zonogpt.load(folder)
    edit(folder, **classifier().config.to_dict())  # all keys, not only those that differ from defaults
    edit(folder, architectures=["GPT2ForSequenceClassification"], dtype="float32")
    zonogpt.load(folder)
    edit(folder, **OLDEST)
    assert zonogpt.load(folder).n_outputs == 3


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])
def test_adapters_are_refused(folder, name):
    model, certificate = zonogpt.load(folder), folder.parent / "certificate"
    zonogpt.write_certificate(model, zonogpt.embedding_ball(model, IDS, [1], 1e-6), certificate)
    (folder / name).write_text("{}")
    assert check(certificate, folder).returncode == 2
    with pytest.raises(ModelError, match="Merge it first"):
        zonogpt.load(folder)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="Merge it first"):
        zonogpt.load(folder)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_those_that_transformers_holds(folder, dtype):
    """A narrower type in the config: transformers rounds the weights when it loads them."""
    edit(folder, dtype=dtype)
    model = zonogpt.load(folder)
    stored = load_file(folder / "model.safetensors")["score.weight"]
    held = GPT2ForSequenceClassification.from_pretrained(folder, dtype="auto").score.weight
    assert held.dtype == getattr(torch, dtype)
    assert not torch.equal(held.float(), stored)
    assert torch.equal(model.head.weight.T, held.float())


@pytest.mark.parametrize("where", ["first tensor", "index"])
def test_the_type_that_transformers_chooses_by_itself(folder, where):
    """Without a type in the config: that of the index, or of the first tensor, in which all others are then rounded."""
    model, certificate = zonogpt.load(folder), folder.parent / "certificate"
    zonogpt.write_certificate(model, zonogpt.embedding_ball(model, IDS, [1], 1e-6), certificate)
    edit(folder, dtype=None)
    assert check(certificate, folder).returncode == 0
    tensors = load_file(folder / "model.safetensors")
    if where == "index":
        (folder / "model.safetensors").rename(folder / "all.safetensors")
        index = {"metadata": {"dtype": "float16"}, "weight_map": dict.fromkeys(tensors, "all.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        tensors["score.weight"] = tensors["score.weight"].half()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    done = check(certificate, folder)
    assert done.returncode == 2, done.stdout
    assert "in which type they are held" in done.stderr
    with pytest.raises(ModelError, match="other weights"):
        zonogpt.load(folder)


@pytest.mark.parametrize("make", [classifier, language_model, image_model])
def test_half_precision_checkpoints_have_certificates(tmp_path, make):
    for dtype in (torch.bfloat16, torch.float16):
        folder, certificate = tmp_path / str(dtype), tmp_path / f"{dtype}.cert"
        make().to(dtype).save_pretrained(folder)
        model = zonogpt.load(folder)
        if make is image_model:
            spec = zonogpt.image_ball(model, torch.full((6, 4), 0.5), 1e-7)
        else:
            spec = zonogpt.embedding_ball(model, IDS, [1], 1e-7)
        zonogpt.write_certificate(model, spec, certificate)
        assert check(certificate, folder).returncode == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("layer_norm_epsilon", "1e-05"), ("num_labels", None), ("id2label", {"a": "x", "b": "y", "c": "z"})],
)
def test_the_checker_validates_values(folder, key, value):
    model, certificate = zonogpt.load(folder), folder.parent / "certificate"
    zonogpt.write_certificate(model, zonogpt.embedding_ball(model, IDS, [1], 1e-6), certificate)
    edit(folder, **{key: value})
    assert check(certificate, folder).returncode == 2


def test_a_tied_head_that_differs_is_refused(tmp_path):
    """Versions of transformers disagree on which of the two counts."""
    language_model().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = -tensors["transformer.wte.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"all_tied_weights_keys|other weights"):
        zonogpt.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("make", [classifier, language_model, image_model])
def test_what_plain_transformers_trained_and_saved_still_loads(tmp_path, make, dtype):
    net = make().to(dtype).train()
    inputs = torch.rand(2, 6, 4, dtype=dtype) if make is image_model else torch.tensor([IDS, IDS])
    labels = torch.tensor([IDS, IDS]) if make is language_model else torch.tensor([0, 1])
    optimizer = torch.optim.AdamW(net.parameters())
    net(inputs, labels=labels).loss.backward()
    optimizer.step()
    zonogpt.load(net)
    net.eval().save_pretrained(tmp_path)
    model = zonogpt.load(tmp_path)
    again = type(net).from_pretrained(tmp_path)
    zonogpt.load(again)
    assert model.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
