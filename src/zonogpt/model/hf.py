"""From Hugging Face to the IR. What the IR cannot express is refused by name."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zonogpt.errors import ModelError
from zonogpt.model import checkpoint
from zonogpt.model.agreement import require_agreement
from zonogpt.model.config import check_config, gpt2_config
from zonogpt.model.identity import ModelFiles
from zonogpt.model.ir import ImageEmbedding, Model, TokenEmbedding
from zonogpt.model.layout import image_layout
from zonogpt.model.names import labels_of
from zonogpt.model.nodes import Attention, Block, Head, Mlp, Norm
from zonogpt.model.replay import HuggingFaceModel, from_folder
from zonogpt.model.structure import require_plain
from zonogpt.model.tokenizer import Tokenizer
from zonogpt.support.tensors import fingerprint, moved

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

ARCHITECTURES = ("GPT2ForSequenceClassification", "GPT2LMHeadModel", "GPT2ForImageClassification")

# Causal masks that old checkpoints store among the weights; the IR has its own.
STORED_MASKS = re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)")


def load(source: str | Path | PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase | None = None) -> Model:
    """Loads a GPT-2 model: a directory written by save_pretrained, a hub name, or a transformers model object.

    The network is the one that transformers runs in evaluation mode, with weights in the type that config.json names. A
    model object may hold nothing but what its config describes. The outputs of the IR and of transformers are compared
    on a few inputs. Half-precision weights are then widened to float32, which is exact. Raises ModelError for anything
    that cannot be read or expressed.

    Texts are read with the tokenizer beside the weights, or, for a model object, with `tokenizer`.
    """
    own = None if tokenizer is None else Tokenizer(_plain_tokenizer(tokenizer), str(type(tokenizer).__name__))
    if not isinstance(source, str | Path):
        return replace(_load_object(source), tokenizer=own)
    folder = checkpoint.find(source)
    checkpoint.refuse_adapters(folder)
    raw = checkpoint.read_config(folder)
    if raw.get("model_type", "gpt2") != "gpt2":
        raise ModelError(f"{source} is a {raw['model_type']!r} model; zonogpt verifies 'gpt2'")
    match raw.get("architectures"):
        case [str(architecture), *_]:
            check_architecture(architecture)
        case other:
            raise ModelError(f"config.json names no architecture (architectures = {other!r})")
    check_config(raw)
    files = ModelFiles.of(checkpoint.files_of(folder))
    tensors = checkpoint.read_tensors(folder, architecture)
    config = gpt2_config(raw, tensors)
    if architecture == "GPT2ForImageClassification" and not any(name.endswith("wte.weight") for name in tensors):
        config.vocab_size = 1  # images use no such table, and a checkpoint may leave it out
    model = build(architecture, config, held(tensors, config), name=str(source))
    net = from_folder(folder, architecture, config)
    _require_same_weights(model, build(architecture, config, _tensors(net), name=model.name), folder)
    model = replace(model, stored=_types(tensors), folder=folder.resolve(), files=files, tokenizer=own)
    return _judged(model, net, folder.resolve())


def _load_object(source: PreTrainedModel) -> Model:
    from transformers import PreTrainedModel  # slow to import; whoever has a model object has done so

    if not isinstance(source, PreTrainedModel):
        raise ModelError(f"load takes a directory, a hub name or a transformers model, not {type(source).__name__}")
    check_architecture(type(source).__name__)
    check_config(_plain_config(source.config))
    require_plain(source)
    tensors = _tensors(source)
    model = build(type(source).__name__, source.config, tensors, name=type(source).__name__)
    return _judged(replace(model, stored=_types(tensors)), source)


def _plain_tokenizer(tokenizer: object) -> object:
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ModelError(f"tokenizer must be one of transformers; got {type(tokenizer).__name__}")
    return tokenizer


def _judged(model: Model, net: PreTrainedModel, folder: Path | None = None) -> Model:
    """The model with its judge, which agrees with it, and with the types in which transformers holds its weights."""
    require_plain(net)
    judge = HuggingFaceModel(net, folder)
    with torch.no_grad():
        require_agreement(moved(model, model.device, torch.float64), judge)
    log.info("loaded %r; transformers agrees", model)
    return replace(model, source=judge, weights=_types(_tensors(net)))


def _types(tensors: dict[str, Tensor]) -> str:
    """The floating-point types of the weights, as "float16+float32"."""
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values() if tensor.is_floating_point()}
    return "+".join(sorted(kinds))


def _tensors(net: PreTrainedModel) -> dict[str, Tensor]:
    """Every weight under each of its names, unchanged; never through state_dict, which hooks may change."""
    named = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach().clone() for name, tensor in named}


def _plain_config(config: PretrainedConfig) -> dict[str, Any]:
    """The config as config.json would have it."""
    plain = config.to_dict() | {"_attn_implementation": config._attn_implementation}
    for name in ("dtype", "torch_dtype"):
        if isinstance(plain.get(name), torch.dtype):
            plain[name] = str(plain[name]).removeprefix("torch.")
    return plain


def held(tensors: dict[str, Tensor], config: PretrainedConfig) -> dict[str, Tensor]:
    """The weights as transformers holds them: rounded to the type that config.json names, if it names one."""
    dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if dtype is None:
        return tensors
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def _require_same_weights(ours: Model, theirs: Model, folder: Path) -> None:
    if fingerprint(ours) != fingerprint(theirs):
        raise ModelError(
            f"transformers loads other weights from {folder} than its safetensors hold (an output layer tied to the"
            " token embeddings, or types that config.json does not name). Load it in transformers, save it again with"
            " save_pretrained, and use that"
        )


def check_architecture(name: str) -> None:
    if name not in ARCHITECTURES:
        raise ModelError(f"architecture {name} is not supported; zonogpt reads {', '.join(ARCHITECTURES)}")


class Weights:
    """The checkpoint's tensors. Each is checked when it is taken, once; a tensor that is left over is an error."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        if not any(name.startswith("transformer.") for name in tensors):  # saved from the bare GPT2Model
            heads = ("score.", "lm_head.", "classifier.", "projection.")
            tensors = {n if n.startswith(heads) else f"transformer.{n}": t for n, t in tensors.items()}
        self.left = {n: t for n, t in tensors.items() if not STORED_MASKS.fullmatch(n)}
        self.dtype = torch.float32  # the widest met so far

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def take(self, name: str, *shape: int | None) -> Tensor:
        """The tensor called `name`, of this shape (None: any size), finite, at least float32."""
        if name not in self.left:
            raise ModelError(f"the checkpoint has no weight {name}")
        tensor = self.left.pop(name)
        if len(shape) != tensor.dim() or any(w not in (None, n) for w, n in zip(shape, tensor.shape, strict=True)):
            wanted = tuple("any" if size is None else size for size in shape)
            raise ModelError(f"weight {name} has shape {tuple(tensor.shape)}; the config asks for {wanted}")
        if not tensor.is_floating_point():
            raise ModelError(f"weight {name} has dtype {tensor.dtype}; only floating-point weights can be expressed")
        if tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.to(torch.float32)
        self.dtype = torch.promote_types(self.dtype, tensor.dtype)
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"weight {name} holds NaN or infinity; a proof about it would mean nothing")
        return tensor

    def finish(self) -> None:
        if self.left:
            names = ", ".join(sorted(self.left)[:5]) + (", ..." if len(self.left) > 5 else "")
            raise ModelError(f"{len(self.left)} weights of the checkpoint have no place in the IR: {names}")


