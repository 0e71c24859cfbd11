"""The field's known methods in our own code: ibp, deepz, crown, covenn.

All of them read the network operator by operator (operators/network.py) and differ in what a value is. They are here
for comparison: plain, sound, and as precise as their idea allows without search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import dual_norm
from zonogpt.domains.finite import NonFiniteBoundError, require_finite
from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import rounded_up
from zonogpt.methods.ledger import Ledger
from zonogpt.methods.method import Bounds, NonFiniteBlockError, NotEnoughMemoryError, Numerics, OnBlock, Progress
from zonogpt.methods.operators.executions import EXECUTED, execution_of_block, execution_of_head
from zonogpt.methods.operators.graph import CrownOperators, GraphNode
from zonogpt.methods.operators.intervals import IntervalOperators
from zonogpt.methods.operators.network import BLOCKS, NORMS, Operators, V, block_output, claim, pooled
from zonogpt.methods.operators.plan import functional_bytes, plan_graph, plan_intervals, plan_zonotopes
from zonogpt.methods.operators.zonotopes import DenseZonotope, ZonotopeOperators
from zonogpt.methods.plan import Plan, Sizes, whole_sizes
from zonogpt.methods.rules import Rules
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model
from zonogpt.model.nodes import Head, Node
from zonogpt.spec.claims import Claim
from zonogpt.spec.inputs import centre_and_noise
from zonogpt.spec.spec import Spec
from zonogpt.transforms.activations import ACTIVATIONS
from zonogpt.transforms.execution import embedding_rounding

RULES = Rules(frozenset(BLOCKS), frozenset(NORMS), frozenset(ACTIVATIONS), EXECUTED)
ROWS = 1024  # claim rows that are bounded together: a language model has 50,256


@dataclass(frozen=True)
class Start:
    """The embedded input set: c + local noise, ||noise||_p <= 1, plus an interval."""

    c: Tensor  # (S, d)
    local: Tensor  # (S, q, d)
    p: float
    rounding: Tensor | None = None  # (S, d): by how much c and the noise are off

    @property
    def box(self) -> Interval:
        radius = up(dual_norm(self.local, self.p, 1), 2 * self.local.shape[1])
        radius = radius if self.rounding is None else radius + self.rounding
        return Interval(self.c - radius, self.c + radius).widened(gamma(2, self.c.dtype) * (self.c.abs() + radius))

    def lowest(self, A: Tensor) -> Tensor:
        """(R,): the smallest value of functionals (R, S, d) over the set, without its interval."""
        moved = torch.einsum("rsd,sqd->rsq", A, self.local).flatten(1)
        return (A * self.c).flatten(1).sum(1) - dual_norm(moved, self.p, 1)


@dataclass(frozen=True)
class Problem:
    """One input: its set, the claim folded into the head, and whom to tell about progress."""

    model: Model
    start: Start
    rows: Tensor  # (K, d)
    offset: Tensor  # (K,)
    row_sizes: Tensor  # (K, d): sizes of the terms that the rows are sums of
    on_block: OnBlock | None
    functional_bytes: int
    claim: Claim
    arithmetic: Arithmetic  # "float32" only for methods that bound rounding

    def tick(self, t: int) -> Callable[[], None]:
        """A function to be called, any number of times, while block t is bounded (from 1; the head is last)."""
        blocks = self.model.blocks
        kind = blocks[t - 1].kind if t <= len(blocks) else "head"
        progress = Progress(min(t, len(blocks)), len(blocks), kind, done=(t - 1) / (len(blocks) + 1))
        return lambda: None if self.on_block is None else self.on_block(progress)


class Analysis(Protocol[V]):
    """One run of a method: its values, and its operators, which may change from block to block."""

    @property
    def ops(self) -> Operators[V]: ...

    def begin(self) -> V:
        """The input set."""

    def at(self, tick: Callable[[], None]) -> None:
        """Called when a block or the head begins; `tick` is to be called now and then."""

    def behind(self, block: Node, before: V, x: V) -> tuple[V, tuple[Tensor, ...]]:
        """The block's output x in the form that the next block gets, and numbers that must be finite."""

    def lost(self, x: V) -> Tensor | None:
        """(K,): what the margins lose besides; None: nothing."""


