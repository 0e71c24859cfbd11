"""How far a run of the network in float32 may be from the network in real arithmetic, block by block.

A run is any execution of Hugging Face's model in IEEE float32: sums in any order, fused multiply-adds or not,
elementary functions off by LIBRARY units, LayerNorm's variance as a mean of squares of differences from a computed mean
(in two passes or by updates), softmax with some number near the row's maximum taken off first. Results and operands
below SMALLEST may be denormal or flushed to zero. For every input x that is made of float32 numbers,

    |executed(x) - block(x)| <= error,

which joins the block's own error. x is the executed input: the set that it lies in includes earlier blocks' errors.
Sizes bound absolute values over the whole set. Derivations: docs/math.md, section 14.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.rounding import LIBRARY, gamma, gammas, length, up
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.nodes import Attention, Head, Mlp, Norm, size_of
from zonogpt.spec.inputs import Box
from zonogpt.transforms.activations import bounds_of
from zonogpt.transforms.queries import Queries

SMALLEST = torch.finfo(torch.float32).tiny  # the smallest normal number: what is below it may be lost
LARGEST = 1e38  # below a third of float32's largest number: with this much room no partial sum overflows


def rounds(k: int) -> float:
    """gamma_k of float32."""
    return gamma(k, torch.float32)


def lost(count: Tensor | float) -> Tensor | float:
    """`count` times SMALLEST, with room for what is added to that: the most that underflow may lose.

    A product counts 1, each of its operands as much as the other factor, and a sum or difference 3.
    """
    return count * (1.01 * SMALLEST)


def lost_in_dense(x: Tensor, weight: Tensor) -> Tensor:
    """(..., out): lost in x @ weight plus a bias, for |x| (..., k) that has lost up to 8 SMALLEST itself."""
    return torch.as_tensor(lost(x.sum(-1, keepdim=True) + 8 * weight.abs().sum(0) + 8 * (len(weight) + 2)))


def finite(error: Tensor, *sizes: Tensor) -> Tensor:
    """`error`, or infinity where `sizes` say that a number that an execution forms may not fit into float32."""
    for size in sizes:
        error = torch.where(size < LARGEST, error, math.inf)  # NaN: infinite
    return error


def embedding_rounding(box: Box, raw: Tensor, arithmetic: Arithmetic) -> Tensor:
    """(S, d): bounds the error of `box.embed(raw)`, with float32 plus that of executions anywhere in the box."""
    terms = box.embed.summands
    off = gamma(terms + 4, raw.dtype) * box.embed.sizes(raw)
    if arithmetic == "float32":
        most = torch.maximum(box.lower.abs(), box.upper.abs())
        size = box.embed.sizes(most)
        off = off + finite(rounds(terms + 4) * size + lost(box.embed.factors(most) + 8 * (terms + 2)), size)
    return up(off, terms)


def norm_error(norm: Norm, centred: Tensor, size: Tensor, rho: Tensor) -> Tensor:
    """(..., d): the error of an executed LayerNorm.

    `centred` and `size` (..., d) bound |x - mean(x)| and |x|, `rho` (...) bounds 1 / sqrt(a).
    """
    d = size.shape[-1]
    # The error of x - mean(x). Updates of a running mean forget what they rounded: d operations, and some from 1/k.
    off = rounds(d + 3 * d.bit_length() + 12) * size.mean(-1, keepdim=True) + rounds(4) * centred
    off = up(off + lost(8 * (d + 4)), d)
    # The variance v is off by at most 4 sqrt(v) |off| + 2 |off|^2 (root mean squares), and as any sum; v rho^2 <= 1.
    small = up(rho * length(off) / math.sqrt(d))
    part = small * (4 + 2 * small) + rounds(d + 8) * (1 + small).square()  # of a, relative
    # Underflow of the squares, or of the products of updates, whose factors are at most 2 max|x|.
    part = up(part + lost(4 * size.amax(-1) + 32) * rho.square())
    # 1 / sqrt(1 - part) - 1 <= part for part <= 1/2.
    relative = torch.where(part <= 0.5, part, math.inf) + rounds(LIBRARY + 8)
    normalised = up(rho[..., None] * centred).clamp(max=math.sqrt(d))
    error = rho[..., None] * off * (1 + relative[..., None]) + normalised * relative[..., None]
    # Updates may even leave a variance of zero: then only tau divides what is left of x - mean(x).
    left = norm.tau**-0.5 * (centred + off) * (1 + rounds(LIBRARY + 8))
    error = torch.fmin(error, up(left + normalised))
    squares = length(centred + off)
    error = finite(error, (squares * squares)[..., None], size.sum(-1, keepdim=True))
    gamma_size, output = norm.gamma.abs(), norm.gamma.abs() * (normalised + error) + size_of(norm.beta)
    return finite(up(gamma_size * error + rounds(4) * output + lost(gamma_size + normalised + error + 8), d), output)


def dense_error(size: Tensor, error: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(..., out): the error of an executed x @ weight + bias, for |x| <= size that is itself off by `error`."""
    k = weight.shape[0]
    n = size.shape[-2]
    sizes, errors = (torch.cat([size + error, error], dim=-2) @ weight.abs()).split(n, dim=-2)
    error = errors + rounds(k + 2) * (sizes + size_of(bias)) + lost_in_dense(size + error, weight)
    return finite(up(error, k), sizes + size_of(bias))