def build(architecture: str, config: Any, tensors: dict[str, Tensor], name: str) -> Model:
    """The IR from a config and its weights."""
    check_architecture(architecture)
    weights, d = Weights(tensors), config.n_embd
    embedding: ImageEmbedding | TokenEmbedding
    if architecture == "GPT2ForImageClassification":
        embedding = _image_embedding(weights, config)
        head_weight = weights.take("classifier.weight", config.num_labels, d)
        bias = weights.take("classifier.bias", config.num_labels)
        weights.left.pop("transformer.wte.weight", None)  # GPT2Model has one; images never use it
    else:
        embedding = TokenEmbedding(
            weights.take("transformer.wte.weight", config.vocab_size, d),
            weights.take("transformer.wpe.weight", config.n_positions, d),
        )
        head_weight, bias = _text_head(weights, config, architecture, embedding), None
    model = Model(
        embedding=embedding,
        blocks=tuple(block for layer in range(config.n_layer) for block in _layer(weights, config, layer)),
        head=Head(
            norm=_norm(weights, "transformer.ln_f", config),
            read="mean" if architecture == "GPT2ForImageClassification" else "last",
            weight=head_weight.T,
            bias=bias,
        ),
        architecture=architecture,
        name=name,
        pad_token_id=config.pad_token_id,
        problem=None if architecture == "GPT2LMHeadModel" else config.problem_type,
        labels=None if architecture == "GPT2LMHeadModel" else labels_of(config.id2label),
    )
    weights.finish()
    return moved(model, model.device, weights.dtype)


