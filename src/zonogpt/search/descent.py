"""Projected gradient descent on the exact model: the lowest margins that a search finds in the input set.

A search proves nothing, but what it finds is real: no certified margin may lie above it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.errors import OptionError
from zonogpt.model.ir import Model, check_model
from zonogpt.search.projection import descend, random_starts, single_moves
from zonogpt.spec.spec import Spec, check_spec
from zonogpt.support.tensors import ByValue, moved

RESTARTS, STEPS = 4, 30
PROBES = 2048  # single-coordinate moves that are looked at first, in l_1 and l_2 balls
MOST_ROWS = 64  # rows with restarts of their own; the margins of all rows are looked at everywhere
FIRST_STEP, LAST_STEP = 0.5, 0.01  # in widths of the set; steps shrink geometrically
MEMORY_BYTES = 1 << 30  # about what the points that move together may take


@dataclass(frozen=True, eq=False)
class Attack(ByValue):
    margins: Tensor  # (K,): the lowest value of each row at any point visited, float64 on the CPU; inf: none was finite
    input: Tensor  # the raw input, in the set, at which the lowest of them all was seen; float64 on the CPU

    @property
    def lowest(self) -> float:
        return float(self.margins.min())

    @property
    def broken(self) -> bool:
        """Whether the claim fails at `input`."""
        return self.lowest <= 0


@torch.inference_mode(False)
@torch.enable_grad()
def attack(
    model: Model,
    spec: Spec,
    restarts: int = RESTARTS,
    steps: int = STEPS,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    deadline: float = math.inf,
) -> Attack:
    """Searches the spec's set for low margins, where the model is; the same seed finds the same.

    Every row of the claim (of more than 64 rows: those lowest at the anchor) has `restarts` points that go down its own
    gradient: the first from the anchor, the second (in l_1 and l_2 balls) from the lowest single-coordinate
    move, the others from random places. Inputs are kept in float64 and only the network runs in `dtype`. A radius
    of 0 leaves the anchor alone. At the `deadline` (of time.perf_counter) the search stops, with what it has found.
    Gradients are taken also where the caller has switched them off.
    """
    check_model(model)
    check_spec(spec)
    for name, value in (("restarts", restarts), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"an attack needs at least one of its {name}; got {value!r}")
    net = model.converted(model.device, dtype)
    search = _Search(net, moved(spec, model.device, torch.float64))
    with torch.no_grad():
        clean = search.visit(search.spec.input.anchor[None])[0]
    generator = torch.Generator().manual_seed(seed)
    rows = clean.nan_to_num(nan=math.inf).argsort()[:MOST_ROWS]
    together = points_at_once(net, spec)
    has_corners = spec.input.norm != math.inf and spec.radius > 0
    best = search.probe(rows, together, generator, deadline) if has_corners else None
    for some in torch.arange(len(rows)).split(max(1, together // restarts)):
        second = None if best is None else best[some]
        search.descend(rows[some], second, restarts, steps, generator, deadline)
    return Attack(search.margins.cpu(), search.input.cpu())


class _Search:
    """The lowest margins seen so far, and where the lowest of all was seen."""

    def __init__(self, net: Model, spec: Spec) -> None:
        self.net, self.spec = net, spec
        self.input = spec.input.anchor
        self.margins = self.input.new_full((spec.claim.n_rows,), math.inf)

    def visit(self, points: Tensor) -> Tensor:
        """Margins (n, K) at these points of the set; remembers the lowest. Overflow is nothing seen."""
        output = self.net.forward(self.spec.input.embed(points).to(self.net.dtype)).double()
        margins = self.spec.claim.margins(output)
        seen = margins.detach().masked_fill(~output.detach().isfinite().all(-1, keepdim=True), math.inf)
        lowest, at = seen.amin(1).min(0)
        if bool(lowest < self.margins.min()):
            self.input = points[at].detach().clone()
        self.margins = torch.minimum(self.margins, seen.amin(0))
        return margins

    def probe(self, rows: Tensor, together: int, generator: torch.Generator, deadline: float) -> Tensor:
        """(rows, raw shape): for each row the lowest of many single-coordinate moves. Gradients do not see everything:
        what one coordinate does may show only once it has moved."""
        box = self.spec.input
        points = single_moves(box, PROBES, generator)
        lowest = points.new_full((len(rows),), math.inf)
        best = box.anchor.expand(len(rows), *box.anchor.shape).clone()
        for some in points.split(together):
            if time.perf_counter() > deadline:
                break
            with torch.no_grad():
                margins, at = self.visit(some)[:, rows].nan_to_num(nan=math.inf).min(0)
            better = margins < lowest
            best[better], lowest = some[at[better]], torch.minimum(lowest, margins)
        return best

    def descend(
        self,
        rows: Tensor,
        second: Tensor | None,
        restarts: int,
        steps: int,
        generator: torch.Generator,
        deadline: float,
    ) -> None:
        """From the anchor, from `second` (rows, raw shape), and from random places, each point down its own row."""
        box = self.spec.input
        own = rows.repeat_interleave(restarts)  # the row that each point goes down
        points = random_starts(box, len(own), generator)
        points[::restarts] = box.anchor
        if second is not None and restarts > 1:
            points[1::restarts] = second
        for step in range(steps):
            if time.perf_counter() > deadline:
                return
            points.requires_grad_(True)
            wanted = self.visit(points).gather(1, own[:, None]).sum()
            (gradient,) = torch.autograd.grad(wanted, points)
            size = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / max(1, steps - 1))
            points = descend(box, points.detach(), gradient.nan_to_num(), size)
        with torch.no_grad():
            self.visit(points)


def points_at_once(model: Model, spec: Spec) -> int:
    """How many points fit into MEMORY_BYTES together with what autograd keeps of them."""
    S, d = spec.input.n_tokens, model.width
    per_block = S * (6 * d + 2 * model.hidden + 3 * S * model.n_heads)
    numbers = len(model.blocks) * per_block + 4 * spec.input.anchor.numel() + 4 * model.n_outputs
    return max(1, MEMORY_BYTES // (numbers * model.dtype.itemsize))
