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
from safetensors import SafetensorError, safe_open

from zonogpt_check.ball import Array
from zonogpt_check.certificate import UnreadableError

IMAGES, TEXTS, NEXT = "GPT2ForImageClassification", "GPT2ForSequenceClassification", "GPT2LMHeadModel"
ONLY = {  # what the proof is about: any other value would be another network
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (None,),
}
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
        arrays = [*self.embedding]
        for block in self.blocks:
            arrays += [*block.norm[:2], *block[2:]]
        arrays += [*self.norm[:2], self.head] + ([] if self.bias is None else [self.bias])
        return digest([self.architecture, self.heads, self.pad, self.image, self.norm.tau], arrays)


def digest(said: object, arrays: list[Array]) -> str:
    state = hashlib.sha256(json.dumps(said).encode())
    for array in arrays:
        state.update(json.dumps(array.shape).encode() + np.ascontiguousarray(array, dtype="<f8").tobytes())
    return state.hexdigest()


def read_model(folder: Path) -> Model:
    try:
        return _read(folder, json.loads((folder / "config.json").read_text()))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{folder} holds no GPT-2 that can be read: {error!r}") from error
    except (OSError, SafetensorError) as error:
        raise UnreadableError(f"{folder} holds no GPT-2 that can be read: {error!r}") from error


def _read(folder: Path, config: Any) -> Model:
    architecture, d, heads = config["architectures"][0], int(config["n_embd"]), int(config["n_head"])
    tau, f = float(config.get("layer_norm_epsilon", 1e-5)), int(config.get("n_inner") or 4 * config["n_embd"])
    for name, values in ONLY.items():
        if config.get(name, values[0]) not in values:
            raise UnreadableError(f"config.{name} = {config[name]!r} is another network")
    for alias, name in ALIASES.items():  # of two that contradict each other, transformers believes the alias
        if config.get(alias, config[name]) != config[name]:
            raise UnreadableError(f"config.{alias} is not config.{name}")
    if architecture not in (IMAGES, TEXTS, NEXT) or d % heads or not tau > 0:
        raise UnreadableError(f"{architecture} of width {d} in {heads} heads, epsilon {tau}")
    tensors = _Tensors(folder)

    def norm(at: str) -> NormWeights:
        return NormWeights(tensors.get(f"{at}.weight", d), tensors.get(f"{at}.bias", d), tau)

    def dense(at: str, rows: int, columns: int) -> tuple[Array, Array]:
        return tensors.get(f"{at}.weight", rows, columns), tensors.get(f"{at}.bias", columns)

    blocks = []
    for layer in range(int(config["n_layer"])):
        at = f"h.{layer}"
        inner, outer = dense(f"{at}.attn.c_attn", d, 3 * d), dense(f"{at}.attn.c_proj", d, d)
        blocks.append(Block("attention", norm(f"{at}.ln_1"), *inner, *outer))
        inner, outer = dense(f"{at}.mlp.c_fc", d, f), dense(f"{at}.mlp.c_proj", f, d)
        blocks.append(Block("mlp", norm(f"{at}.ln_2"), *inner, *outer))
    image, bias, positions = [], None, tensors.get("wpe.weight", None, d)
    if architecture == IMAGES:
        image = [int(x) for x in (*config["image_size"], *config["patch_size"])]
        weight = tensors.get("projection.weight", d, image[2] * image[3]).T
        count = (image[0] // image[2]) * (image[1] // image[3])
        embedding = [weight, tensors.get("projection.bias", d), positions[:count]]
        head = tensors.get("classifier.weight", None, d).T
        bias = tensors.get("classifier.bias", head.shape[1])
    else:
        embedding = [tensors.get("wte.weight", None, d), positions]
        name = "score.weight" if architecture == TEXTS else "lm_head.weight"
        tied = architecture == NEXT and name not in tensors.where and config.get("tie_word_embeddings", True)
        head = embedding[0].T if tied else tensors.get(name, None, d).T
    last = norm("ln_f")
    tensors.finish({"wte.weight"} if architecture == IMAGES else set())  # GPT2Model has one; images never use it
    return Model(architecture, heads, config.get("pad_token_id"), image, embedding, blocks, last, head, bias)


class _Tensors:
    def __init__(self, folder: Path) -> None:
        names = ["model.safetensors"]
        if not (folder / names[0]).is_file():
            names = sorted(
                set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values())
            )
        if not all(Path(name).name == name and name.endswith(".safetensors") for name in names):
            raise UnreadableError(f"{folder} names weights outside of it, or no safetensors")
        files = [safe_open(folder / name, framework="numpy") for name in names]
        found = [(name.removeprefix("transformer."), (x, name)) for x in files for name in x.keys()]  # noqa: SIM118
        self.where, self.unread = dict(found), {name for name, _ in found}
        if len(self.where) != len(found):
            raise UnreadableError(f"{folder} has two tensors of one name")

    def get(self, name: str, *shape: int | None) -> Array:
        """The tensor, its shape looked at before a byte of it is read."""
        file, full = self.where[name]
        self.unread.discard(name)
        found = tuple(file.get_slice(full).get_shape())
        if len(found) != len(shape) or any(w not in (None, n) for w, n in zip(shape, found, strict=True)):
            raise UnreadableError(f"{name} has shape {list(found)}")
        array: Any = file.get_tensor(full)
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise UnreadableError(f"{name} is not made of finite floats")
        return np.asarray(array, dtype=np.float64)

    def finish(self, unused: set[str]) -> None:
        left = {name for name in self.unread - unused if not UNUSED.fullmatch(name)}
        if left:
            raise UnreadableError(f"{min(left)!a} has no place in the network")