def _image_embedding(weights: Weights, config: Any) -> ImageEmbedding:
    image_size, patch_size = image_layout(config)
    n_tokens = (image_size[0] // patch_size[0]) * (image_size[1] // patch_size[1])
    return ImageEmbedding(
        weight=weights.take("projection.weight", config.n_embd, patch_size[0] * patch_size[1]).T,
        bias=weights.take("projection.bias", config.n_embd),
        positions=weights.take("transformer.wpe.weight", config.n_positions, config.n_embd)[:n_tokens],
        image_size=image_size,
        patch_size=patch_size,
    )


def _text_head(weights: Weights, config: Any, architecture: str, embedding: TokenEmbedding) -> Tensor:
    if architecture == "GPT2ForSequenceClassification":
        return weights.take("score.weight", config.num_labels, config.n_embd)
    if "lm_head.weight" not in weights and getattr(config, "tie_word_embeddings", True):
        return embedding.tokens
    weight = weights.take("lm_head.weight", config.vocab_size, config.n_embd)
    return embedding.tokens if torch.equal(weight, embedding.tokens) else weight  # tied: one tensor, not two


def _layer(weights: Weights, config: Any, layer: int) -> tuple[Block[Attention], Block[Mlp]]:
    at, d = f"transformer.h.{layer}", config.n_embd
    hidden = config.n_inner if config.n_inner is not None else 4 * d
    norms = [_norm(weights, f"{at}.ln_{k}", config) for k in (1, 2)]
    together = weights.take(f"{at}.attn.c_attn.weight", d, 3 * d), weights.take(f"{at}.attn.c_attn.bias", 3 * d)
    # Slices, not chunk's views: those may not outlive a step of training, which changes the weights in place.
    (w_q, b_q), (w_k, b_k), (w_v, b_v) = (tuple(x[..., k * d : (k + 1) * d] for x in together) for k in range(3))
    w_o = weights.take(f"{at}.attn.c_proj.weight", d, d)
    b_o = weights.take(f"{at}.attn.c_proj.bias", d)
    mlp = Mlp(
        w_1=weights.take(f"{at}.mlp.c_fc.weight", d, hidden),
        b_1=weights.take(f"{at}.mlp.c_fc.bias", hidden),
        w_2=weights.take(f"{at}.mlp.c_proj.weight", hidden, d),
        b_2=weights.take(f"{at}.mlp.c_proj.bias", d),
    )
    attention = Attention(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, n_heads=config.n_head)
    return Block(norms[0], attention), Block(norms[1], mlp)


def _norm(weights: Weights, at: str, config: Any) -> Norm:
    d = config.n_embd
    return Norm(weights.take(f"{at}.weight", d), weights.take(f"{at}.bias", d), config.layer_norm_epsilon)