@dataclass(frozen=True)
class AttentionSizes:
    """Bounds of absolute values on the way through an attention branch, over the whole set."""

    Q: Tensor  # (..., H, I, e)
    K: Tensor  # (..., H, S, e)
    V: Tensor  # (..., H, S, e)
    P: Tensor  # (..., H, I, S): of the probabilities; 0 where hidden
    n: Tensor  # (..., S, d): of LayerNorm's output
    n_error: Tensor  # (..., S, d): what an execution of that is off by
    skip: Tensor  # (..., I, d): of what the branch is added to


def attention_error(attention: Attention, queries: Queries, sizes: AttentionSizes) -> Tensor:
    """(..., I, d): the error of an executed x + branch(n) at the queries."""
    Q, K, V, P, n, n_error = sizes.Q, sizes.K, sizes.V, sizes.P, sizes.n, sizes.n_error
    S, e, d, skip = *K.shape[-2:], attention.longest, sizes.skip
    keys = (P > 0).sum(-1, keepdim=True)  # that a query sees: the number of terms in sums over keys
    of_query, of_key, of_value = attention.projections
    asking, asking_error = (queries.of_all(x, -2) for x in (n, n_error))
    dQ = attention.split_heads(dense_error(asking, asking_error, *of_query))
    dK, dV = (attention.split_heads(dense_error(n, n_error, *of)) for of in (of_key, of_value))
    pairs = (Q + dQ) @ (K + dK).mT
    scores = (dQ @ (K + dK).mT + Q @ dK.mT + rounds(e + 6) * pairs) * attention.scale
    # dQ and dK include underflow of queries and keys; a few SMALLEST more in scores are far below a unit of P.
    largest = (pairs * attention.scale).masked_fill(P == 0, 0.0).amax(-1, keepdim=True)
    # Numerators and their sum: exponents are off by the scores' error and by the rounding of subtracting the maximum.
    worst = up((scores.masked_fill(P == 0, 0.0) + rounds(4) * largest).amax(-1, keepdim=True), e + S)
    dP = P * torch.expm1(2 * worst + gammas(keys + 4 * LIBRARY + 8, torch.float32, P))
    dP = dP + lost(4 * keys + 8) * (P > 0)  # numerators that underflow, and their sum
    heads = P @ V
    dO = up(dP @ (V + dV) + P @ dV + gammas(keys + 2, torch.float32, P) * ((P + dP) @ (V + dV)), 2 * S)
    dO = dO + lost(4 * keys + 8)
    joined, off = attention.join_heads(heads + dO), attention.join_heads(dO)
    out, moved = (torch.cat([joined, off], dim=-2) @ attention.w_o.abs()).chunk(2, dim=-2)
    whole = out + size_of(attention.b_o) + skip
    error = up(moved + rounds(d + 4) * whole + lost_in_dense(joined, attention.w_o), 2 * d)
    overflow = pairs.amax((-1, -3))[..., None]  # (..., I, 1), with the scale not yet applied
    return finite(error, whole, overflow)


def mlp_error(mlp: Mlp, hidden: Tensor, n: Tensor, n_error: Tensor, skip: Tensor) -> Tensor:
    """(..., n, d): the error of an executed x + branch(n).

    `hidden` (..., n, f) bounds the activation's input, the others are as in AttentionSizes.
    """
    f, of = mlp.w_1.shape[1], bounds_of(mlp.activation)
    off = dense_error(n, n_error, mlp.w_1, mlp.b_1)
    moved = up(of.steepest * off + rounds(of.executed_units) * (hidden + off))
    out, moved_out = (torch.cat([hidden + moved, moved], dim=-2) @ mlp.w_2.abs()).split(n.shape[-2], dim=-2)
    whole = out + size_of(mlp.b_2) + skip
    error = moved_out + rounds(f + 4) * whole + lost_in_dense(hidden + moved, mlp.w_2)
    return finite(up(error, 2 * f), whole)


def output_error(head: Head, pool: Tensor, n: Tensor, n_error: Tensor) -> Tensor:
    """(..., outputs): the error of executed outputs; n and n_error (..., S, d) are the final LayerNorm's, as in
    AttentionSizes, and `pool` (S,) weighs its tokens."""
    S, d = int((pool != 0).sum()), n.shape[-1]
    size, off = (torch.einsum("s,...sd->...d", pool.abs(), x) for x in (n + n_error, n_error))
    off = up(off + rounds(S + 2) * size, S)
    outputs = (size + off) @ head.weight.abs() + size_of(head.bias)
    error = off @ head.weight.abs() + rounds(d + 2) * outputs + lost_in_dense(size + off, head.weight)
    return finite(up(error, 2 * d), outputs, (S * (size + off)).amax(-1, keepdim=True))  # tokens are added up first
