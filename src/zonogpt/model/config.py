"""config.json, as far as it describes the network.

Nothing else in it reaches transformers, which would follow a stranger's word there to other weights (pickles among
them), to attention kernels on the hub, and to python files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import GPT2Config

from zonogpt.errors import ModelError

# Sizes, by the names that GPT2Config knows them by.
SIZES = ("vocab_size", "n_positions", "n_ctx", "n_embd", "n_layer", "n_head", "n_inner", "num_labels",
         "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads")  # fmt: skip
OTHERS = ("activation_function", "layer_norm_epsilon", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
          "reorder_and_upcast_attn", "add_cross_attention", "tie_word_embeddings", "pad_token_id", "bos_token_id",
          "eos_token_id", "id2label", "image_size", "patch_size", "quantization_config")  # fmt: skip


def gpt2_config(raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GPT2Config:
    """The config of a checkpoint with these tensors. ModelError if it makes no sense or its sizes are not of them."""
    _check_sizes(raw, tensors)
    if raw.get("per_layer_config"):
        raise ModelError("config.per_layer_config is set: blocks with settings of their own cannot be expressed")
    try:
        return GPT2Config.from_dict({name: raw[name] for name in (*SIZES, *OTHERS) if name in raw})
    except Exception as error:  # each version of transformers has its own complaints about odd values
        raise ModelError(f"config.json is not a GPT-2 config: {' '.join(str(error).split())}") from error


def _check_sizes(raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Before anybody allocates by them: GPT2Config itself makes a name for each of num_labels labels.

    How large the tensors are is no promise: they lie in the file.
    """
    largest = max((tensor.numel() for tensor in tensors.values()), default=0)
    for name in SIZES:
        if isinstance(raw.get(name), int) and raw[name] > largest:
            raise ModelError(f"config.{name} = {raw[name]} is larger than every weight of the checkpoint")
