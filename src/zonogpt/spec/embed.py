"""Affine maps from raw numbers to embedded tokens: pixels through patches, token embeddings at positions.

Every raw number affects one token. So a box of raw numbers is exactly a centre (S, d) and local generators (S, q, d),
with one generator per raw number, at its own token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.model.ir import ImageEmbedding, Model, image_embedding, token_embedding
from zonogpt.support.tensors import ByValue, moved

if TYPE_CHECKING:
    from zonogpt.model.original import Original


class EmbedMap(Protocol):
    @property
    def raw_shape(self) -> tuple[int, ...]:
        """The shape of one raw input."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def inputs_per_token(self) -> int:
        """How many raw numbers a moving token is made of."""

    @property
    def ids(self) -> Tensor | None:
        """The token ids of a text (n,), padding included; None: the raw input is an image."""

    @property
    def positions(self) -> tuple[int, ...] | None:
        """The token that each row of the raw input stands for; None: the raw input is an image."""

    def __call__(self, raw: Tensor) -> Tensor:
        """Raw input (..., raw shape) -> embedded tokens (..., S, d), as the model computes them."""

    @property
    def summands(self) -> int:
        """How many products are summed in each coordinate of an embedded token."""

    def sizes(self, raw: Tensor) -> Tensor:
        """(S, d): the absolute values of an embedded token's terms, added up, for one raw input."""

    def factors(self, raw: Tensor) -> Tensor:
        """(S, d): the absolute values of all factors of these products, added up; 0 where nothing is multiplied."""

    def local_generators(self, radius: Tensor) -> Tensor:
        """(S, q, d): the generators for half-widths (raw shape), each coefficient off by at most one unit."""

    def first_touched(self, moves: Tensor) -> int:
        """The first token that may change when the raw numbers marked in `moves` (raw shape, bool) change. If none
        may, a token before which none can."""

    def belongs_to(self, model: Model, anchor: Tensor) -> bool:
        """Whether this model embeds raw inputs exactly as this map does, `anchor` being the unperturbed one. A proof
        for another model would mean nothing."""

    def outputs_of(self, original: Original, raw: Tensor, dtype: torch.dtype) -> Tensor:
        """(outputs,): what the original answers to one raw input, computed in `dtype`."""


@dataclass(frozen=True, eq=False)
class PatchMap(ByValue):
    """Embeds pixels (height, width), all of which may move, through the patches of an image model."""

    embedding: ImageEmbedding

    ids = None
    positions = None

    @property
    def raw_shape(self) -> tuple[int, ...]:
        return self.embedding.image_size

    @property
    def n_tokens(self) -> int:
        return self.embedding.positions.shape[0]

    @property
    def inputs_per_token(self) -> int:
        return self.embedding.inputs_per_token

    def __call__(self, raw: Tensor) -> Tensor:
        return self.embedding(raw)

    @property
    def summands(self) -> int:
        return len(self.embedding.weight)

    def sizes(self, raw: Tensor) -> Tensor:
        it = self.embedding
        return it.patches(raw.abs()) @ it.weight.abs() + it.bias.abs() + it.positions.abs()

    def factors(self, raw: Tensor) -> Tensor:
        return self.embedding.patches(raw.abs()).sum(-1, keepdim=True) + self.embedding.weight.abs().sum(0)

    def local_generators(self, radius: Tensor) -> Tensor:
        return self.embedding.patches(radius)[:, :, None] * self.embedding.weight

    def first_touched(self, moves: Tensor) -> int:
        tokens = self.embedding.patches(moves).any(-1).nonzero()
        return int(tokens[0]) if len(tokens) else self.n_tokens - 1

    def belongs_to(self, model: Model, anchor: Tensor) -> bool:
        if model.embedding.reads != "images":
            return False
        theirs, ours = image_embedding(model), self.embedding
        return (theirs.image_size, theirs.patch_size) == (ours.image_size, ours.patch_size) and all(
            _same(getattr(theirs, name), getattr(ours, name)) for name in ("weight", "bias", "positions")
        )

    def outputs_of(self, original: Original, raw: Tensor, dtype: torch.dtype) -> Tensor:
        return original.on_image(raw, dtype)


@dataclass(frozen=True, eq=False)
class TokenMap(ByValue):
    """Embeds token embeddings (positions, d) at some positions: adds position embeddings, leaves all other tokens."""

    base: Tensor  # (S, d): the embedded sequence, with zeros in place of the token embeddings that move
    ids: Tensor  # (n,), including any padding after the last token that is read
    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        _require_places(self.positions, self.n_tokens)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        return len(self.positions), self.base.shape[1]

    @property
    def n_tokens(self) -> int:
        return self.base.shape[0]

    @property
    def inputs_per_token(self) -> int:
        return self.base.shape[1]

    def __call__(self, raw: Tensor) -> Tensor:  # (..., positions, d) -> (..., S, d)
        index = torch.tensor(self.positions, device=raw.device)
        return self.base.expand(*raw.shape[:-2], *self.base.shape).index_add(-2, index, raw)

    summands = 1

    def sizes(self, raw: Tensor) -> Tensor:
        index = torch.tensor(self.positions, device=raw.device)
        return self.base.abs().index_add(-2, index, raw.abs())

    def factors(self, raw: Tensor) -> Tensor:
        return torch.zeros_like(self.base)

    def local_generators(self, radius: Tensor) -> Tensor:
        d = self.base.shape[1]
        local = radius.new_zeros(self.base.shape[0], d, d)
        local[list(self.positions)] = torch.diag_embed(radius)
        return local

    def first_touched(self, moves: Tensor) -> int:
        rows = moves.any(-1).tolist()
        return min((at for at, moved in zip(self.positions, rows, strict=True) if moved), default=min(self.positions))

    def belongs_to(self, model: Model, anchor: Tensor) -> bool:
        if model.embedding.reads != "texts":
            return False
        theirs = token_embedding(model)
        if int(self.ids.max()) >= theirs.tokens.shape[0]:
            return False
        read = model.readable_ids(self.ids.to(model.device))
        if len(read) > theirs.positions.shape[0]:
            return False
        tokens, positions = theirs.tokens[read].double(), theirs.positions[: len(read)].double()
        return _same(tokens + positions, self(anchor))

    def outputs_of(self, original: Original, raw: Tensor, dtype: torch.dtype) -> Tensor:
        return original.on_embeddings(self.ids[: self.n_tokens], self.positions, raw, dtype)


def patch_map(model: Model) -> PatchMap:
    """The pixels of this image model, in float64; SpecError if it reads texts."""
    return PatchMap(moved(image_embedding(model), model.device, torch.float64))


def token_map(model: Model, ids: Tensor, positions: tuple[int, ...]) -> TokenMap:
    """The token embeddings at these positions of a text (n,), in float64; SpecError if the model reads images."""
    embedding = token_embedding(model)
    read = model.readable_ids(ids)
    _require_places(positions, len(read))
    base = embedding.tokens[read].double()
    base[list(positions)] = 0.0
    return TokenMap(base + embedding.positions[: len(read)].double(), ids, positions)


def _require_places(positions: tuple[int, ...], n_tokens: int) -> None:
    """SpecError unless the positions are distinct, in range and at least one.

    A position given twice would move its token twice as far as the bounds assume.
    """
    if len(set(positions)) < max(1, len(positions)) or not set(positions) <= set(range(n_tokens)):
        raise SpecError(f"positions must be distinct, at least one, in 0..{n_tokens - 1}; got {list(positions)}")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.double().cpu(), b.double().cpu()))
