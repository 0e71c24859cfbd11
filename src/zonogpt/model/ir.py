"""The network that is verified: its only definition, and its exact forward pass.

embedding -> nodes, one after the other (model/nodes.py) -> head
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from zonogpt.errors import ModelError, SpecError
from zonogpt.model.nodes import Head, Node, Norm
from zonogpt.model.original import Original
from zonogpt.model.tokenizer import Text, Tokenizer
from zonogpt.support.tensors import moved

if TYPE_CHECKING:
    from zonogpt.model.identity import ModelFiles


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
        """How many numbers move with one token: all features of its embedding."""
        return self.tokens.shape[1]

    def __call__(self, ids: Tensor) -> Tensor:  # (S,) -> (S, d)
        return self.tokens[ids] + self.positions[: ids.shape[0]]


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A network, from `zonogpt.load`.

    embedding, blocks, head: the network itself.
    architecture: Hugging Face's class name.
    name: where it came from, for people.
    pad_token_id: sequence classifiers read the last token that is not padding.
    source: the Hugging Face model it was read from, which judges counterexamples; None if it was made by hand.
    problem: config.problem_type of a classifier: what its outputs mean.
    weights, stored: the types of the weights, as transformers holds them ("float16", "bfloat16+float32") and as the
        checkpoint has them.
    labels: the names of the outputs; None if they have none.
    folder, files: its folder, and the files that it was read from; None for an object.
    tokenizer: the one that `load` was given; None: the one in the folder is used.
    """

    embedding: ImageEmbedding | TokenEmbedding
    blocks: tuple[Node, ...]
    head: Head
    architecture: str
    name: str
    pad_token_id: int | None = None
    source: Original | None = field(default=None, repr=False)
    problem: str | None = None
    weights: str = "float32"
    stored: str = "float32"
    labels: tuple[str, ...] | None = None
    folder: Path | None = field(default=None, compare=False)
    files: ModelFiles | None = field(default=None, compare=False)
    tokenizer: Tokenizer | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        outputs = f"{self.n_outputs} outputs" if self.labels is None else f"outputs {', '.join(self.labels)}"[:60]
        return (
            f"Model({self.name!r}, {self.architecture}: {self.n_layers} layers, width {self.width},"
            f" {self.n_heads} heads, reads {self.embedding.reads}, {outputs})"
        )

    @property
    def predicts_tokens(self) -> bool:
        """Whether the outputs are scores of the next token."""
        return self.architecture == "GPT2LMHeadModel"

    @property
    def width(self) -> int:
        """d: the features of a token."""
        return self.head.weight.shape[0]

    @property
    def n_outputs(self) -> int:
        return self.head.weight.shape[1]

    @property
    def n_heads(self) -> int:
        return max([1, *(block.shape.heads for block in self.blocks)])

    @property
    def hidden(self) -> int:
        """f: the largest number of hidden units in a block; 0 if no block has any."""
        return max((block.shape.hidden for block in self.blocks), default=0)

    @property
    def n_layers(self) -> int:
        """The number of blocks in which tokens see each other."""
        return sum(block.shape.heads > 0 for block in self.blocks)

    @property
    def causal(self) -> bool:
        """Whether no token ever sees a later one."""
        return all(block.shape.causal for block in self.blocks)

    @property
    def norms(self) -> list[Norm]:
        found = [norm for block in self.blocks for norm in block.norms]
        return found if self.head.norm is None else [*found, self.head.norm]

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def converted(self, device: torch.device, dtype: torch.dtype) -> Model:
        """A copy with blocks and head on `device` in `dtype`. The embedding stays: specs hold what runs need of it."""
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
        raise SpecError(
            f"{model.name} reads texts, not images; use embedding_ball (--text or --ids on the command line)"
        )
    return model.embedding


def token_embedding(model: Model) -> TokenEmbedding:
    """SpecError if the model reads images."""
    if not isinstance(model.embedding, TokenEmbedding):
        raise SpecError(f"{model.name} reads images, not texts; use image_ball (--image on the command line)")
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
    kind = str(getattr(image, "dtype", ""))
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
        raise SpecError(
            f"the image has dtype {kind or tensor.dtype}; pixels must be floats in [0, 1] (divide bytes by 255)"
        )
    tensor = tensor.to(torch.float64)
    if not bool(((tensor >= 0) & (tensor <= 1)).all()):  # NaN fails this too
        raise SpecError(
            f"pixels must lie in [0, 1]; this image spans [{float(tensor.min()):g}, {float(tensor.max()):g}]"
        )
    return tensor.to(device=model.device, dtype=torch.float64, copy=True)  # the caller may use the array again


def as_ids(model: Model, ids: object) -> Tensor:
    """`ids` as a 1-D integer tensor on the model's device, or SpecError if the model cannot read them.

    A list, an array, a `Text`, or what a tokenizer of transformers returns for one text: shape (S,) or (1, S).
    """
    check_model(model)
    embedding = token_embedding(model)
    if isinstance(ids, str):
        raise SpecError("a text is read by zonogpt.text(model, ...); token ids are a list of integers")
    try:
        tensor = torch.as_tensor(ids.ids if isinstance(ids, Text) else ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"token ids must be a list of integers: {str(error).splitlines()[0]}") from error
    vocabulary, n_positions = embedding.tokens.shape[0], embedding.positions.shape[0]
    _check_plain(tensor, "token ids")
    if tensor.dim() == 2 and len(tensor) == 1:
        tensor = tensor[0]
    not_integers = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    if tensor.dim() != 1 or not_integers or tensor.numel() == 0:
        raise SpecError(
            f"token ids must be one non-empty list of integers, of shape (S,) or (1, S);"
            f" got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    tensor = tensor.to(torch.long)
    if tensor.numel() > n_positions:
        raise SpecError(f"{tensor.numel()} token ids, but this model has {n_positions} positions")
    if int(tensor.min()) < 0 or int(tensor.max()) >= vocabulary:
        raise SpecError(f"token ids must lie in 0..{vocabulary - 1}; got {int(tensor.min())}..{int(tensor.max())}")
    return tensor.to(model.device, copy=True)  # the caller may use the array again


def _check_plain(tensor: Tensor, what: str) -> None:
    kind = "on the meta device" if tensor.is_meta else "quantised" if tensor.is_quantized else str(tensor.layout)
    if kind != "torch.strided":
        raise SpecError(f"{what} must be plain numbers in memory; this tensor is {kind}")
