"""Method E's forward pass: it takes the input sets through all blocks and keeps what the backward pass needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.finite import NonFiniteBoundError
from zonogpt.domains.rounding import gamma, up
from zonogpt.methods.method import NonFiniteBlockError
from zonogpt.methods.prefixes import BatchPrefix, PrefixCache, first_moving
from zonogpt.methods.start import Start, start
from zonogpt.methods.walk import Step, Walk
from zonogpt.methods.work import Tick, nobody
from zonogpt.model.nodes import size_of
from zonogpt.spec.spec import Spec
from zonogpt.transforms.ellipsoidal.norm import NormStep, norm_step
from zonogpt.transforms.execution import output_error


@dataclass(frozen=True)
class Tape:
    """What the backward pass needs from the forward pass. Besides the prefix cache, only its size grows with depth."""

    start: Start
    steps: list[Step]
    head: NormStep
    value: Tensor  # (B, K): the rows at the centre
    rounding: Tensor  # (B, K): by how much the rows may be off, at the centre and behind the final LayerNorm
    rows: Tensor  # (B, K, d)
    pool: Tensor  # (n,): weights of the moving tokens
    limit: int  # bytes of temporaries


def forward(
    walk: Walk,
    specs: Sequence[Spec],
    dtype: torch.dtype,
    prefixes: PrefixCache | None = None,
    still: Tick = nobody,
) -> Tape:
    """The forward pass. Centres and ellipsoids have the model's type, the symbols' tangents `dtype`.

    `walk` has no padding and no prefix yet: they come from the specs. `prefixes` caches what inputs begin with. `still`
    is told of every block that tokens before the first that moves enter.
    """
    model, arithmetic = walk.model, walk.arithmetic
    S = max(spec.input.n_tokens for spec in specs)
    n = S if walk.every_token else max(spec.input.n_tokens - first_moving(model, spec) for spec in specs)
    begin = start(model, specs, dtype, n, arithmetic)
    prefixes = prefixes or PrefixCache(model, arithmetic)
    if prefixes.model is not model or prefixes.arithmetic != arithmetic:
        raise ValueError("what inputs begin with was remembered for another model, or other arithmetic")
    before = prefixes.of(specs, begin, walk.limit, still)
    walk = replace(walk, padding=begin.as_padding(), prefix=None if before is None else before.seen)
    z, steps = begin.z, list[Step]()
    for _, behind, step in walk.steps(begin.z):
        z = behind
        steps.append(step)
    try:
        return _at_the_head(walk, specs, begin, steps, before, z)
    except NonFiniteBoundError as error:
        raise NonFiniteBlockError(len(model.blocks) + 1, "head", error.step) from error


def _at_the_head(
    walk: Walk,
    specs: Sequence[Spec],
    begin: Start,
    steps: list[Step],
    before: BatchPrefix | None,
    z: EllipsoidalZonotope,
) -> Tape:
    """The tape, with the rows at the centre and the rounding behind the final LayerNorm."""
    model, limit = walk.model, walk.limit
    head, wide, d = model.head, model.dtype, model.width
    functionals = [spec.claim.functionals(head) for spec in specs]
    rows, offset = (torch.stack(part).to(wide) for part in zip(*functionals, strict=True))
    pool = head.read_weights(begin.length)
    summands = int((pool != 0).sum())
    norm = norm_step(head.layer_norm, z, limit).for_the_tape()
    pooled = torch.einsum("s,bsd->bd", pool[-z.n_tokens :], norm.centre)
    size = torch.einsum("s,bsd->bd", pool[-z.n_tokens :].abs(), norm.centre.abs() + norm.reach)
    lost = torch.zeros_like(offset)
    read = [norm]
    if before is not None and not head.reads_last:
        still, weight = norm_step(head.layer_norm, before.at_the_head(), limit), pool[: begin.before]
        pooled = pooled + torch.einsum("s,bsd->bd", weight, still.centre)
        size = size + torch.einsum("s,bsd->bd", weight.abs(), still.centre.abs() + still.reach)
        lost = still.loss(rows[:, :, None] * weight[:, None], limit).clamp(min=0)  # `up` is for sizes
        read = [still, norm]
    value = offset + (rows @ pooled[..., None]).squeeze(-1)
    # Rows are rounded differences of the head's columns: their rounding is relative to these, which are larger.
    outputs = size @ head.weight.abs() + size_of(head.bias)  # (B, outputs)
    magnitude = torch.stack([spec.claim.magnitude(x) for spec, x in zip(specs, outputs.double(), strict=True)]).to(wide)
    rounding = up(gamma(2 * (d + summands) + model.n_outputs + 16, wide) * magnitude + lost, d + summands)
    if walk.arithmetic == "float32":
        n = torch.cat([part.output_size for part in read], dim=1)
        off = output_error(head, pool[-n.shape[1] :], n, torch.cat([part.execution_error() for part in read], dim=1))
        moved = torch.stack([spec.claim.spread(x) for spec, x in zip(specs, off.double(), strict=True)])
        rounding = up(rounding + moved.to(wide), model.n_outputs)
    return Tape(begin, steps, norm, value, rounding, rows, pool[-z.n_tokens :], limit)
