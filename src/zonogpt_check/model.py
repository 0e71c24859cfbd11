"""GPT-2 from a directory that save_pretrained wrote: config.json and safetensors, in float64, which is exact.

embedding -> blocks (attention, MLP, attention, ...) -> LayerNorm -> mean or last token -> linear map
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zonogpt_check.ball import Array
from zonogpt_check.certificate import BROKEN, Arrays
from zonogpt_check.sets import UnreadableError, demand

IMAGES, TEXTS, NEXT = "GPT2ForImageClassification", "GPT2ForSequenceClassification", "GPT2LMHeadModel"
ONLY: dict[str, tuple[Any, ...]] = {  # what the proof is about: any other value would be another network
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_causal": (True,),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "tie_word_embeddings": (True, False),
    "pruned_heads": ({}, None),
    "chunk_size_feed_forward": (0,),
    "use_bfloat16": (False,),
    "torchscript": (False,),
    "quantization_config": (None,),
    "per_layer_config": (None, {}),
    "transformers_weights": (None,),
    "auto_map": (None,),
    "attn_implementation": (None, "eager", "sdpa"),
    "_attn_implementation": (None, "eager", "sdpa"),
    "dtype": (None, "float16", "bfloat16", "float32", "float64"),
    "torch_dtype": (None, "float16", "bfloat16", "float32", "float64"),
    "problem_type": (None, "single_label_classification", "multi_label_classification", "regression"),
}
READ = """architectures n_embd n_head n_layer n_inner layer_norm_epsilon pad_token_id image_size patch_size hidden_size
    num_attention_heads num_hidden_layers max_position_embeddings n_positions vocab_size num_labels id2label"""
# Dropout, initial weights, other heads, how outputs are packed, how text is generated, where the model came from.
IRRELEVANT = """label2id n_ctx resid_pdrop embd_pdrop attn_pdrop initializer_range summary_type summary_use_proj
    summary_activation summary_first_dropout summary_proj_to_labels use_cache return_dict output_hidden_states
    output_attentions output_past tie_last_hidden_states gradient_checkpointing tf_legacy_loss finetuning_task
    task_specific_params tokenizer_class prefix transformers_version _name_or_path name_or_path _commit_hash
    _attn_implementation_autoset _num_labels predict_special_tokens bos_token_id eos_token_id sep_token_id
    decoder_start_token_id max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens"""
FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
KNOWN = {*ONLY, *READ.split(), *IRRELEVANT.split()}
ALIASES = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
UNUSED = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # causal masks that old checkpoints store


class NormWeights(NamedTuple):
    gamma: Array
    beta: Array
    tau: float


class Block(NamedTuple):
    """Attention: inner is W_q | W_k | W_v and outer W_o. MLP: W_1 and W_2. Rows times matrix, as everywhere."""

    kind: str
    norm: NormWeights
    inner: Array
    inner_bias: Array
    outer: Array
    outer_bias: Array


class Model(NamedTuple):
    architecture: str
    heads: int
    pad: int | None
    image: list[int]  # height and width of images and of patches; empty for texts
    embedding: list[Array]  # of patches: weight, bias, positions; of texts: tokens, positions
    blocks: list[Block]
    norm: NormWeights
    head: Array  # (d, outputs)
    bias: Array | None

    def digest(self) -> str:
        """sha256 of everything that the outputs depend on."""
        arrays = self.embedding + [x for block in self.blocks for x in (*block.norm[:2], *block[2:])]
        arrays += [*self.norm[:2], self.head] + ([] if self.bias is None else [self.bias])
        return digest([self.architecture, self.heads, self.pad, self.image, self.norm.tau], arrays)


def digest(said: object, arrays: list[Array]) -> str:
    state = hashlib.sha256(json.dumps(said).encode())
    for array in arrays:
        state.update(json.dumps(array.shape).encode() + np.ascontiguousarray(array, dtype="<f8").tobytes())
    return state.hexdigest()


def read_model(folder: Path) -> Model:
    try:
        return _read(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except BROKEN as error:
        raise UnreadableError(f"{folder} holds no GPT-2 that can be read: {error!r}") from error


def _read(folder: Path, config: Any) -> Model:
    architecture, d, heads = config["architectures"][0], int(config["n_embd"]), int(config["n_head"])
    tau, inner = config.get("layer_norm_epsilon", 1e-5), config.get("n_inner")
    number = type(tau) in (int, float) and 0 < tau < np.inf
    demand(number, f"config.layer_norm_epsilon = {tau!r} is no positive number", UnreadableError)
    tau = float(tau)
    f = 4 * d if inner is None else int(inner)
    for name, value in config.items():
        allowed = name in KNOWN and (name not in ONLY or any(_same(value, one) for one in ONLY[name]))
        demand(allowed, f"config.{name} = {value!r} is another network, or unknown", UnreadableError)
    adapters = sorted(file.name for file in folder.glob("adapter_*"))
    demand(not adapters, f"{folder} holds an adapter, {adapters}: it is another network", UnreadableError)
    for alias, name in ALIASES.items():  # of two that contradict each other, transformers believes the alias
        demand(config.get(alias, config[name]) == config[name], f"config.{alias} is not config.{name}", UnreadableError)
    sizes = [config["n_embd"], config["n_head"], config["n_layer"], f]
    known = architecture in (IMAGES, TEXTS, NEXT) and all(type(n) is int and n > 0 for n in sizes)
    known = known and d % heads == 0
    demand(known, f"{architecture} of width {d} in {heads} heads, epsilon {tau}", UnreadableError)
    files, of_index = _weight_files(folder)
    tensors = Arrays(files, UnreadableError, "transformer.")
    kinds = {FLOATS[kind] for kind in map(tensors.dtype, tensors.where) if kind in FLOATS}
    # The type in which transformers holds all weights, as it chooses it: in the end that of the first weight it meets.
    dtype = config.get("dtype") or config.get("torch_dtype") or of_index or min(kinds, default=None)
    demand(
        config.get("dtype") or config.get("torch_dtype") or kinds <= {dtype},
        f"weights are {sorted(kinds)}, and config.json does not say in which type they are held",
        UnreadableError,
    )

    def get(name: str, *shape: int | None) -> Array:
        array = tensors.get(name, "F16 BF16 F32 F64", *shape)
        demand(bool(np.isfinite(array).all()), f"{name} is not made of finite floats", UnreadableError)
        demand(_fits(array, dtype), f"{name} would be rounded to config.dtype = {dtype} when loaded", UnreadableError)
        return np.asarray(array, dtype=np.float64)

    def norm(at: str) -> NormWeights:
        return NormWeights(get(f"{at}.weight", d), get(f"{at}.bias", d), tau)

    def block(kind: str, at: str, inner: str, outer: str, rows: int, columns: int) -> Block:
        first = get(f"{inner}.weight", d, columns), get(f"{inner}.bias", columns)
        return Block(kind, norm(at), *first, get(f"{outer}.weight", rows, d), get(f"{outer}.bias", d))

    blocks = []
    for at in (f"h.{layer}" for layer in range(int(config["n_layer"]))):
        blocks += [block("attention", f"{at}.ln_1", f"{at}.attn.c_attn", f"{at}.attn.c_proj", d, 3 * d)]
        blocks += [block("mlp", f"{at}.ln_2", f"{at}.mlp.c_fc", f"{at}.mlp.c_proj", f, f)]
    image, bias, positions, last = [], None, get("wpe.weight", None, d), norm("ln_f")
    if architecture == IMAGES:
        image = [int(x) for x in (*config["image_size"], *config["patch_size"])]
        count = (image[0] // image[2]) * (image[1] // image[3])
        embedding = [get("projection.weight", d, image[2] * image[3]).T, get("projection.bias", d), positions[:count]]
        head = get("classifier.weight", None, d).T
        bias = get("classifier.bias", head.shape[1])
        tensors.unread.discard("wte.weight")  # GPT2Model has one; images never use it
    else:
        embedding = [get("wte.weight", None, d), positions]
        name = "score.weight" if architecture == TEXTS else "lm_head.weight"
        tied = architecture == NEXT and name not in tensors.where and config.get("tie_word_embeddings", True)
        head = embedding[0].T if tied else get(name, None, d).T
        if architecture == NEXT and config.get("tie_word_embeddings", True):
            same = np.array_equal(head.T, embedding[0])
            demand(same, "lm_head.weight is not the token table that it is tied to", UnreadableError)
    _check_labels(config, architecture, head.shape[1])
    tensors.unread = {name for name in tensors.unread if not UNUSED.fullmatch(name)}
    tensors.finish()
    return Model(architecture, heads, config.get("pad_token_id"), image, embedding, blocks, last, head, bias)


def _same(value: object, one: object) -> bool:
    return type(value) is type(one) and value == one


def _fits(array: Array, dtype: str | None) -> bool:
    """Whether this array keeps its numbers in `dtype`, the type in which transformers holds all weights."""
    with np.errstate(over="ignore"):
        if dtype == "float16":
            return np.array_equal(array.astype(np.float16), array)
        narrow = array.astype(np.float32)
    if dtype == "bfloat16":
        return np.array_equal(narrow, array) and not (narrow.view(np.uint32) & 0xFFFF).any()
    return dtype != "float32" or np.array_equal(narrow, array)


def _check_labels(config: Any, architecture: str, outputs: int) -> None:
    """UnreadableError unless the config names as many outputs as the head has."""
    names = config.get("id2label")
    named = names is None or (isinstance(names, dict) and {*names} == {str(k) for k in range(len(names))})
    demand(named, f"config.id2label = {str(names)[:80]} does not name the labels 0, 1, ...", UnreadableError)
    demand(config.get("num_labels", 0) is not None, "config.num_labels is null", UnreadableError)
    counts = {"num_labels": config.get("num_labels"), "id2label": len(names) if names else None}
    if architecture == NEXT:
        counts = {"vocab_size": config.get("vocab_size")}
    for name, count in counts.items():
        fits = count is None or _same(count, outputs)
        demand(fits, f"config.{name} says {count!r}, the head has {outputs} outputs", UnreadableError)


def _weight_files(folder: Path) -> tuple[list[Path], str | None]:
    """The files, and the type that their index says the weights are held in."""
    names, dtype = {"model.safetensors"}, None
    if not (folder / "model.safetensors").is_file():
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        names, dtype = set(index["weight_map"].values()), (index.get("metadata") or {}).get("dtype")
    inside = all(Path(name).name == name and name.endswith(".safetensors") for name in names)
    demand(inside, f"{folder} names weights outside of it, or no safetensors", UnreadableError)
    return [folder / name for name in sorted(names)], dtype
