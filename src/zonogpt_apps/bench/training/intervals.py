"""Interval bounds of a whole batch as a differentiable loss: Gowal et al.'s training, for GPT-2.

Values are a centre, which is the exact forward pass, and a radius per entry, kept apart so that radii far below the
centre's rounding still mean something. A loss, not a proof: nothing is rounded outward. Method ibp proves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zonogpt.model.ir import Model
from zonogpt.model.nodes import Attention, Block, Mlp, Norm, dense

GELU_SLOPE = 1.13  # the steepest of the tanh form is 1.12899
MOST_EXPONENT = 60.0  # beyond it, a weight may be anything


@dataclass(frozen=True)
class Ball:
    """|x - centre| <= radius, entry by entry."""

    centre: Tensor
    radius: Tensor

    def dense(self, weight: Tensor, bias: Tensor | None) -> Ball:
        return Ball(dense(self.centre, weight, bias), self.radius @ weight.abs())

    def matmul(self, other: Ball) -> Ball:
        x, y = self.centre, other.centre
        return Ball(x @ y, self.radius @ (y.abs() + other.radius) + x.abs() @ other.radius)

    def plus(self, other: Ball) -> Ball:
        return Ball(self.centre + other.centre, self.radius + other.radius)


def worst_margins(model: Model, x: Ball, last: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs at the centre (B, K), and lower bounds of "label minus class" (B, K) over the ball (B, S, d).

    `last` (B,) is the token of each sequence that the head reads; padding may follow it. Bounds hold for every
    input of the ball, in exact arithmetic.
    """
    for block in model.blocks:
        x = x.plus(BRANCHES[block.kind](block, x))
    rows = torch.arange(len(last), device=last.device)
    read = _layernorm(model.head.layer_norm, Ball(x.centre[rows, last], x.radius[rows, last]))
    weight = model.head.weight  # (d, K)
    outputs = read.centre @ weight
    difference = weight.T[labels][:, None] - weight.T  # (B, K, d): no bias, GPT-2's text classifier has none
    lost = (difference.abs() @ read.radius[..., None]).squeeze(-1)
    return outputs, outputs.gather(1, labels[:, None]) - outputs - lost


def _layernorm(norm: Norm, x: Ball) -> Ball:
    d = norm.gamma.shape[0]
    z, r = norm.centre(x.centre), norm.centred_size(x.radius)
    a = z.square().mean(-1, keepdim=True) + norm.tau
    moved = (r * (2 * z.abs() + r)).mean(-1, keepdim=True)  # of the variance
    fall = torch.minimum(moved, a - norm.tau)  # it cannot fall below tau
    root, least = a.sqrt(), (a - fall).sqrt()
    most = (a + moved).sqrt()
    # How far 1/sqrt may rise and fall from 1/root, without cancellation; it falls further only where the fall is cut.
    rise = torch.maximum(fall / (root * least * (root + least)), moved / (root * most * (root + most)))
    centre = z / root
    radius = torch.minimum(r / least + z.abs() * rise, centre.abs() + (d - 1) ** 0.5)  # the range of LayerNorm
    return Ball(norm.shifted(norm.gamma * centre), norm.gamma.abs() * radius)


def _attention(block: Block[Attention], x: Ball) -> Ball:
    of, n = block.branch, _layernorm(block.norm, x)
    weights, biases = zip(*of.projections, strict=True)
    qkv = n.dense(torch.cat(weights, dim=1), torch.cat(biases))  # one product: three would take longer
    parts = zip(qkv.centre.chunk(3, -1), qkv.radius.chunk(3, -1), strict=True)
    q, k, v = (Ball(of.split_heads(centre), of.split_heads(radius)) for centre, radius in parts)
    u = Ball(q.centre * of.scale, q.radius * of.scale).matmul(Ball(k.centre.mT, k.radius.mT))
    mixed = _softmax(u, ~of.visible(u.centre.shape[-1])).matmul(v)
    return Ball(of.join_heads(mixed.centre), of.join_heads(mixed.radius)).dense(of.w_o, of.b_o)


def _softmax(u: Ball, hidden: Tensor) -> Ball:
    p = u.centre.masked_fill(hidden, -torch.inf).softmax(-1)
    radius = u.radius.masked_fill(hidden, 0.0)
    # Every score moves by at most its radius, the log of the exponentials' sum by at most the row's largest radius.
    exponent = radius + radius.amax(-1, keepdim=True)
    moved = (p * torch.expm1(exponent.clamp(max=MOST_EXPONENT))).clamp(max=1.0)
    return Ball(p, moved.masked_fill((exponent > MOST_EXPONENT) & ~hidden, 1.0))  # p lies in [0, 1]


def _mlp(block: Block[Mlp], x: Ball) -> Ball:
    of = block.branch
    return _gelu(_layernorm(block.norm, x).dense(of.w_1, of.b_1)).dense(of.w_2, of.b_2)


BRANCHES: Mapping[str, Callable[[Any, Ball], Ball]] = {"attention": _attention, "mlp": _mlp}


def _gelu(h: Ball) -> Ball:
    return Ball(F.gelu(h.centre, approximate="tanh"), GELU_SLOPE * h.radius)
