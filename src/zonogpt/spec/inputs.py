"""Input sets: boxes of pixels or of token embeddings, and how they look as embedded tokens.

Both are boxes of raw numbers mapped to tokens by an affine map in which every raw number touches one token. So a set
is, exactly, a centre (S, d) and local generators (S, q, d): one generator per raw number, at its own token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zonogpt.model.ir import ImageEmbedding


class InputBox(Protocol):
    @property
    def lower(self) -> Tensor:
        """Smallest raw input, in the input's shape, float64."""

    @property
    def upper(self) -> Tensor: ...

    @property
    def anchor(self) -> Tensor:
        """The unperturbed raw input, inside the box."""

    def embed(self, raw: Tensor) -> Tensor:
        """Raw input (..., raw shape) -> embedded tokens (..., S, d): what the model computes, exactly."""

    def local_generators(self, radius: Tensor) -> Tensor:
        """The image of the box's half-widths: (S, q, d)."""


def centre_and_radius(box: InputBox) -> tuple[Tensor, Tensor]:
    """Midpoint and half-widths with [lower, upper] inside [centre - radius, centre + radius].

    Clipping makes boxes lopsided, so the centre is the midpoint, not the anchor. The radius is measured from the
    rounded midpoint to the farther side, so rounding loses no corner.
    """
    centre = (box.lower + box.upper) / 2
    return centre, torch.maximum(box.upper - centre, centre - box.lower)


@dataclass(frozen=True)
class PixelBox:
    embedding: ImageEmbedding
    lower: Tensor  # (height, width)
    upper: Tensor
    anchor: Tensor

    def embed(self, raw: Tensor) -> Tensor:
        return self.embedding(raw)

    def local_generators(self, radius: Tensor) -> Tensor:
        return self.embedding.patches(radius)[:, :, None] * self.embedding.weight


@dataclass(frozen=True)
class EmbeddingBox:
    """Token embeddings at some positions move; position embeddings and all other tokens stay."""

    base: Tensor  # (S, d): the embedded sequence, with zero in place of the token embedding where it moves
    positions: tuple[int, ...]
    lower: Tensor  # (positions, d)
    upper: Tensor
    anchor: Tensor

    def embed(self, raw: Tensor) -> Tensor:  # (..., positions, d) -> (..., S, d)
        index = torch.tensor(self.positions, device=raw.device)
        return self.base.expand(*raw.shape[:-2], *self.base.shape).index_add(-2, index, raw)

    def local_generators(self, radius: Tensor) -> Tensor:
        d = self.base.shape[1]
        local = radius.new_zeros(self.base.shape[0], d, d)
        local[list(self.positions)] = torch.diag_embed(radius)
        return local
