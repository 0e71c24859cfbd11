"""Bounds of the errors of executions in float32, from intervals alone: see transforms/execution.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import up
from zonogpt.methods.operators.intervals import IntervalOperators
from zonogpt.methods.operators.network import centring, normalised, projected, scaled_dense, scores
from zonogpt.model.nodes import Attention, Block, Head, Mlp, Node, Norm, size_of
from zonogpt.transforms.execution import AttentionSizes, attention_error, mlp_error, norm_error, output_error
from zonogpt.transforms.queries import Queries
from zonogpt.transforms.softmax import softmax_range

OPS = IntervalOperators()


def execution_of_block(block: Node, x: Interval) -> Tensor:
    """(S, d): how far executions of the block may be off, over all inputs in x."""
    return EXECUTIONS[block.kind](block, x)


def _of_attention(block: Block[Attention], x: Interval) -> Tensor:
    n, n_error = _norm(block.norm, x)
    q, k, v = projected(OPS, block, normalised(OPS, block.norm, x))
    S, attention = x.lower.shape[0], block.branch
    P = softmax_range(scores(OPS, q, k), attention.visible(S)).upper
    Q = up(q.size / attention.scale)  # `projected` includes the scale
    return attention_error(attention, Queries.every(S), AttentionSizes(Q, k.size, v.size, P, n, n_error, x.size))


def _of_mlp(block: Block[Mlp], x: Interval) -> Tensor:
    mlp = block.branch
    hidden = scaled_dense(OPS, normalised(OPS, block.norm, x), block.norm, mlp.w_1, mlp.b_1)
    return mlp_error(mlp, hidden.size, *_norm(block.norm, x), x.size)


EXECUTIONS: Mapping[str, Callable[[Any, Interval], Tensor]] = {"attention": _of_attention, "mlp": _of_mlp}
EXECUTED = frozenset({*EXECUTIONS, "LayerNorm", "tanh-GELU"})  # `_norm` is about LayerNorm alone


def execution_of_head(head: Head, x: Interval) -> Tensor:
    """(outputs,): how far executions of the head may be off, over all inputs in x."""
    return output_error(head, head.read_weights(x.lower.shape[0]), *_norm(head.layer_norm, x))


def _norm(norm: Norm, x: Interval) -> tuple[Tensor, Tensor]:
    """(S, d) each: bounds of LayerNorm's output in absolute value, and of the error of an execution of it."""
    z = x.dense(centring(norm), None)
    least = torch.where((z.lower <= 0) & (z.upper >= 0), 0.0, torch.minimum(z.lower.abs(), z.upper.abs()))
    rho = up((norm.tau + least.square().mean(-1) * (1 - 1e-6)).rsqrt(), 8)
    hat = normalised(OPS, norm, x)
    n = up(norm.gamma.abs() * hat.size + size_of(norm.beta))
    return n, norm_error(norm, z.size, x.size, rho)
