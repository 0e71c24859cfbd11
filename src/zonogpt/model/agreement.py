"""The IR against transformers: the same inputs must have the same outputs, but for rounding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zonogpt.errors import ModelError
from zonogpt.model.ir import ImageEmbedding, Model, TokenEmbedding
from zonogpt.model.replay import HuggingFaceModel
from zonogpt.model.sensitivity import sensitivity

CLOSE = 1e-10  # relative: float64 rounds by less in any network that is not ill-conditioned
TOKENS = 7


def require_agreement(model: Model, judge: HuggingFaceModel) -> None:
    """ModelError unless both have the same outputs on a few inputs, drawn from a fixed seed. `model` in float64."""
    for given in _inputs(model):
        image = isinstance(model.embedding, ImageEmbedding)
        try:
            theirs = judge.on_image(given, torch.float64) if image else judge.on_ids(given, torch.float64)
        except Exception as error:  # whatever its code says when it cannot be run
            raise ModelError(f"transformers cannot run this model: {type(error).__name__}: {error}") from error
        read = given if image else model.readable_ids(given)
        what = "a random image" if image else f"token ids {given.tolist()}"
        x = model.embedding(read)
        require_close(model, x, model.forward(x), theirs, what)


def require_close(model: Model, x: Tensor, ours: Tensor, theirs: Tensor, what: str) -> None:
    """ModelError unless the IR's outputs for the embedded tokens x and transformers' are equal up to rounding.

    Where they differ by more than CLOSE, the IR's own sensitivity to rounding decides. Outputs of the IR that are not
    finite prove nothing, and are left to whoever reads them.
    """
    ours, theirs = ours.cpu(), theirs.cpu()
    if not bool(ours.isfinite().all()):
        return
    off = float((ours - theirs).abs().max())
    if off <= CLOSE * float(ours.abs().max()):  # NaN is not
        return
    if off <= float(sensitivity(model, lambda shaken: shaken.forward(x * 1.0)).max()):  # NaN allows nothing
        return
    k = int((ours - theirs).abs().nan_to_num(nan=torch.inf).argmax())
    raise ModelError(
        f"transformers and zonogpt disagree about this model: on {what}, output {k} is {float(theirs[k]):.9g} there and"
        f" {float(ours[k]):.9g} here. Nothing is proved about it; please report this"
    )


def _inputs(model: Model) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    if isinstance(model.embedding, ImageEmbedding):
        for _ in range(2):
            yield torch.rand(model.embedding.image_size, dtype=torch.float64, generator=generator).to(model.device)
        return
    assert isinstance(model.embedding, TokenEmbedding)
    vocabulary, n_positions = len(model.embedding.tokens), len(model.embedding.positions)
    for length in sorted({1, min(TOKENS, n_positions)}):
        ids = torch.randint(vocabulary, (length,), generator=generator).to(model.device)
        yield ids
        if model.pad_token_id is not None and 0 <= model.pad_token_id < vocabulary and length > 2:
            padded = ids.clone()
            padded[-2:] = model.pad_token_id
            yield padded
