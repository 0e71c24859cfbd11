"""The input set of a spec, for a search inside it: random starts, descent steps, and the way back into the set.

Points are (n, raw shape) in float64. Everything returned by `project` is in the set, also after rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zonogpt.spec.inputs import Ball, Box

FEW = 0.01  # share of the coordinates that move in one l_1 step


def project(box: Box, points: Tensor) -> Tensor:
    """The nearest points of the ball around the anchor, if the set is one, clamped to the box.

    Clamping moves every coordinate towards the anchor, which the box contains, so it does not leave the ball.
    """
    moves = (points - box.anchor).flatten(1)
    if box.ball is not None:
        moves = shortened(box.ball, moves)
    return (box.anchor + moves.view_as(points)).clamp(box.lower, box.upper)


def shortened(ball: Ball, moves: Tensor) -> Tensor:
    """Moves (n, q) from the anchor, each to the nearest that stays in the ball."""
    room = inner_radius(ball)
    if ball.norm == math.inf:
        return moves.clamp(-room, room)  # the box is rounded outwards by an ulp, and an ulp outside is outside
    if ball.norm == 2:
        return moves * (room / moves.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)
    return onto_l1_ball(moves, room)


def inner_radius(ball: Ball) -> float:
    """The radius less all that rounding can add to the norm of a move: anchor + move is rounded per coordinate."""
    eps = torch.finfo(torch.float64).eps
    rounding = eps * float((ball.anchor.abs() + ball.radius).sum())
    return max(0.0, ball.radius * (1 - 1e-9) - rounding)


def onto_l1_ball(moves: Tensor, radius: float) -> Tensor:
    """Euclidean projection of rows (n, q) onto the l_1 ball: all sizes fall by one threshold, but not below 0."""
    sizes = moves.abs()
    sorted_sizes = sizes.sort(dim=1, descending=True).values
    counts = torch.arange(1, sizes.shape[1] + 1, dtype=sizes.dtype, device=sizes.device)
    thresholds = (sorted_sizes.cumsum(1) - radius) / counts
    kept = (sorted_sizes > thresholds).sum(1, keepdim=True).clamp(min=1)
    threshold = thresholds.gather(1, kept - 1).clamp(min=0)
    return moves.sign() * (sizes - threshold).clamp(min=0)


def round_ball(box: Box) -> Ball | None:
    """The set itself if it is an l_1 or l_2 ball; None for a plain box and for an l_inf ball, whose corners move all
    coordinates at once."""
    return None if box.p == math.inf else box.ball


def random_starts(box: Box, n: int, generator: torch.Generator) -> Tensor:
    """(n, raw shape): random corners of a box, or points in random directions on the surface of a round ball."""
    shape, ball = (n, *box.anchor.shape), round_ball(box)
    if ball is None:
        corner = torch.randint(0, 2, shape, generator=generator).bool().to(box.anchor.device)
        return project(box, torch.where(corner, box.upper, box.lower))
    moves = torch.randn(shape, generator=generator, dtype=torch.float64).to(box.anchor.device).flatten(1)
    moves = moves * (ball.radius / moves.norm(p=ball.norm, dim=1, keepdim=True))
    return project(box, box.anchor + moves.view(shape))


def single_moves(ball: Ball, most: int, generator: torch.Generator) -> Tensor:
    """(n, raw shape): one coordinate at the edge of the ball, up or down, all others at the anchor.

    These are the corners of an l_1 ball. If there are more than `most`, `most` of them are drawn at random.
    """
    size = ball.anchor.numel()
    chosen = torch.randperm(2 * size, generator=generator)[:most].to(ball.anchor.device)
    moves = ball.anchor.new_zeros(len(chosen), size)
    moves[torch.arange(len(chosen)), chosen // 2] = ball.radius * (1.0 - 2.0 * (chosen % 2).double())
    return project(ball, ball.anchor + moves.view(-1, *ball.anchor.shape))


def descend(box: Box, points: Tensor, gradient: Tensor, size: float) -> Tensor:
    """One step down the gradient, `size` times the width of the set, and back into the set.

    In a box or l_inf ball the step goes along the sign of the gradient, in an l_2 ball along the gradient. In an l_1
    ball every second point moves the few coordinates with the largest gradient, which is steepest; the others move all
    coordinates alike, which finds what many small moves do together.
    """
    ball = round_ball(box)
    if ball is None:
        return project(box, points - size * (box.upper - box.lower) * gradient.sign())
    # Coordinates that are at the box's edge and would leave it would waste the step.
    stuck = ((gradient > 0) & (points <= box.lower)) | ((gradient < 0) & (points >= box.upper))
    wanted = gradient.masked_fill(stuck, 0.0).flatten(1)
    if ball.norm == 1:
        few = max(1, int(FEW * wanted.shape[1]))
        top = wanted.abs().topk(few, dim=1).indices
        signs = wanted.sign()
        wanted = signs.clone()
        wanted[1::2] = torch.zeros_like(signs).scatter(1, top, signs.gather(1, top))[1::2]
    direction = wanted / wanted.norm(p=ball.norm, dim=1, keepdim=True).clamp(min=1e-300)
    return project(box, points - 2 * size * ball.radius * direction.view_as(points))
