"""The network that is verified: its only definition, and its exact forward pass.

Shapes: S tokens, d features, H heads of width e = d / H, f hidden units. Weights keep Hugging Face's (in, out)
orientation, so a layer is `x @ weight + bias`. A model is

    embedding -> 2 * n_layer residual blocks (attention, MLP, attention, ...) -> final LayerNorm -> pool -> linear
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from zonogpt.errors import ModelError, SpecError
from zonogpt.model.original import Original
from zonogpt.support.tensors import moved


# Models and their parts are equal only where they are the same object.
@dataclass(frozen=True, eq=False)
class LayerNorm:
    gamma: Tensor  # (d,)
    beta: Tensor  # (d,)
    tau: float  # added to the variance

    def __call__(self, x: Tensor) -> Tensor:  # (..., d) -> (..., d)
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.tau)


@dataclass(frozen=True, eq=False)
class AttentionBlock:
    """x + W_o concat_h(softmax(Q_h K_h^T / sqrt(e)) V_h) + b_o, with Q | K | V = W_qkv LN(x) + b_qkv."""

    norm: LayerNorm
    w_qkv: Tensor  # (d, 3 d)
    b_qkv: Tensor  # (3 d,)
    w_o: Tensor  # (d, d)
    b_o: Tensor  # (d,)
    n_heads: int
    causal: bool = True

    kind = "attention"

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.w_o.shape[0] // self.n_heads)

    @property
    def projections(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_q, W_k, W_v, (d, d) each; the columns are heads times features."""
        w_q, w_k, w_v = self.w_qkv.chunk(3, dim=-1)
        return w_q, w_k, w_v

    def split_heads(self, x: Tensor) -> Tensor:  # (..., S, d) -> (..., H, S, e)
        return x.unflatten(-1, (self.n_heads, -1)).transpose(-3, -2)

    def join_heads(self, x: Tensor) -> Tensor:  # (..., H, S, e) -> (..., S, d)
        return x.transpose(-3, -2).flatten(-2)

    def visible(self, n_tokens: int, padding: Tensor | None = None) -> Tensor:
        """(S, S) booleans: may query i look at key j.

        With `padding` (B,), (B, 1, S, S): so many tokens in front of each sequence are none of its own. Each of them
        sees itself and nothing else, and no other token sees it.
        """
        full = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=self.w_o.device)
        seen = full.tril() if self.causal else full
        if padding is None:
            return seen
        real = torch.arange(n_tokens, device=seen.device) >= padding[:, None]  # (B, S)
        itself = torch.eye(n_tokens, dtype=torch.bool, device=seen.device)
        return (seen & real[:, None] & real[..., None] | itself)[:, None]

    def __call__(self, x: Tensor, padding: Tensor | None = None) -> Tensor:  # (..., S, d) -> (..., S, d)
        q, k, v = map(self.split_heads, (self.norm(x) @ self.w_qkv + self.b_qkv).chunk(3, dim=-1))
        scores = (q @ k.transpose(-1, -2)) * self.scale  # (..., H, S, S)
        scores = scores.masked_fill(~self.visible(x.shape[-2], padding), -math.inf)
        return x + self.join_heads(scores.softmax(-1) @ v) @ self.w_o + self.b_o


@dataclass(frozen=True, eq=False)
class MlpBlock:
    """x + W_2 gelu(W_1 LN(x) + b_1) + b_2, with the tanh form of GELU."""

    norm: LayerNorm
    w_1: Tensor  # (d, f)
    b_1: Tensor  # (f,)
    w_2: Tensor  # (f, d)
    b_2: Tensor  # (d,)

    kind = "mlp"

    def __call__(self, x: Tensor) -> Tensor:  # (..., S, d) -> (..., S, d)
        return x + F.gelu(self.norm(x) @ self.w_1 + self.b_1, approximate="tanh") @ self.w_2 + self.b_2


Block = AttentionBlock | MlpBlock


