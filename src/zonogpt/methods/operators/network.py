"""The network operator by operator, written once: sums, dense maps, products of matrices, and scalar functions.

A method says what each operator does to its own kind of value (tensors, intervals, zonotopes, nodes of a graph); here
the operators are put together. LayerNorm's scale and shift are folded into the maps behind it, and the softmax's
numerators are shifted by a constant, neither of which changes the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from zonogpt.domains.interval import Interval
from zonogpt.model.nodes import Attention, Block, Head, Mlp, Node, Norm
from zonogpt.transforms.activations import bounds_of
from zonogpt.transforms.functions import RECIPROCAL, SQRT, SQUARE, Function, ShiftedExp
from zonogpt.transforms.softmax import softmax_range

V = TypeVar("V")


@dataclass(frozen=True)
class Arrangement:
    """A change of the entries' order or shape, `there` and `back`, for any leading dimensions."""

    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


TRANSPOSE = Arrangement(lambda x: x.mT, lambda x: x.mT)
COLUMN = Arrangement(lambda x: x.unsqueeze(-1), lambda x: x.squeeze(-1))  # (..., n) <-> (..., n, 1)
FLAT = Arrangement(COLUMN.back, COLUMN.there)


class Operators(Protocol[V]):
    """What a method must say about its values. Shapes are those of one input: (S, d), (H, S, S), ..."""

    def bounds(self, x: V) -> Interval:
        """An interval that holds every entry."""

    def arrange(self, x: V, how: Arrangement) -> V: ...

    def add(self, x: V, y: V) -> V: ...

    def dense(self, x: V, weight: Tensor, bias: Tensor | None, *sizes: Tensor | None) -> V:
        """x @ weight + bias; `sizes` as in Interval.dense, for those who bound rounding."""

    def matmul(self, x: V, y: V, known: Interval | None = None) -> V:
        """x @ y, of matrices in the last two dimensions; `known`, if given, is known to hold the product."""

    def apply(self, f: Function, x: V) -> V:
        """f, entry by entry."""

    def relative(self, u: V, visible: Tensor) -> V:
        """Scores (H, S, S), or the same less one number for each row, which softmax does not see."""


def block_output(ops: Operators[V], block: Node, x: V) -> V:
    """The block's output for x: (S, d) -> (S, d)."""
    return BLOCKS[block.kind](ops, block, x)


def attention(ops: Operators[V], block: Block[Attention], x: V) -> V:
    """x plus the block's branch: (S, d) -> (S, d)."""
    of = block.branch
    q, k, v = projected(ops, block, normalised(ops, block.norm, x))
    p = softmax(ops, scores(ops, q, k), of)
    mixed = ops.arrange(ops.matmul(p, v), Arrangement(of.join_heads, of.split_heads))  # (S, H e)
    return ops.add(x, ops.dense(mixed, of.w_o, of.b_o))


def projected(ops: Operators[V], block: Block[Attention], n: V) -> tuple[V, V, V]:
    """Queries (with the scale of the scores), keys and values, (H, S, e) each."""
    of = block.branch
    heads = Arrangement(of.split_heads, of.join_heads)
    b_q = None if of.b_q is None else of.b_q * of.scale
    q = scaled_dense(ops, n, block.norm, of.w_q * of.scale, b_q)
    k, v = scaled_dense(ops, n, block.norm, of.w_k, of.b_k), scaled_dense(ops, n, block.norm, of.w_v, of.b_v)
    return ops.arrange(q, heads), ops.arrange(k, heads), ops.arrange(v, heads)


def scores(ops: Operators[V], q: V, k: V) -> V:
    return ops.matmul(q, ops.arrange(k, TRANSPOSE))  # (H, S, S)


def mlp(ops: Operators[V], block: Block[Mlp], x: V) -> V:
    """x plus the block's branch: (S, d) -> (S, d)."""
    of = block.branch
    hidden = scaled_dense(ops, normalised(ops, block.norm, x), block.norm, of.w_1, of.b_1)
    return ops.add(x, ops.dense(ops.apply(bounds_of(of.activation).function, hidden), of.w_2, of.b_2))


BLOCKS: Mapping[str, Callable[[Operators[Any], Any, Any], Any]] = {"attention": attention, "mlp": mlp}


