"""What executions in float32 may be off by, from intervals alone: see transforms/execution.py."""

from __future__ import annotations

import torch
from torch import Tensor

from zonogpt.domains.interval import Interval
from zonogpt.domains.rounding import up
from zonogpt.methods.operators.intervals import IntervalOperators
from zonogpt.methods.operators.network import normalised, projected, scaled_dense, scores
from zonogpt.model.ir import AttentionBlock, Head, LayerNorm, MlpBlock
from zonogpt.transforms.execution import attention_error, mlp_error, norm_error, output_error
from zonogpt.transforms.softmax import softmax_range

OPS = IntervalOperators()


def execution_of_block(block: AttentionBlock | MlpBlock, x: Interval) -> Tensor:
    """(S, d): over all inputs in x."""
    n, n_error = _norm(block.norm, x)
    hat = normalised(OPS, block.norm, x)
    if isinstance(block, MlpBlock):
        hidden = scaled_dense(OPS, hat, block.norm, block.w_1, block.b_1)
        return mlp_error(block, hidden.size, n, n_error, x.size)
    q, k, v = projected(OPS, block, hat)
    P = softmax_range(scores(OPS, q, k), block.visible(x.lower.shape[0])).upper
    Q = up(q.size / block.scale)  # `projected` has the scale in it
    return attention_error(block, Q, k.size, v.size, P, n, n_error, x.size)


def execution_of_head(head: Head, x: Interval) -> Tensor:
    """(outputs,)"""
    return output_error(head, head.pool_weights(x.lower.shape[0]), *_norm(head.norm, x))


def _norm(norm: LayerNorm, x: Interval) -> tuple[Tensor, Tensor]:
    """LayerNorm's output in size, (S, d), and what an execution of it may be off by."""
    d = norm.gamma.shape[0]
    centring = torch.eye(d, dtype=norm.gamma.dtype, device=norm.gamma.device) - 1 / d
    z = x.dense(centring, None)
    least = torch.where((z.lower <= 0) & (z.upper >= 0), 0.0, torch.minimum(z.lower.abs(), z.upper.abs()))
    rho = up((norm.tau + least.square().mean(-1) * (1 - 1e-6)).rsqrt(), 8)
    hat = normalised(OPS, norm, x)
    n = up(norm.gamma.abs() * hat.size + norm.beta.abs())
    return n, norm_error(norm, z.size, x.size, rho)
