"""A spec: an input set and a claim about every output over it. Built here, checked here, trusted afterwards."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

import torch

from zonogpt.errors import SpecError
from zonogpt.model.ir import ImageEmbedding, Model, TokenEmbedding, as_ids, as_image
from zonogpt.spec.claims import LinearClaim, MarginClaim, linear_claim, margin_claim
from zonogpt.spec.inputs import EmbeddingBox, PixelBox
from zonogpt.tensors import moved


@dataclass(frozen=True)
class Spec:
    input: PixelBox | EmbeddingBox
    claim: MarginClaim | LinearClaim
    radius: float
    label: int | None  # None for a linear claim
    n_outputs: int

    def with_claim(self, rows: object, offset: object) -> Spec:
        """The same input set with the claim `rows @ output + offset > 0`, rows (K, outputs) and offset (K,)."""
        return dataclasses.replace(self, claim=linear_claim(rows, offset, self.n_outputs), label=None)


def image_ball(
    model: Model,
    image: object,
    radius: float,
    label: int | None = None,
    norm: float = math.inf,
    clip: tuple[float, float] = (0.0, 1.0),
) -> Spec:
    """All images within `radius` of `image` in every pixel, clipped to `clip`, keep their label.

    `image` is (height, width) with floats in [0, 1]; `label=None` means the model's own prediction.
    """
    pixels = as_image(model, image)
    assert isinstance(model.embedding, ImageEmbedding)  # as_image checked it
    check_ball(radius, norm)
    low, high = map(float, clip)
    anchor = pixels.double()
    if not (low < high and low <= float(anchor.min()) and float(anchor.max()) <= high):
        raise SpecError(f"clip {clip} must be (low, high) with the image inside")
    wide = moved(model.embedding, model.device, torch.float64)
    box = PixelBox(wide, (anchor - radius).clamp(min=low), (anchor + radius).clamp(max=high), anchor)
    return _spec(model, box, radius, label)


def embedding_ball(
    model: Model,
    input_ids: object,
    positions: Iterable[int],
    radius: float,
    label: int | None = None,
    norm: float = math.inf,
) -> Spec:
    """The token embeddings at `positions` (0-based over the ids) move within `radius` in every coordinate."""
    ids = as_ids(model, input_ids)
    check_ball(radius, norm)
    embedding = model.embedding
    assert isinstance(embedding, TokenEmbedding)  # as_ids checked it
    at = check_positions(positions, len(ids), len(model.readable_ids(ids)))
    ids = model.readable_ids(ids)
    anchor = embedding.tokens[ids[list(at)]].double()  # (positions, d)
    base = embedding.tokens[ids].double()
    base[list(at)] = 0.0
    base = base + embedding.positions[: len(ids)].double()
    return _spec(model, EmbeddingBox(base, at, anchor - radius, anchor + radius, anchor), radius, label)


def check_ball(radius: object, norm: float) -> None:
    if isinstance(radius, bool) or not isinstance(radius, Real) or not 0 <= float(radius) < math.inf:
        raise SpecError(f"the radius must be a finite number, at least 0; got {radius!r}")
    if norm != math.inf:
        raise SpecError(f"norm {norm!r} is not supported; use inf")


def check_positions(positions: Iterable[int], n_ids: int, n_read: int) -> tuple[int, ...]:
    try:
        at = tuple(operator.index(position) for position in positions)
    except TypeError as error:
        raise SpecError(f"positions must be a list of integers; got {positions!r}") from error
    if not at or len(set(at)) != len(at):
        raise SpecError(f"positions must be distinct and at least one; got {list(at)}")
    for position in at:
        if not 0 <= position < n_ids:
            raise SpecError(f"position {position} is out of range; the {n_ids} token ids have positions 0..{n_ids - 1}")
        if position >= n_read:
            raise SpecError(f"position {position} is padding after the last real token {n_read - 1}; it cannot matter")
    return at


def _spec(model: Model, box: PixelBox | EmbeddingBox, radius: float, label: int | None) -> Spec:
    if label is None:
        with torch.no_grad():
            output = model.forward(box.embed(box.anchor).to(model.dtype))
        if not bool(output.isfinite().all()):
            raise SpecError("the model's own output is NaN or infinite on this input: there is no answer to keep")
        label = int(output.argmax())
    claim = margin_claim(label, model.n_outputs)
    return Spec(box, claim, float(radius), claim.label, model.n_outputs)