def pooled(ops: Operators[V], head: Head, x: V, n_tokens: int) -> V:
    """What the head's linear map reads, but for the final LayerNorm's scale and shift: (S, d) -> (1, d)."""
    n = ops.arrange(normalised(ops, head.layer_norm, x), TRANSPOSE)
    return ops.arrange(ops.dense(n, head.read_weights(n_tokens)[:, None], None), TRANSPOSE)


def claim(ops: Operators[V], head: Head, pool: V, rows: Tensor, offset: Tensor, size: Tensor) -> V:
    """The claim's functionals, rows (K, d) and offset (K,), of what was pooled: (1, d) -> (1, K).

    `size` (K, d) is what the rows' rounding is relative to.
    """
    return scaled_dense(ops, pool, head.layer_norm, rows.T, offset, size.T, head.read)


def normalised(ops: Operators[V], norm: Norm, x: V) -> V:
    """The norm's output but for its scale and shift: (S, d) -> (S, d)."""
    return NORMS[norm.kind](ops, norm, x)


def _layer_norm(ops: Operators[V], norm: Norm, x: V) -> V:
    """(x - mean) / sqrt(variance + tau)."""
    d, like = norm.width, norm.gamma
    z = ops.dense(x, centring(norm), None)
    variance = ops.dense(ops.apply(SQUARE, z), like.new_full((d, 1), 1 / d), like.new_full((1,), norm.tau))  # (S, 1)
    rho = ops.apply(RECIPROCAL, ops.apply(SQRT, variance))
    return times(ops, z, rho)


NORMS: Mapping[str, Callable[[Operators[Any], Norm, Any], Any]] = {"LayerNorm": _layer_norm}


def centring(norm: Norm) -> Tensor:
    """(d, d): the matrix of `norm.centre`."""
    return norm.centre(torch.eye(norm.width, dtype=norm.gamma.dtype, device=norm.gamma.device))


def scaled_dense(
    ops: Operators[V],
    n: V,
    norm: Norm,
    weight: Tensor,
    bias: Tensor | None,
    size: Tensor | None = None,
    read: str | Tensor = "last",
) -> V:
    """(gamma n + beta) @ weight + bias; `size`, if given, is that of the terms that the weight is a sum of.

    `read` (Head.read) says how n was pooled: beta is multiplied by the sum of the tokens' weights, which is 1 unless
    they are given.
    """
    beta, bias = (
        x.new_zeros(k) if b is None else b
        for b, k, x in ((norm.beta, norm.width, weight), (bias, weight.shape[1], weight))
    )
    beta_size = beta.abs()
    if isinstance(read, Tensor):  # a sum of more terms than n has features rounds more
        beta, beta_size = beta * read.sum(), beta_size * read.abs().sum() * max(1.0, len(read) / norm.width)
    bias_size = beta_size @ (weight.abs() if size is None else size) + bias.abs()
    weight_size = None if size is None else norm.gamma.abs()[:, None] * size
    return ops.dense(n, norm.gamma[:, None] * weight, beta @ weight + bias, weight_size, bias_size)


def softmax(ops: Operators[V], u: V, attention: Attention) -> V:
    """exp, its sum over the visible keys, the reciprocal, and the product: (H, S, S) -> (H, S, S)."""
    visible = attention.visible(ops.bounds(u).lower.shape[-1])
    u = ops.relative(u, visible)
    box = ops.bounds(u)
    low, high = (end.masked_fill(~visible, -math.inf).amax(-1, keepdim=True) for end in (box.lower, box.upper))
    shift = (low + high) / 2  # keeps the largest exp from overflowing and the smallest sum from underflowing
    e = ops.apply(ShiftedExp(shift, visible), u)
    total = ops.dense(e, torch.ones_like(shift[0, :, :1]), None)
    return times(ops, e, ops.apply(RECIPROCAL, total), softmax_range(box, visible))


def times(ops: Operators[V], x: V, y: V, known: Interval | None = None) -> V:
    """x * y with y (..., 1); `known`, if given, holds the product."""
    column = None if known is None else known.arranged(COLUMN.there)
    product = ops.matmul(ops.arrange(x, COLUMN), ops.arrange(y, COLUMN), column)  # (..., n, 1) @ (..., 1, 1)
    return ops.arrange(product, FLAT)
