"""Compares the IR with transformers: the same inputs must give the same outputs, up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from zonogpt.errors import ModelError
from zonogpt.model.ir import Model, image_embedding, token_embedding
from zonogpt.model.original import Original
from zonogpt.model.replay import HuggingFaceModel
from zonogpt.model.sensitivity import sensitivity
from zonogpt.support.tensors import fingerprint

CLOSE = 1e-10  # relative: float64 rounds by less in any network that is not ill-conditioned
TOKENS = 7


def require_agreement(model: Model, original: HuggingFaceModel) -> None:
    """ModelError unless both have the same outputs on a few inputs, drawn from a fixed seed. `model` in float64."""
    image = model.embedding.reads == "images"
    for given in _inputs(model):
        try:
            theirs = original.on_image(given, torch.float64) if image else original.on_ids(given, torch.float64)
        except Exception as error:  # its code may raise anything
            raise ModelError(f"transformers cannot run this model: {type(error).__name__}: {error}") from error
        read = given if image else model.readable_ids(given)
        what = "a random image" if image else f"token ids {given.tolist()}"
        x = model.embedding(read)
        _require_close(model, x, model.forward(x), theirs, original.name, what)


def require_agreement_at(
    model: Model, original: Original, x: Tensor, ours: Tensor, theirs: Callable[[], Tensor], what: str
) -> None:
    """ModelError unless the original's outputs, `theirs()`, are those of the IR, `ours`, for the embedded tokens x.

    A comparison that came out equal is remembered in `original.agreed` and not made again: radii share their centre.
    `model` in float64.
    """
    key = fingerprint((x, ours))
    if key not in original.agreed:
        _require_close(model, x, ours, theirs(), original.name, what)
        original.agreed.add(key)


def _require_close(model: Model, x: Tensor, ours: Tensor, theirs: Tensor, name: str, what: str) -> None:
    """ModelError unless the IR's outputs for the embedded tokens x and the other network's are equal up to rounding.

    Where they differ by more than CLOSE, the IR's own sensitivity to rounding decides. Outputs of the IR that are not
    finite are not compared: nothing can be proved with them.
    """
    ours, theirs = ours.cpu(), theirs.cpu()
    if not bool(ours.isfinite().all()):
        return
    difference = float((ours - theirs).abs().max())
    if difference <= CLOSE * float(ours.abs().max()):  # NaN is not
        return
    allowed = float(sensitivity(model, lambda shaken: shaken.forward(x * 1.0)).max())
    if difference <= allowed < torch.inf:  # NaN allows nothing either
        return
    k = int((ours - theirs).abs().nan_to_num(nan=torch.inf).argmax())
    raise ModelError(
        f"{name} and zonogpt's disagree: on {what}, output {k} is {float(theirs[k]):.9g} there and"
        f" {float(ours[k]):.9g} here. Nothing is proved about it; please report this"
    )


def _inputs(model: Model) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    if model.embedding.reads == "images":
        size = image_embedding(model).image_size
        for _ in range(2):
            yield torch.rand(size, dtype=torch.float64, generator=generator).to(model.device)
        return
    embedding = token_embedding(model)
    vocabulary, n_positions = len(embedding.tokens), len(embedding.positions)
    for length in sorted({1, min(TOKENS, n_positions)}):
        ids = torch.randint(vocabulary, (length,), generator=generator).to(model.device)
        yield ids
        if model.pad_token_id is not None and 0 <= model.pad_token_id < vocabulary and length > 2:
            padded = ids.clone()
            padded[-2:] = model.pad_token_id
            yield padded
