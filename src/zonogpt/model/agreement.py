"""The IR against transformers: the same inputs must have the same outputs, but for rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from zonogpt.errors import ModelError
from zonogpt.model.ir import ImageEmbedding, Model, TokenEmbedding
from zonogpt.model.replay import HuggingFaceModel
from zonogpt.tensors import map_tensors

CLOSE = 1e-10  # relative: float64 rounds by less in any network that is not ill-conditioned
SHAKE = 2.0**-40  # relative; some thousand times what float64 rounds anywhere on the way
TOKENS = 7


def require_agreement(model: Model, judge: HuggingFaceModel) -> None:
    """ModelError unless both have the same outputs on a few inputs, drawn from a fixed seed. `model` in float64."""
    for given in _inputs(model):
        image = isinstance(model.embedding, ImageEmbedding)
        theirs = judge.on_image(given, torch.float64) if image else judge.on_ids(given, torch.float64)
        read = given if image else model.readable_ids(given)
        what = "a random image" if image else f"token ids {given.tolist()}"
        x = model.embedding(read)
        require_close(model, x, model.forward(x), theirs, what)


def require_close(model: Model, x: Tensor, ours: Tensor, theirs: Tensor, what: str) -> None:
    """ModelError unless the IR's outputs for the embedded tokens x and transformers' are equal up to rounding.

    Where they differ by more than CLOSE, the IR's own sensitivity decides: what changes of tokens and weights by SHAKE
    do to the outputs. Outputs of the IR that are not finite prove nothing, and are left to whoever reads them.
    """
    ours, theirs = ours.cpu(), theirs.cpu()
    if not bool(ours.isfinite().all()):
        return
    off = float((ours - theirs).abs().max())
    if off <= CLOSE * float(ours.abs().max()):  # NaN is not
        return
    if off <= max(sensitivity(model, x, seed) for seed in range(3)):
        return
    k = int((ours - theirs).abs().nan_to_num(nan=torch.inf).argmax())
    raise ModelError(
        f"transformers and zonogpt disagree about this model: on {what}, output {k} is {float(theirs[k]):.9g} there and"
        f" {float(ours[k]):.9g} here. Nothing is proved about it; please report this"
    )


def sensitivity(model: Model, x: Tensor, seed: int) -> float:
    """How far the outputs move when every token and weight changes by SHAKE, in one direction or the other."""
    generator = torch.Generator().manual_seed(seed)

    def shaken(t: Tensor) -> Tensor:
        signs = torch.randint(0, 2, t.shape, generator=generator).to(t) * 2 - 1
        return t * (1 + SHAKE * signs)

    other = replace(model, blocks=map_tensors(model.blocks, shaken), head=map_tensors(model.head, shaken))
    off = (other.forward(shaken(x)) - model.forward(x)).abs().max()
    return float(off) if bool(off.isfinite()) else 0.0


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
