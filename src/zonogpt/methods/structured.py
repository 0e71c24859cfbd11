"""Algorithm 1 of the paper: one loop over the residual blocks, and the variants as rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zonogpt.domains.finite import NonFiniteBoundError
from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import (
    POOL_BYTES,
    StructuredZonotope,
    cast,
    from_local,
    from_promoted,
    generator_limit,
    reduce,
    settled,
)
from zonogpt.methods.ledger import Ledger, LedgerEntry
from zonogpt.methods.method import Bounds, NonFiniteBlockError, OnBlock, Progress
from zonogpt.methods.plan import Plan, Sizes, plan_structured, whole_sizes
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import AttentionBlock, MlpBlock, Model
from zonogpt.spec.inputs import centre_and_radius
from zonogpt.spec.spec import Spec
from zonogpt.transforms.attention import fused_attention
from zonogpt.transforms.decomposed_attention import decomposed_attention
from zonogpt.transforms.execution import embedding_rounding
from zonogpt.transforms.head import claim_lower_bounds
from zonogpt.transforms.mlp import fused_mlp, sequential_mlp
from zonogpt.transforms.widths import Widths

Transform = Callable[[Any, StructuredZonotope, Arithmetic], tuple[StructuredZonotope, Widths]]


@dataclass(frozen=True)
class StructuredMethod:
    """A variant: which transform each block kind gets, and whether the input's generators are shared or local."""

    name: str
    attention: Transform
    mlp: Transform
    start: Callable[[Tensor, Tensor, int], StructuredZonotope]
    summary: str
    rounding_bounded: bool = True

    def sizes(self, model: Model, spec: Spec) -> Sizes:
        return whole_sizes(model, spec)

    def plan(self, sizes: Sizes, dtype: torch.dtype, budget_bytes: int | None) -> Plan:
        limit = pool_limit(sizes.n_tokens, sizes.width, dtype, budget_bytes)
        fused = self.attention is fused_attention, self.mlp is fused_mlp
        return plan_structured(sizes, *fused, self.start is from_promoted, limit, dtype.itemsize)

    def for_run(
        self, model: Model, specs: Sequence[Spec], budget_bytes: int | None, arithmetic: Arithmetic
    ) -> StructuredMethod:
        return self

    def batches(
        self, model: Model, specs: Sequence[Spec], dtype: torch.dtype, budget_bytes: int | None
    ) -> list[list[int]]:
        """One at a time: the pool is for one input."""
        return [[i] for i in range(len(specs))]

    def bound_many(
        self,
        model: Model,
        specs: Sequence[Spec],
        dtype: torch.dtype,
        budget_bytes: int | None,
        on_block: OnBlock | None,
        arithmetic: Arithmetic = "real",
    ) -> list[Bounds]:
        return [self.bound(model, spec, dtype, budget_bytes, on_block, arithmetic) for spec in specs]

    def bound(
        self,
        model: Model,
        spec: Spec,
        dtype: torch.dtype,
        budget_bytes: int | None,
        on_block: OnBlock | None,
        arithmetic: Arithmetic,
    ) -> Bounds:
        """Lower bounds of the claim's rows over the input set: centre in the model's dtype, generators in `dtype`."""
        limit = pool_limit(spec.input.n_tokens, model.width, dtype, budget_bytes)
        z = settled(self.initial(spec, limit, dtype, arithmetic))
        entries: list[LedgerEntry] = []
        blocks = len(model.blocks)
        for t, block in enumerate(model.blocks, start=1):
            if on_block is not None:
                on_block(Progress(t, blocks, block.kind))
            try:
                z, widths = self.step(block, z, arithmetic)
            except NonFiniteBoundError as error:
                raise NonFiniteBlockError(t, block.kind, error.step) from error
            boxed = z.b.mean()
            z = reduce(z, limit)
            widths["reduction"] = float(z.b.mean() - boxed)
            z = settled(z)
            entries += [LedgerEntry(t, block.kind, step, width) for step, width in widths.items()]
        rows, offset = spec.claim.functionals(model.head).to(model.dtype)
        try:
            margins, losses = claim_lower_bounds(model.head, z, rows, offset, spec.claim, arithmetic)
        except NonFiniteBoundError as error:
            raise NonFiniteBlockError(blocks + 1, "head", error.step) from error
        entries += [LedgerEntry(blocks + 1, "head", step, width) for step, width in losses.items()]
        return Bounds(margins, Ledger(tuple(entries)))

    def initial(
        self, spec: Spec, limit: int, dtype: torch.dtype, arithmetic: Arithmetic = "real"
    ) -> StructuredZonotope:
        """The input set as embedded tokens, with at most `limit` generators per token."""
        centre, radius = centre_and_radius(spec.input)
        z = self.start(spec.input.embed(centre), spec.input.embed.local_generators(radius), limit)
        # Generators are products, off by a unit.
        lost = embedding_rounding(spec.input, centre, arithmetic) + gamma(2, z.c.dtype) * z.symbol_radius
        return cast(dataclasses.replace(z, b=up(z.b + lost)), dtype)

    def step(
        self, block: AttentionBlock | MlpBlock, z: StructuredZonotope, arithmetic: Arithmetic = "real"
    ) -> tuple[StructuredZonotope, Widths]:
        """One residual block, before the reduction."""
        transform = self.attention if isinstance(block, AttentionBlock) else self.mlp
        return transform(block, z, arithmetic)


def pool_limit(n_tokens: int, width: int, dtype: torch.dtype, budget_bytes: int | None) -> int:
    """Generators a token may keep. Without a budget: the paper's number, 512 MiB counted in float32, in any dtype."""
    if budget_bytes is None:
        return generator_limit(n_tokens, width, POOL_BYTES, 4)
    return generator_limit(n_tokens, width, budget_bytes, dtype.itemsize)


_ATTENTION: dict[str, Transform] = {"fused": fused_attention, "decomposed": decomposed_attention}
_MLP: dict[str, Transform] = {"sequential": sequential_mlp, "fused": fused_mlp}
_START = {"promoted": from_promoted, "literal": from_local}

# name: attention, MLP, where the input's generators live
TABLE = {
    "A": ("fused", "sequential", "promoted"),
    "F": ("fused", "fused", "promoted"),
    "M": ("decomposed", "fused", "promoted"),
    "D": ("decomposed", "sequential", "promoted"),
    "A-literal": ("fused", "sequential", "literal"),
    "F-literal": ("fused", "fused", "literal"),
    "M-literal": ("decomposed", "fused", "literal"),
    "D-literal": ("decomposed", "sequential", "literal"),
}

VARIANTS = {
    name: StructuredMethod(
        name,
        _ATTENTION[attention],
        _MLP[mlp],
        _START[start],
        f"{attention} attention, {mlp} MLP, {start} input",
    )
    for name, (attention, mlp, start) in TABLE.items()
}
