"""The methods that the field knows, as our own code: ibp, deepz, crown, covenn.

All of them read the network operator by operator (operators/network.py) and differ in what a value is. They are here to
be compared with: plain, sound, and as precise as their idea allows without search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import dual_norm
from zonogpt.domains.finite import NonFiniteBoundError, require_finite
from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import rounded_up
from zonogpt.methods.ledger import Ledger
from zonogpt.methods.method import Bounds, NonFiniteBlockError, NotEnoughMemoryError, OnBlock, Progress
from zonogpt.methods.operators.executions import execution_of_block, execution_of_head
from zonogpt.methods.operators.graph import CrownOperators, Node
from zonogpt.methods.operators.intervals import IntervalOperators
from zonogpt.methods.operators.network import Operators, V, block_output, claim, pooled
from zonogpt.methods.operators.plan import functional_bytes, plan_graph, plan_intervals, plan_zonotopes
from zonogpt.methods.operators.zonotopes import ZonotopeOperators
from zonogpt.methods.plan import Plan, Sizes, whole_sizes
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Head, Model
from zonogpt.spec.claims import Claim
from zonogpt.spec.inputs import centre_and_noise
from zonogpt.spec.spec import Spec
from zonogpt.transforms.execution import embedding_rounding

ROWS = 1024  # claim rows that are bounded together: a language model has 50,256


@dataclass(frozen=True)
class Start:
    """The embedded input set: c + local noise, ||noise||_p <= 1, and its interval."""

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
        """(R,): the smallest value of functionals (R, S, d) over the set."""
        moved = torch.einsum("rsd,sqd->rsq", A, self.local).flatten(1)
        return (A * self.c).flatten(1).sum(1) - dual_norm(moved, self.p, 1)


@dataclass(frozen=True)
class Run:
    """One input: where it starts, the claim folded into the head, and whom to tell about progress."""

    model: Model
    start: Start
    rows: Tensor  # (K, d)
    offset: Tensor  # (K,)
    row_sizes: Tensor  # (K, d): of what the rows are sums of
    on_block: OnBlock | None
    functional_bytes: int
    claim: Claim
    arithmetic: Arithmetic  # float32: only those methods that bound rounding

    @property
    def n_tokens(self) -> int:
        return self.start.c.shape[0]

    def at(self, t: int) -> Callable[[], None]:
        """To be called while block t (from 1; the head is last) is bounded, as often as one likes."""
        blocks = self.model.blocks
        progress = Progress(min(t, len(blocks)), len(blocks), blocks[t - 1].kind if t <= len(blocks) else "head")
        return lambda: None if self.on_block is None else self.on_block(progress)

    def margins(self, ops: Operators[V], x: V) -> Tensor:
        """(K,): lower bounds of the claim's rows of the last block's output x."""
        head: Head = self.model.head
        pool = pooled(ops, head, x, self.n_tokens)
        parts = zip(*(x.split(ROWS) for x in (self.rows, self.offset, self.row_sizes)), strict=True)
        return torch.cat([ops.bounds(claim(ops, head, pool, *part)).lower[0] for part in parts])


def run_ibp(run: Run) -> Tensor:
    ops, x = IntervalOperators(), run.start.box
    for t, block in enumerate(run.model.blocks, start=1):
        run.at(t)()
        before, x = x, block_output(ops, block, x)
        if run.arithmetic == "float32":
            x = x.widened(execution_of_block(block, before))
        _require_finite(t, block.kind, x.lower, x.upper)
    margins = run.margins(ops, x)
    if run.arithmetic == "float32":
        off = execution_of_head(run.model.head, x)
        spread = up(run.claim.spread(off.double()).to(margins), run.model.n_outputs)
        margins = margins - spread - gamma(2, margins.dtype) * (margins.abs() + spread)
    return margins


def run_deepz(run: Run) -> Tensor:
    """Generators are kept for good: memory grows with the square of S d, and with every operator."""
    c, local = run.start.c, run.start.local
    token, index = (local.abs().amax(-1) > 0).nonzero().unbind(1)
    G = c.new_zeros(len(token), *c.shape)
    G[torch.arange(len(token), device=c.device), token] = local[token, index]
    ops = ZonotopeOperators(len(G), run.start.p, run.at(1))
    x = ops.zonotope(c, G)
    for t, block in enumerate(run.model.blocks, start=1):
        ops.tick = run.at(t)
        x = block_output(ops, block, x)
        _require_finite(t, block.kind, x.c, x.G)
    return run.margins(ops, x)


def run_crown(run: Run) -> Tensor:
    """All intermediate bounds by substitution down to the input itself."""
    ops = CrownOperators(run.start.lowest, run.functional_bytes)
    x = ops.start(run.start.c, run.start.box)
    for t, block in enumerate(run.model.blocks, start=1):
        ops.tick = run.at(t)
        x = block_output(ops, block, x)
        everywhere = torch.stack([torch.ones_like(x.like), -torch.ones_like(x.like)])
        _require_finite(t, block.kind, ops.lower(x, everywhere))  # here rather than at the end: it names the block
    return run.margins(ops, x)


def run_covenn(run: Run) -> Tensor:
    """Substitution down to the block's own input, of which the next block learns an interval per entry."""
    ops = CrownOperators(run.start.lowest, run.functional_bytes)
    x = ops.start(run.start.c, run.start.box)
    for t, block in enumerate(run.model.blocks, start=1):
        ops.tick = run.at(t)
        box = ops.bounds(block_output(ops, block, x))
        _require_finite(t, block.kind, box.lower, box.upper)
        ops, x = _afresh(box, run)
    ops.tick = run.at(len(run.model.blocks) + 1)
    return run.margins(ops, x)