def margins(run: Problem, analysis: Analysis[V]) -> Tensor:
    """(K,): lower bounds of the claim's rows. The one loop over the blocks."""
    x = analysis.begin()
    for t, block in enumerate(run.model.blocks, start=1):
        analysis.at(run.tick(t))
        x, numbers = analysis.behind(block, x, block_output(analysis.ops, block, x))
        _require_finite(t, block.kind, *numbers)
    analysis.at(run.tick(len(run.model.blocks) + 1))
    ops, head = analysis.ops, run.model.head
    pool = pooled(ops, head, x, run.start.c.shape[0])
    parts = zip(*(x.split(ROWS) for x in (run.rows, run.offset, run.row_sizes)), strict=True)
    found = torch.cat([ops.bounds(claim(ops, head, pool, *part)).lower[0] for part in parts])
    lost = analysis.lost(x)
    if lost is not None:
        found = found - lost - gamma(2, found.dtype) * (found.abs() + lost)
    _require_finite(len(run.model.blocks) + 1, "head", found)
    return found


class Ibp:
    def __init__(self, run: Problem) -> None:
        self.run, self.ops = run, IntervalOperators()

    def begin(self) -> Interval:
        return self.run.start.box

    def at(self, tick: Callable[[], None]) -> None:
        tick()

    def behind(self, block: Node, before: Interval, x: Interval) -> tuple[Interval, tuple[Tensor, ...]]:
        if self.run.arithmetic == "float32":
            x = x.widened(execution_of_block(block, before))
        return x, (x.lower, x.upper)

    def lost(self, x: Interval) -> Tensor | None:
        if self.run.arithmetic == "real":
            return None
        off = execution_of_head(self.run.model.head, x)
        return up(self.run.claim.spread(off.double()).to(off), self.run.model.n_outputs)


class DeepZ:
    """Generators are kept for good: memory grows with the square of S d, and with every operator."""

    def __init__(self, run: Problem) -> None:
        self.run = run
        token, index = (run.start.local.abs().amax(-1) > 0).nonzero().unbind(1)
        self.G = run.start.c.new_zeros(len(token), *run.start.c.shape)
        self.G[torch.arange(len(token), device=token.device), token] = run.start.local[token, index]
        self.ops = ZonotopeOperators(len(self.G), run.start.p, run.tick(1))

    def begin(self) -> DenseZonotope:
        return self.ops.zonotope(self.run.start.c, self.G)

    def at(self, tick: Callable[[], None]) -> None:
        self.ops.tick = tick

    def behind(self, block: Node, before: DenseZonotope, x: DenseZonotope) -> tuple[DenseZonotope, tuple[Tensor, ...]]:
        return x, (x.c, x.G)

    def lost(self, x: DenseZonotope) -> None:
        return None


class Crown:
    """All intermediate bounds by substitution down to the input itself."""

    def __init__(self, run: Problem) -> None:
        self.run, self.ops = run, CrownOperators(run.start.lowest, run.functional_bytes)

    def begin(self) -> GraphNode:
        return self.ops.start(self.run.start.c, self.run.start.box)

    def at(self, tick: Callable[[], None]) -> None:
        self.ops.tick = tick

    def behind(self, block: Node, before: GraphNode, x: GraphNode) -> tuple[GraphNode, tuple[Tensor, ...]]:
        everywhere = torch.stack([torch.ones_like(x.like), -torch.ones_like(x.like)])
        return x, (self.ops.lower(x, everywhere),)  # checked here, so that an error names the block

    def lost(self, x: GraphNode) -> None:
        return None


class CoVeNN(Crown):
    """Substitution down to the block's own input. The next block knows only an interval per entry."""

    def behind(self, block: Node, before: GraphNode, x: GraphNode) -> tuple[GraphNode, tuple[Tensor, ...]]:
        box = self.ops.bounds(x)
        start = Start(box.centre, torch.diag_embed(box.radius), torch.inf)  # a new graph: any value of the box
        tick, self.ops = self.ops.tick, CrownOperators(start.lowest, self.run.functional_bytes)
        self.ops.tick = tick
        return self.ops.start(start.c, box), (box.lower, box.upper)


