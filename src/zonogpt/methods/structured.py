"""Algorithm 1 of the paper: one loop over the residual blocks, and the variants as rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
from zonogpt.methods.method import Bounds, NonFiniteBlockError, Numerics, OnBlock, Progress
from zonogpt.methods.plan import Growth, Plan, Sizes, plan_structured, whole_sizes
from zonogpt.methods.rules import Rules
from zonogpt.model.activations import GELU_TANH
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model
from zonogpt.model.nodes import Node
from zonogpt.spec.inputs import centre_and_radius
from zonogpt.spec.spec import Spec
from zonogpt.transforms.execution import embedding_rounding
from zonogpt.transforms.structured.attention import fused_attention
from zonogpt.transforms.structured.decomposed_attention import decomposed_attention
from zonogpt.transforms.structured.head import claim_lower_bounds
from zonogpt.transforms.structured.mlp import fused_mlp, sequential_mlp
from zonogpt.transforms.structured.widths import Widths

NORMS, ACTIVATIONS = frozenset({"LayerNorm"}), frozenset({GELU_TANH})  # that the transforms can bound
EXECUTED = frozenset({"attention", "mlp", "LayerNorm", "tanh-GELU"})  # for which they heed `arithmetic`


@dataclass(frozen=True)
class Transform:
    """A bound of one block over a structured zonotope, and how it changes the number of generators."""

    bound: Callable[[Any, StructuredZonotope, Arithmetic], tuple[StructuredZonotope, Widths]]
    growth: Growth


@dataclass(frozen=True)
class StructuredMethod:
    """A variant: which transform each kind of block gets, and whether the input's generators are shared or local."""

    name: str
    transforms: Mapping[str, Transform]
    start: Callable[[Tensor, Tensor, int], StructuredZonotope]
    summary: str
    rounding_bounded: bool = True

    @property
    def rules(self) -> Rules:
        return Rules(frozenset(self.transforms), NORMS, ACTIVATIONS, EXECUTED)

    def sizes(self, model: Model, spec: Spec) -> Sizes:
        return whole_sizes(model, spec)

    def plan(self, sizes: Sizes, numerics: Numerics) -> Plan:
        growth = {kind: transform.growth for kind, transform in self.transforms.items()}
        pool = pool_limit(sizes.n_tokens, sizes.width, numerics.dtype, numerics.budget_bytes)
        return plan_structured(sizes, growth, self.start is from_promoted, pool, numerics.dtype.itemsize)

    def for_run(self, model: Model, specs: Sequence[Spec], numerics: Numerics) -> StructuredMethod:
        return self

    def batches(self, model: Model, specs: Sequence[Spec], numerics: Numerics) -> list[list[int]]:
        """One at a time: the pool is for one input."""
        return [[i] for i in range(len(specs))]

    def bound_many(
        self, model: Model, specs: Sequence[Spec], numerics: Numerics, on_block: OnBlock | None
    ) -> list[Bounds]:
        return [self.bound(model, spec, numerics, on_block) for spec in specs]

    def bound(self, model: Model, spec: Spec, numerics: Numerics, on_block: OnBlock | None = None) -> Bounds:
        """Lower bounds of the claim's rows over the input set: centre in the model's dtype, generators in the run's."""
        arithmetic = numerics.arithmetic
        pool = pool_limit(spec.input.n_tokens, model.width, numerics.dtype, numerics.budget_bytes)
        z = settled(self.initial(spec, pool, numerics.dtype, arithmetic))
        entries: list[LedgerEntry] = []
        blocks = len(model.blocks)
        for t, block in enumerate(model.blocks, start=1):
            if on_block is not None:
                on_block(Progress(t, blocks, block.kind, done=(t - 1) / blocks))
            try:
                z, widths = self.step(block, z, arithmetic)
            except NonFiniteBoundError as error:
                raise NonFiniteBlockError(t, block.kind, error.step) from error
            boxed = z.b.mean()
            z = reduce(z, pool)
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

    def initial(self, spec: Spec, pool: int, dtype: torch.dtype, arithmetic: Arithmetic = "real") -> StructuredZonotope:
        """The input set as embedded tokens, with at most `pool` generators per token."""
        centre, radius = centre_and_radius(spec.input)
        z = self.start(spec.input.embed(centre), spec.input.embed.local_generators(radius), pool)
        # Generators are products, off by a unit.
        lost = embedding_rounding(spec.input, centre, arithmetic) + gamma(2, z.c.dtype) * z.symbol_radius
        return cast(dataclasses.replace(z, b=up(z.b + lost)), dtype)

    def step(
        self, block: Node, z: StructuredZonotope, arithmetic: Arithmetic = "real"
    ) -> tuple[StructuredZonotope, Widths]:
        """The set behind one block, before the reduction, and its widths."""
        return self.transforms[block.kind].bound(block, z, arithmetic)


def pool_limit(n_tokens: int, width: int, dtype: torch.dtype, budget_bytes: int | None) -> int:
    """Generators a token may keep. Without a budget: the paper's number, 512 MiB counted in float32, in any dtype."""
    if budget_bytes is None:
        return generator_limit(n_tokens, width, POOL_BYTES, 4)
    return generator_limit(n_tokens, width, budget_bytes, dtype.itemsize)


ATTENTION = {
    "fused": Transform(
        fused_attention, Growth(lambda sizes, shape: sizes.width + shape.heads * sizes.n_tokens, boxes=True)
    ),
    "decomposed": Transform(decomposed_attention, Growth(lambda sizes, shape: 0, boxes=True)),
}
MLP = {
    "sequential": Transform(sequential_mlp, Growth(lambda sizes, shape: sizes.width + shape.hidden, boxes=False)),
    "fused": Transform(fused_mlp, Growth(lambda sizes, shape: 0, boxes=True)),
}
START = {"promoted": from_promoted, "literal": from_local}

# name: transform of attention, transform of the MLP, kind of the input's generators
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
        {"attention": ATTENTION[attention], "mlp": MLP[mlp]},
        START[start],
        f"{attention} attention, {mlp} MLP, {start} input",
    )
    for name, (attention, mlp, start) in TABLE.items()
}