def _afresh(box: Interval, run: Run) -> tuple[CrownOperators, Node]:
    """A new graph whose input is any value of the box."""
    start = Start(box.centre, torch.diag_embed(box.radius), torch.inf)
    ops = CrownOperators(start.lowest, run.functional_bytes)
    return ops, ops.start(start.c, box)


def _require_finite(t: int, kind: str, *tensors: Tensor) -> None:
    try:
        require_finite("output", *tensors)
    except NonFiniteBoundError as error:
        raise NonFiniteBlockError(t, kind, error.step) from error


@dataclass(frozen=True)
class Baseline:
    name: str
    summary: str
    run: Callable[[Run], Tensor]
    planned: Callable[[Sizes, int, int | None], Plan]
    rounding_bounded: bool = False

    def sizes(self, model: Model, spec: Spec) -> Sizes:
        return whole_sizes(model, spec)

    def plan(self, sizes: Sizes, dtype: torch.dtype, budget_bytes: int | None) -> Plan:
        return self.planned(sizes, dtype.itemsize, budget_bytes)

    def for_run(
        self, model: Model, specs: Sequence[Spec], budget_bytes: int | None, arithmetic: Arithmetic
    ) -> Baseline:
        return self

    def batches(
        self, model: Model, specs: Sequence[Spec], dtype: torch.dtype, budget_bytes: int | None
    ) -> list[list[int]]:
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
        rounded = model.converted(model.device, dtype)
        return [self.bound(rounded, model.head, spec, budget_bytes, on_block, arithmetic) for spec in specs]

    def bound(
        self,
        model: Model,
        head: Head,
        spec: Spec,
        budget_bytes: int | None,
        on_block: OnBlock | None,
        arithmetic: Arithmetic = "real",
    ) -> Bounds:
        """Lower bounds of the claim's rows over the input set. Works in the model's dtype, on its device.

        `head` is the model's before it was rounded to that dtype: rows are differences, and would not forgive it.
        """
        need = self.plan(self.sizes(model, spec), model.dtype, budget_bytes).peak_bytes
        if budget_bytes is not None and need > budget_bytes:
            given = f"the budget is {budget_bytes / 2**20:,.0f} MiB"
            raise NotEnoughMemoryError(f"method {self.name} would need about {need / 2**20:,.0f} MiB here, {given}")
        start = _start(spec, model.dtype, arithmetic)
        rows, offset = spec.claim.functionals(head).to(model.dtype)
        sizes = spec.claim.functional_sizes(head).to(model.dtype)
        run = Run(model, start, rows, offset, sizes, on_block, functional_bytes(budget_bytes), spec.claim, arithmetic)
        margins = self.run(run)
        _require_finite(len(model.blocks) + 1, "head", margins)
        return Bounds(margins, Ledger())


def _start(spec: Spec, dtype: torch.dtype, arithmetic: Arithmetic) -> Start:
    centre, scale, p = centre_and_noise(spec.input)
    wide, local = spec.input.embed(centre), spec.input.embed.local_generators(scale)
    c, narrow = wide.to(dtype), local.to(dtype)
    cast = dual_norm(local - narrow.to(local), p, 1) + gamma(2, local.dtype) * dual_norm(local, p, 1)
    lost = up(embedding_rounding(spec.input, centre, arithmetic) + (wide - c.to(wide)).abs() + cast, 2 * local.shape[1])
    return Start(c, narrow, p, rounded_up(lost, dtype))


BASELINES = {
    method.name: method
    for method in (
        Baseline("ibp", "intervals", run_ibp, lambda sizes, item, budget: plan_intervals(sizes, item), True),
        Baseline("deepz", "dense zonotopes", run_deepz, lambda sizes, item, budget: plan_zonotopes(sizes, item)),
        Baseline(
            "crown",
            "backward linear bounds to the input",
            run_crown,
            lambda sizes, item, budget: plan_graph(sizes, item, budget, sizes.n_blocks + 1),
        ),
        Baseline(
            "covenn",
            "backward linear bounds block by block",
            run_covenn,
            lambda sizes, item, budget: plan_graph(sizes, item, budget, 1),
        ),
    )
}
