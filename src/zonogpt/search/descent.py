"""Projected gradient descent on the exact model: the lowest margins that a search finds in the input set.

A search proves nothing, but what it finds is real: no certified margin may lie above it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.errors import OptionError
from zonogpt.model.ir import Model, check_model
from zonogpt.search.projection import descend, random_starts, round_ball, single_moves
from zonogpt.spec.inputs import Ball
from zonogpt.spec.spec import Spec, check_spec
from zonogpt.support.tensors import ByValue, moved

RESTARTS, STEPS = 4, 30
PROBES = 2048  # single-coordinate moves that are looked at first, in l_1 and l_2 balls
MOST_GROUPS = 64  # groups of rows that get restarts of their own; all rows' margins are looked at everywhere
FIRST_STEP, LAST_STEP = 0.5, 0.01  # in widths of the set; steps shrink geometrically
GRADIENT = 3  # the cost of a gradient, in forward passes
MEMORY_BYTES = 1 << 30  # about what points that move together may take

OnShare = Callable[[float], None]


@dataclass(frozen=True, eq=False, repr=False)
class Attack(ByValue):
    """What a search has seen; tensors are in float64 on the CPU.

    margins: (K,), the lowest value of each row of the claim at any point visited; inf if none was finite.
    input: the raw input, in the set, at which `lowest` was seen.
    lowest: the lowest value of the claim at any point: the lowest margin, where all rows must hold.
    """

    margins: Tensor
    input: Tensor
    lowest: float

    @property
    def broken(self) -> bool:
        """Whether the claim fails at `input`."""
        return self.lowest <= 0

    def __repr__(self) -> str:
        return f"Attack({'broken' if self.broken else 'not broken'}: the lowest value found is {self.lowest:.4g})"


@torch.inference_mode(False)
@torch.enable_grad()
def attack(
    model: Model,
    spec: Spec,
    *,
    restarts: int = RESTARTS,
    steps: int = STEPS,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    deadline: float = math.inf,
    on_share: OnShare | None = None,
) -> Attack:
    """Searches the spec's set for low margins, on the model's device; the same seed gives the same result.

    Every group of the claim's rows (each row alone, unless any row of a group may hold; of more than 64 groups: those
    lowest at the anchor) has `restarts` points that go down the gradient of its largest row: the first from the anchor,
    the second (in l_1 and l_2 balls) from the lowest single-coordinate move, the others from random places. Inputs are
    kept in float64 and only the network runs in `dtype`. A radius of 0 leaves the anchor alone. At the `deadline` (of
    time.perf_counter) the search stops, with what it has found. `on_share` is told how much of the search is done,
    from 0 to 1. Gradients are taken also where the caller has switched them off.
    """
    check_model(model)
    check_spec(spec)
    for name, value in (("restarts", restarts), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"an attack needs at least one of its {name}; got {value!r}")
    net = model.converted(model.device, dtype)
    search = _Search(net, moved(spec, model.device, torch.float64), on_share)
    with torch.no_grad():
        clean = search.visit(search.spec.input.anchor[None])[0]
    generator = torch.Generator().manual_seed(seed)
    groups = clean.nan_to_num(nan=math.inf).argsort()[:MOST_GROUPS]
    together, ball = points_at_once(net, spec), round_ball(search.spec.input)
    search.work = GRADIENT * len(groups) * restarts * steps
    best = search.probe(ball, groups, together, generator, deadline) if ball is not None and ball.radius > 0 else None
    for some in torch.arange(len(groups)).split(max(1, together // restarts)):
        second = None if best is None else best[some]
        search.descend(groups[some], second, restarts, steps, generator, deadline)
    return Attack(search.margins.cpu(), search.input.cpu(), float(search.lowest))


class _Search:
    """The lowest margins seen so far, the lowest value of the claim, and where that was seen."""

    def __init__(self, net: Model, spec: Spec, on_share: OnShare | None) -> None:
        self.net, self.spec, self.on_share = net, spec, on_share
        self.done, self.work = 0, 1  # counted in forward passes of one point
        self.input = spec.input.anchor
        self.margins = self.input.new_full((spec.claim.n_rows,), math.inf)
        self.lowest = self.input.new_tensor(math.inf)

    def visit(self, points: Tensor) -> Tensor:
        """Values of the claim's groups (n, G) at these points of the set. Remembers the lowest; a point that overflows
        does not count."""
        claim = self.spec.claim
        output = self.net.forward(self.spec.input.embed(points).to(self.net.dtype)).double()
        margins = claim.margins(output)
        seen = margins.detach().masked_fill(~output.detach().isfinite().all(-1, keepdim=True), math.inf)
        lowest, at = claim.value(seen).min(0)
        if bool(lowest < self.lowest):
            self.input, self.lowest = points[at].detach().clone(), lowest
        self.margins = torch.minimum(self.margins, seen.amin(0))
        return claim.group_values(margins)

    def tell(self, points: int) -> None:
        self.done += points
        if self.on_share is not None:
            self.on_share(min(1.0, self.done / self.work))

    def probe(self, ball: Ball, groups: Tensor, together: int, generator: torch.Generator, deadline: float) -> Tensor:
        """(groups, raw shape): for each the lowest of many single-coordinate moves. Gradients do not see everything:
        what one coordinate does may show only once it has moved."""
        points = single_moves(ball, PROBES, generator)
        self.work += len(points)
        lowest = points.new_full((len(groups),), math.inf)
        best = ball.anchor.expand(len(groups), *ball.anchor.shape).clone()
        for some in points.split(together):
            if time.perf_counter() > deadline:
                break
            with torch.no_grad():
                values, at = self.visit(some)[:, groups].nan_to_num(nan=math.inf).min(0)
            better = values < lowest
            best[better], lowest = some[at[better]], torch.minimum(lowest, values)
            self.tell(len(some))
        return best

    def descend(
        self,
        groups: Tensor,
        second: Tensor | None,
        restarts: int,
        steps: int,
        generator: torch.Generator,
        deadline: float,
    ) -> None:
        """Moves points, each down its own group: from the anchor, from `second` (groups, raw shape), and from random
        places."""
        box = self.spec.input
        own = groups.repeat_interleave(restarts)  # the group whose largest row each point lowers
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
            self.tell(GRADIENT * len(points))
        with torch.no_grad():
            self.visit(points)


def points_at_once(model: Model, spec: Spec) -> int:
    """How many points fit into MEMORY_BYTES together with what autograd keeps of them."""
    S, d = spec.input.n_tokens, model.width
    per_block = S * (6 * d + 2 * model.hidden + 3 * S * model.n_heads)
    numbers = len(model.blocks) * per_block + 4 * spec.input.anchor.numel() + 4 * model.n_outputs
    return max(1, MEMORY_BYTES // (numbers * model.dtype.itemsize))