def _require_finite(t: int, kind: str, *tensors: Tensor) -> None:
    try:
        require_finite("output", *tensors)
    except NonFiniteBoundError as error:
        raise NonFiniteBlockError(t, kind, error.step) from error


@dataclass(frozen=True)
class Baseline:
    name: str
    summary: str
    analysis: Callable[[Problem], Analysis[Any]]
    planned: Callable[[Sizes, Numerics], Plan]
    rounding_bounded: bool = False
    rules: Rules = RULES

    def sizes(self, model: Model, spec: Spec) -> Sizes:
        return whole_sizes(model, spec)

    def plan(self, sizes: Sizes, numerics: Numerics) -> Plan:
        return self.planned(sizes, numerics)

    def for_run(self, model: Model, specs: Sequence[Spec], numerics: Numerics) -> Baseline:
        return self

    def batches(self, model: Model, specs: Sequence[Spec], numerics: Numerics) -> list[list[int]]:
        return [[i] for i in range(len(specs))]

    def bound_many(
        self, model: Model, specs: Sequence[Spec], numerics: Numerics, on_block: OnBlock | None
    ) -> list[Bounds]:
        rounded = model.converted(model.device, numerics.dtype)
        return [self.bound(rounded, model.head, spec, numerics, on_block) for spec in specs]

    def bound(
        self, model: Model, head: Head, spec: Spec, numerics: Numerics, on_block: OnBlock | None = None
    ) -> Bounds:
        """Lower bounds of the claim's rows over the input set. Works in the model's dtype, on its device.

        `head` is the model's before it was rounded to that dtype: rows are differences, in which rounding would show.
        """
        budget = numerics.budget_bytes
        need = self.plan(self.sizes(model, spec), dataclasses.replace(numerics, dtype=model.dtype)).peak_bytes
        if budget is not None and need > budget:
            given = f"the budget is {budget / 2**20:,.0f} MiB"
            raise NotEnoughMemoryError(f"method {self.name} would need about {need / 2**20:,.0f} MiB here, {given}")
        start = _start(spec, model.dtype, numerics.arithmetic)
        rows, offset = spec.claim.functionals(head).to(model.dtype)
        sizes = spec.claim.functional_sizes(head).to(model.dtype)
        run = Problem(
            model, start, rows, offset, sizes, on_block, functional_bytes(budget), spec.claim, numerics.arithmetic
        )
        return Bounds(margins(run, self.analysis(run)), Ledger())


def _start(spec: Spec, dtype: torch.dtype, arithmetic: Arithmetic) -> Start:
    centre, scale, p = centre_and_noise(spec.input)
    wide, local = spec.input.embed(centre), spec.input.embed.local_generators(scale)
    c, narrow = wide.to(dtype), local.to(dtype)
    cast = dual_norm(local - narrow.to(local), p, 1) + gamma(2, local.dtype) * dual_norm(local, p, 1)
    lost = up(embedding_rounding(spec.input, centre, arithmetic) + (wide - c.to(wide)).abs() + cast, 2 * local.shape[1])
    return Start(c, narrow, p, rounded_up(lost, dtype))


def _plan_intervals(sizes: Sizes, numerics: Numerics) -> Plan:
    return plan_intervals(sizes, numerics.dtype.itemsize)


def _plan_zonotopes(sizes: Sizes, numerics: Numerics) -> Plan:
    return plan_zonotopes(sizes, numerics.dtype.itemsize)


def _plan_graph(sizes: Sizes, numerics: Numerics) -> Plan:
    return plan_graph(sizes, numerics.dtype.itemsize, numerics.budget_bytes, len(sizes.blocks) + 1)


def _plan_graphs(sizes: Sizes, numerics: Numerics) -> Plan:
    """The plan of covenn, whose graphs are of one block each."""
    return plan_graph(sizes, numerics.dtype.itemsize, numerics.budget_bytes, 1)


BASELINES = {
    method.name: method
    for method in (
        Baseline("ibp", "intervals", Ibp, _plan_intervals, rounding_bounded=True),
        Baseline("deepz", "dense zonotopes", DeepZ, _plan_zonotopes),
        Baseline("crown", "backward linear bounds to the input", Crown, _plan_graph),
        Baseline("covenn", "backward linear bounds block by block", CoVeNN, _plan_graphs),
    )
}
