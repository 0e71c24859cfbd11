"""config.json, key by key: each is known not to matter, is expressed in the IR, or is refused by its name.

An unknown key is refused too: transformers may follow it to other weights, to another mask, to code. Only a config
that has passed is handed to transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import GPT2Config

from zonogpt.errors import ModelError

# Sizes, by GPT2Config's names for them; the value is another name for the same size, if there is one.
SIZES = {"vocab_size": None, "n_positions": "max_position_embeddings", "n_embd": "hidden_size",
         "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": None,
         "num_labels": None}  # fmt: skip

# Values that the IR can express. Any other value would be another network.
ONLY: dict[str, tuple[Any, ...]] = {
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
    "prefix": (None, ""),  # pipelines put it before a text
    "problem_type": (None, "single_label_classification", "multi_label_classification", "regression"),
}

# Read elsewhere, and checked there.
READ = {"architectures", "layer_norm_epsilon", "pad_token_id", "id2label", "label2id", "image_size", "patch_size"}

# Dropout, initial weights, heads that are not ours, how outputs are packed, where a model came from.
IRRELEVANT = {
    "n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop", "initializer_range", "summary_type", "summary_use_proj",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "use_cache", "return_dict",
    "output_hidden_states", "output_attentions", "output_past", "tie_last_hidden_states", "gradient_checkpointing",
    "tf_legacy_loss", "finetuning_task", "task_specific_params", "tokenizer_class", "transformers_version",
    "_name_or_path", "name_or_path", "_commit_hash", "_attn_implementation_autoset", "_num_labels",
    "predict_special_tokens", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id",
}  # fmt: skip

# How text is generated, which transformers 4 wrote into the config too.
GENERATION = {
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens",
}  # fmt: skip

ADVICE = {
    "quantization_config": "load the full weights",
    "transformers_weights": "rename that file to model.safetensors",
    "auto_map": "a model with code of its own cannot be read",
    "attn_implementation": "load it with attn_implementation='sdpa'",
    "_attn_implementation": "load it with attn_implementation='sdpa'",
}


def check_config(raw: Mapping[str, Any]) -> None:
    """Every key of a config (config.json, or `to_dict` of an object) is allowed, or ModelError names it."""
    others = {other for other in SIZES.values() if other}
    for name, value in raw.items():
        if name in ONLY:
            if not any(type(value) is type(allowed) and value == allowed for allowed in ONLY[name]):
                said = ADVICE.get(name, f"supported: {', '.join(map(repr, ONLY[name]))}")
                raise ModelError(f"config.{name} = {value!r} cannot be expressed; {said}")
        elif name not in READ | IRRELEVANT | GENERATION | SIZES.keys() | others:
            raise ModelError(
                f"config.{name} = {value!r} is not known to zonogpt: it may make another network of this one. "
                "If transformers does not read it, take it out of config.json"
            )
    for name, other in SIZES.items():
        for key in (name, other):
            _check_size(key, raw)
        if other is not None and other in raw and name in raw and raw[other] != raw[name]:
            raise ModelError(f"config.{other} = {raw[other]!r} contradicts config.{name} = {raw[name]!r}")
    _check_labels(raw)
    epsilon = raw.get("layer_norm_epsilon", 1e-5)
    if type(epsilon) not in (int, float) or not 0 < epsilon < float("inf"):
        raise ModelError(f"layer_norm_epsilon = {epsilon!r} must be a positive number")
    pad = raw.get("pad_token_id")
    if pad is not None and type(pad) is not int:
        raise ModelError(f"config.pad_token_id = {pad!r} must be one integer, or null")


def _check_size(name: str | None, raw: Mapping[str, Any]) -> None:
    if name is None or name not in raw or (name == "n_inner" and raw[name] is None):
        return
    if type(raw[name]) is not int or raw[name] < 1:
        raise ModelError(f"config.{name} = {raw[name]!r} must be a positive integer")


def _check_labels(raw: Mapping[str, Any]) -> None:
    names = raw.get("id2label")
    if names is None:
        return
    if not isinstance(names, dict) or {str(key) for key in names} != {str(k) for k in range(len(names))}:
        raise ModelError(f"config.id2label must name the labels 0, 1, ... in a row; got {str(names)[:80]}")
    if "num_labels" in raw and raw["num_labels"] != len(names):
        raise ModelError(f"config.num_labels = {raw['num_labels']!r}, but config.id2label names {len(names)} labels")


def gpt2_config(raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GPT2Config:
    """The config of a checkpoint with these tensors. ModelError if it makes no sense or a size exceeds every tensor."""
    _check_sizes(raw, tensors)
    try:
        config = GPT2Config.from_dict(dict(raw))
    except Exception as error:  # each version of transformers has its own complaints about odd values
        raise ModelError(f"config.json is not a GPT-2 config: {' '.join(str(error).split())}") from error
    if config.n_embd % config.n_head:
        raise ModelError(
            f"n_embd = {config.n_embd} in n_head = {config.n_head} heads is not a transformer: heads divide the width"
        )
    return config


def _check_sizes(raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """ModelError if a size exceeds every tensor. GPT2Config itself allocates: a name for each of num_labels labels.

    The tensors' sizes can be trusted, because the tensors themselves are in the file.
    """
    largest = max((tensor.numel() for tensor in tensors.values()), default=0)
    for name in (*SIZES, *SIZES.values()):
        if name is not None and isinstance(raw.get(name), int) and raw[name] > largest:
            raise ModelError(f"config.{name} = {raw[name]} is larger than every weight of the checkpoint")