@dataclass(frozen=True, eq=False)
class ImageEmbedding:
    """An image is cut into patches, row by row; each patch, flattened row by row, is projected to one token."""

    weight: Tensor  # (pixels, d)
    bias: Tensor  # (d,)
    positions: Tensor  # (S, d)
    image_size: tuple[int, int]
    patch_size: tuple[int, int]

    reads: ClassVar[str] = "images"

    @property
    def inputs_per_token(self) -> int:
        return self.weight.shape[0]

    def patches(self, image: Tensor) -> Tensor:  # (..., height, width) -> (..., S, pixels)
        (height, width), (ph, pw) = self.image_size, self.patch_size
        grid = image.unflatten(-1, (width // pw, pw)).unflatten(-3, (height // ph, ph))
        return grid.transpose(-3, -2).flatten(-2).flatten(-3, -2)

    def __call__(self, image: Tensor) -> Tensor:  # (..., height, width) -> (..., S, d)
        return self.patches(image) @ self.weight + self.bias + self.positions


@dataclass(frozen=True, eq=False)
class TokenEmbedding:
    tokens: Tensor  # (vocabulary, d)
    positions: Tensor  # (n_positions, d)

    reads: ClassVar[str] = "texts"

    @property
    def inputs_per_token(self) -> int:
        """Of a token that moves: its embedding."""
        return self.tokens.shape[1]

    def __call__(self, ids: Tensor) -> Tensor:  # (S,) -> (S, d)
        return self.tokens[ids] + self.positions[: ids.shape[0]]


@dataclass(frozen=True, eq=False)
class Head:
    """Final LayerNorm, then the mean over tokens or the last token, then a linear map to the outputs."""

    norm: LayerNorm
    pool: Literal["mean", "last"]
    weight: Tensor  # (d, outputs)
    bias: Tensor | None  # (outputs,)

    def pool_weights(self, n_tokens: int) -> Tensor:
        """(S,): the pooled vector is the sum of these weights times the tokens."""
        if self.pool == "mean":
            return self.weight.new_full((n_tokens,), 1.0 / n_tokens)
        return F.one_hot(torch.tensor(n_tokens - 1), n_tokens).to(self.weight)

    def __call__(self, x: Tensor) -> Tensor:  # (..., S, d) -> (..., outputs)
        n = self.norm(x)
        out = (n.mean(-2) if self.pool == "mean" else n[..., -1, :]) @ self.weight
        return out if self.bias is None else out + self.bias


@dataclass(frozen=True, eq=False)
class Model:
    embedding: ImageEmbedding | TokenEmbedding
    blocks: tuple[Block, ...]
    head: Head
    architecture: str  # Hugging Face's class name
    name: str  # where it came from, for people
    pad_token_id: int | None = None  # sequence classifiers read the last token that is not padding
    source: Original | None = field(default=None, repr=False)  # what it was read from; None if made by hand
    problem: str | None = None  # config.problem_type of a classifier: what its outputs mean
    weights: str = "float32"  # the types in which transformers holds the weights, as "float16" or "bfloat16+float32"
    stored: str = "float32"  # the types in the checkpoint

    @property
    def width(self) -> int:
        return self.head.norm.gamma.shape[0]

    @property
    def n_outputs(self) -> int:
        return self.head.weight.shape[1]

    @property
    def n_heads(self) -> int:
        return next((block.n_heads for block in self.blocks if isinstance(block, AttentionBlock)), 1)

    @property
    def hidden(self) -> int:
        """f, the hidden units of an MLP block; 0 without one."""
        return max((block.w_1.shape[1] for block in self.blocks if isinstance(block, MlpBlock)), default=0)

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def converted(self, device: torch.device, dtype: torch.dtype) -> Model:
        """With blocks and head on `device` in `dtype`; the embedding stays: specs hold what is needed of it."""
        return replace(self, blocks=moved(self.blocks, device, dtype), head=moved(self.head, device, dtype))

    def forward(self, x: Tensor) -> Tensor:  # embedded tokens (..., S, d) -> outputs (..., K)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def readable_ids(self, ids: Tensor) -> Tensor:
        """The ids up to the token the head reads; by causality what follows it cannot matter."""
        if self.architecture == "GPT2ForSequenceClassification" and self.pad_token_id is not None:
            real = (ids != self.pad_token_id).nonzero()
            return ids[: int(real.max()) + 1] if real.numel() else ids[:1]
        return ids


def check_model(model: object) -> None:
    if not isinstance(model, Model):
        raise ModelError(f"a model of zonogpt is needed, from zonogpt.load; got {type(model).__name__}")


def image_embedding(model: Model) -> ImageEmbedding:
    """SpecError if the model reads texts."""
    if not isinstance(model.embedding, ImageEmbedding):
        raise SpecError(f"{model.name} reads token ids, not images; use embedding_ball (--ids on the command line)")
    return model.embedding


def token_embedding(model: Model) -> TokenEmbedding:
    """SpecError if the model reads images."""
    if not isinstance(model.embedding, TokenEmbedding):
        raise SpecError(f"{model.name} reads images, not token ids; use image_ball (--image on the command line)")
    return model.embedding


def logits(model: Model, image_or_ids: object) -> Tensor:
    """The model's exact outputs for one image (height, width) in [0, 1] or one list of token ids.

    For a language model: the scores of the next token after the last id.
    """
    check_model(model)
    if model.embedding.reads == "images":
        return model.forward(model.embedding(as_image(model, image_or_ids).to(model.dtype)))
    return model.forward(model.embedding(model.readable_ids(as_ids(model, image_or_ids))))


def as_image(model: Model, image: object) -> Tensor:
    """`image` in float64 on the model's device, or SpecError if it is not an image for this model."""
    check_model(model)
    image_size = image_embedding(model).image_size
    try:
        tensor = torch.as_tensor(image)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"the image must be an array of pixels, not {type(image).__name__}: {error}") from error
    _check_plain(tensor, "the image")
    if tuple(tensor.shape) != image_size:
        raise SpecError(
            f"the image has shape {tuple(tensor.shape)}; this model reads {image_size} (height, width), one channel"
        )
    if not tensor.is_floating_point():
        raise SpecError(f"the image has dtype {tensor.dtype}; pixels must be floats in [0, 1] (divide bytes by 255)")
    tensor = tensor.to(torch.float64)
    if not bool(((tensor >= 0) & (tensor <= 1)).all()):  # NaN fails this too
        raise SpecError(
            f"pixels must lie in [0, 1]; this image spans [{float(tensor.min()):g}, {float(tensor.max()):g}]"
        )
    return tensor.to(device=model.device, dtype=torch.float64, copy=True)  # the caller may use the array again


def as_ids(model: Model, ids: object) -> Tensor:
    """`ids` as a 1-D integer tensor on the model's device, or SpecError if the model cannot read them."""
    check_model(model)
    embedding = token_embedding(model)
    try:
        tensor = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"token ids must be a list of integers: {str(error).splitlines()[0]}") from error
    vocabulary, n_positions = embedding.tokens.shape[0], embedding.positions.shape[0]
    _check_plain(tensor, "token ids")
    not_integers = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    if tensor.dim() != 1 or not_integers or tensor.numel() == 0:
        raise SpecError(
            f"token ids must be one non-empty list of integers; got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    tensor = tensor.to(torch.long)
    if tensor.numel() > n_positions:
        raise SpecError(f"{tensor.numel()} token ids, but this model has {n_positions} positions")
    if int(tensor.min()) < 0 or int(tensor.max()) >= vocabulary:
        raise SpecError(f"token ids must lie in 0..{vocabulary - 1}; got {int(tensor.min())}..{int(tensor.max())}")
    return tensor.to(model.device)


def _check_plain(tensor: Tensor, what: str) -> None:
    kind = "on the meta device" if tensor.is_meta else "quantised" if tensor.is_quantized else str(tensor.layout)
    if kind != "torch.strided":
        raise SpecError(f"{what} must be plain numbers in memory; this tensor is {kind}")
