"""Input sets: balls of pixels or of token embeddings, and how they look as embedded tokens.

Both are sets of raw numbers mapped to tokens by an affine map in which every raw number touches one token. So a box
is, exactly, a centre (S, d) and local generators (S, q, d): one generator per raw number, at its own token. An l_1 or
l_2 ball is the same with the noise in the unit ball of that norm; `lower` and `upper` are its bounding box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zonogpt.model.ir import ImageEmbedding, Model, TokenEmbedding
from zonogpt.support.tensors import ByValue


class InputBox(Protocol):
    @property
    def norm(self) -> float:
        """inf, 2 or 1: the norm of the ball around the anchor."""

    @property
    def radius(self) -> float: ...

    @property
    def lower(self) -> Tensor:
        """Smallest raw input, in the input's shape, float64."""

    @property
    def upper(self) -> Tensor: ...

    @property
    def anchor(self) -> Tensor:
        """The unperturbed raw input, inside the box."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def inputs_per_token(self) -> int:
        """How many raw numbers make a token that moves."""

    def first_moving(self) -> int:
        """The first token that any input of the set changes; the last one if none does."""

    def embed(self, raw: Tensor) -> Tensor:
        """Raw input (..., raw shape) -> embedded tokens (..., S, d), as the model computes them."""

    @property
    def summands(self) -> int:
        """How many products an embedded token is the sum of."""

    def embedding_size(self, raw: Tensor) -> Tensor:
        """(S, d): the sizes of what `embed` adds up, for one raw input."""

    def embedding_factors(self, raw: Tensor) -> Tensor:
        """(S, d): the sizes of the factors of these products, added up; 0 where `embed` multiplies nothing."""

    def local_generators(self, radius: Tensor) -> Tensor:
        """The image of the box's half-widths: (S, q, d), off by at most one unit each."""

    def belongs_to(self, model: Model) -> bool:
        """Whether this model would embed the raw inputs exactly so: a proof for another one would mean nothing."""


def centre_and_radius(box: InputBox) -> tuple[Tensor, Tensor]:
    """Midpoint and half-widths with [lower, upper] inside [centre - radius, centre + radius].

    Clipping makes boxes lopsided, so the centre is the midpoint, not the anchor. The radius is measured from the
    rounded midpoint to the farther side and rounded up, so no corner is lost; an exact 0 stays 0.
    """
    centre = (box.lower + box.upper) / 2
    radius = torch.maximum(box.upper - centre, centre - box.lower)
    return centre, torch.where(radius > 0, torch.nextafter(radius, torch.full_like(radius, torch.inf)), radius)


def centre_and_noise(box: InputBox) -> tuple[Tensor, Tensor, float]:
    """(centre, scale, p): every raw input of the set is centre + scale * noise with ||noise||_p <= 1.

    An l_1 or l_2 ball keeps the anchor as its centre, and what clipping takes away is not used.
    """
    if box.norm == math.inf:
        return *centre_and_radius(box), math.inf
    return box.anchor, torch.full_like(box.anchor, box.radius * (1 + 2**-50)), box.norm


@dataclass(frozen=True, eq=False)
class PixelBox(ByValue):
    embedding: ImageEmbedding
    lower: Tensor  # (height, width)
    upper: Tensor
    anchor: Tensor
    radius: float
    norm: float

    @property
    def n_tokens(self) -> int:
        return self.embedding.positions.shape[0]

    @property
    def inputs_per_token(self) -> int:
        return self.embedding.weight.shape[0]

    def first_moving(self) -> int:
        moves = self.embedding.patches(self.upper > self.lower).any(-1).nonzero()
        return int(moves[0]) if len(moves) else self.n_tokens - 1

    def embed(self, raw: Tensor) -> Tensor:
        return self.embedding(raw)

    @property
    def summands(self) -> int:
        return len(self.embedding.weight)

    def embedding_size(self, raw: Tensor) -> Tensor:
        it = self.embedding
        return it.patches(raw.abs()) @ it.weight.abs() + it.bias.abs() + it.positions.abs()

    def embedding_factors(self, raw: Tensor) -> Tensor:
        return self.embedding.patches(raw.abs()).sum(-1, keepdim=True) + self.embedding.weight.abs().sum(0)

    def local_generators(self, radius: Tensor) -> Tensor:
        return self.embedding.patches(radius)[:, :, None] * self.embedding.weight

    def belongs_to(self, model: Model) -> bool:
        theirs, ours = model.embedding, self.embedding
        return (
            isinstance(theirs, ImageEmbedding)
            and (theirs.image_size, theirs.patch_size) == (ours.image_size, ours.patch_size)
            and all(_same(getattr(theirs, name), getattr(ours, name)) for name in ("weight", "bias", "positions"))
        )


@dataclass(frozen=True, eq=False)
class EmbeddingBox(ByValue):
    """Token embeddings at some positions move; position embeddings and all other tokens stay."""

    base: Tensor  # (S, d): the embedded sequence, with zero in place of the token embedding where it moves
    ids: Tensor  # (n,), with any padding behind the last token that is read
    positions: tuple[int, ...]
    lower: Tensor  # (positions, d)
    upper: Tensor
    anchor: Tensor
    radius: float
    norm: float

    @property
    def n_tokens(self) -> int:
        return self.base.shape[0]

    @property
    def inputs_per_token(self) -> int:
        return self.base.shape[1]

    def first_moving(self) -> int:
        return min(self.positions)

    def embed(self, raw: Tensor) -> Tensor:  # (..., positions, d) -> (..., S, d)
        index = torch.tensor(self.positions, device=raw.device)
        return self.base.expand(*raw.shape[:-2], *self.base.shape).index_add(-2, index, raw)

    summands = 1

    def embedding_size(self, raw: Tensor) -> Tensor:
        index = torch.tensor(self.positions, device=raw.device)
        return self.base.abs().index_add(-2, index, raw.abs())

    def embedding_factors(self, raw: Tensor) -> Tensor:
        return torch.zeros_like(self.base)

    def local_generators(self, radius: Tensor) -> Tensor:
        d = self.base.shape[1]
        local = radius.new_zeros(self.base.shape[0], d, d)
        local[list(self.positions)] = torch.diag_embed(radius)
        return local

    def belongs_to(self, model: Model) -> bool:
        theirs = model.embedding
        if not isinstance(theirs, TokenEmbedding) or int(self.ids.max()) >= theirs.tokens.shape[0]:
            return False
        read = model.readable_ids(self.ids.to(model.device))
        if len(read) > theirs.positions.shape[0]:
            return False
        tokens, positions = theirs.tokens[read].double(), theirs.positions[: len(read)].double()
        return _same(tokens + positions, self.embed(self.anchor))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.double().cpu(), b.double().cpu()))
