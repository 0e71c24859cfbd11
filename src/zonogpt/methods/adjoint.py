"""Method E's backward pass: every row of the claim through the linear maps that the forward pass left behind."""

from __future__ import annotations

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import coordinate_radius, dual_norm, rounded_off
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, gammas, room, up
from zonogpt.methods.tape import Tape
from zonogpt.methods.work import Tick, nobody

ROWS = 64  # claim rows that are pulled back together
MOST_ROWS = 1024  # rows that are pulled back at all: of a language model's 50,256 those with the lowest forward bounds

Where = tuple[int, str, str]  # block, kind, step


def backward(tape: Tape, tick: Tick = nobody) -> tuple[Tensor, dict[Where, Tensor]]:
    """Margins (B, K), and what each step takes from them (B,), averaged over the rows that went back."""
    margins, _, losses = adjoint(tape, tick)
    return margins, {where: loss.mean(1) for where, loss in losses.items()}


def adjoint(tape: Tape, tick: Tick = nobody) -> tuple[Tensor, Tensor, dict[Where, Tensor]]:
    """Margins (B, K); which rows went back through all blocks (B, R); and what each step takes from these (B, R).

    `tick` is told of every block that rows are about to go back through, and which share of the rows is done.
    """
    B, K = tape.value.shape
    every = torch.arange(K, device=tape.value.device).expand(B, -1)
    if K <= MOST_ROWS:
        lowest = every
        pieces = _pieces(tape, every, tick)
        margins = torch.cat([margins for margins, _ in pieces], dim=1)
    else:
        lost = [tape.head.loss(_pooled_rows(tape, rows), tape.limit) for rows in every.split(ROWS, dim=1)]
        margins = below(tape.value, torch.stack([torch.cat(lost, dim=1), tape.rounding]))
        require_finite("head", margins)
        lowest = margins.argsort(1)[:, :MOST_ROWS].sort(1).values  # chosen for each input: their rows have other rivals
        pieces = _pieces(tape, lowest, tick)
        better = torch.maximum(margins.gather(1, lowest), torch.cat([margins for margins, _ in pieces], dim=1))
        margins.scatter_(1, lowest, better)
    losses = {where: torch.cat([loss[where] for _, loss in pieces], dim=1) for where in pieces[0][1]}
    return margins, lowest, losses


def _pieces(tape: Tape, rows: Tensor, tick: Tick) -> list[tuple[Tensor, dict[Where, Tensor]]]:
    """The margins and losses of these rows (B, R), some rows at a time."""
    parts = rows.split(ROWS, dim=1)
    return [_go_back(tape, part, tick, k / len(parts)) for k, part in enumerate(parts)]


def _pooled_rows(tape: Tape, rows: Tensor) -> Tensor:
    """(B, K, n, d): the rows with these numbers (B, K), as functionals of the final LayerNorm's output."""
    return torch.take_along_dim(tape.rows, rows[..., None], dim=1)[:, :, None] * tape.pool[:, None]


def _go_back(tape: Tape, rows: Tensor, tick: Tick, share: float) -> tuple[Tensor, dict[Where, Tensor]]:
    blocks = len(tape.steps)
    functionals, loss = tape.head.pull(_pooled_rows(tape, rows), tape.limit)
    losses: dict[Where, Tensor] = {
        (blocks + 1, "head", "layernorm"): loss,
        (blocks + 1, "head", "rounding"): tape.rounding.gather(1, rows),
    }
    for t in range(blocks, 0, -1):
        step = tape.steps[t - 1]
        tick(t - 1, share)
        functionals, taken = step.pull(functionals, tape.limit)
        losses |= {(t, step.kind, name): loss for name, loss in taken.items()}
    z, generators = tape.start.z, tape.start.generators
    moved = dual_norm(torch.einsum("bknd,bnmd->bkm", functionals.to(generators), generators), z.p, -1).to(functionals)
    losses[(0, "input", "input")] = up(moved, z.m)
    # The input's own box of rounding, and the rounding of the products just above.
    products = tape.start.n_tokens[:, None, None] * z.c.shape[-1]
    box = coordinate_radius(z.Q) + gammas(products + 4, z.c.dtype, z.c) * z.symbol_radius
    losses[(0, "input", "rounding")] = rounded_off(functionals, up(box))
    margins = below(tape.value.gather(1, rows), torch.stack(list(losses.values())))
    require_finite("adjoint", margins)
    return margins, dict(sorted(losses.items()))


def below(value: Tensor, losses: Tensor) -> Tensor:
    """At most value - losses.sum(0). A loss may be negative: the centre may lie outside of a norm's range."""
    n, size = len(losses), value.abs() + losses.abs().sum(0)
    return value - losses.sum(0) - up((gamma(n + 4, value.dtype) + room()) * size, n)


def where_lost(tape: Tape, b: int) -> str:
    """In words, the first block behind which the errors exceed the symbols' linear part; empty if none."""
    states = [step.z for step in tape.steps[1:]] + [tape.head.z]
    for step, (t, z) in zip(tape.steps, enumerate(states, start=1), strict=True):
        linear = float(dual_norm(z.G[b], z.p, -2).mean())
        error = float(coordinate_radius(z.Q[b]).mean())
        if error > linear > 0:
            times = f"{error / linear:.2g} times"
            return f"precision is lost in block {t} ({step.kind}), where the error is {times} the linear part"
    return ""
