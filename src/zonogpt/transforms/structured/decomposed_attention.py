"""Attention operator by operator (variants D and M): the paper names it and prints no transform; this is ours.

Each operator (LayerNorm, projection, score product, softmax, value product, W_o) maps one structured zonotope to the
next. A query token keeps the shared symbols and its own local ones, with the operator's own slope; whatever it receives
from another token's local symbols, and every operator's error, becomes an interval *at that operator* and goes
on through absolute values of the weights. The skip is added last. Derivations: docs/math.md, Lemma 5.8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, temporary_bytes
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import up
from zonogpt.domains.structured import StructuredZonotope, abs_sum
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.nodes import Attention, Block
from zonogpt.support.tensors import moved
from zonogpt.transforms.attention_rounding import AttentionRounding
from zonogpt.transforms.softmax import SoftmaxBounds, softmax_bounds
from zonogpt.transforms.structured.attention import branch_rounding, rounding_of, tangent_rounding
from zonogpt.transforms.structured.attention_point import (
    AttentionPoint,
    attention_point,
    local_tangents,
    shared_images,
    shared_tangents,
)
from zonogpt.transforms.structured.layernorm import LayerNormBounds, layernorm_bounds
from zonogpt.transforms.structured.widths import Widths


@dataclass(frozen=True)
class OperatorRadii:
    """Radii at each operator's output: of shared and own-token symbols together (`kept`), and of the interval (`b`).

    Contract, for X in Q, K, V, U, P:  |X(x) - X| <= kept + b, and X(x) minus its kept linear part stays within b.
    """

    kept_Q: Tensor  # (H, S, e)
    kept_K: Tensor
    kept_V: Tensor
    local_V: Tensor  # the local symbols' share of kept_V: for other tokens' queries it is an interval
    b_Q: Tensor
    b_K: Tensor
    b_V: Tensor
    kept_U: Tensor  # (H, S, S)
    b_U: Tensor
    kept_P: Tensor  # before any softmax slope is dropped
    softmax: SoftmaxBounds

    @property
    def b_P(self) -> Tensor:
        return self.softmax.remainder


def operator_radii(
    point: AttentionPoint, narrow: AttentionPoint, norm: LayerNormBounds, z: StructuredZonotope, r: AttentionRounding
) -> OperatorRadii:
    attention, e = point.attention, point.Q.shape[-1]
    sums = {name: torch.zeros_like(point.Q) for name in ("Q", "K", "V")}
    local = {name: torch.zeros_like(point.Q) for name in ("Q", "K", "V")}
    kept_U, kept_P = torch.zeros_like(point.P), torch.zeros_like(point.P)
    for part in chunks(z.m, _bytes(point), temporary_bytes(z.c.device.type)):
        t = shared_tangents(narrow, norm.jacobian(z.G[part].transpose(0, 1)).transpose(0, 1))
        for name in sums:
            sums[name] += _abs_sum(getattr(t, name), 0)
        kept_U += _abs_sum(t.U, 0)
        kept_P += _abs_sum(t.P, 0)
    for part in chunks(z.q, _bytes(point), temporary_bytes(z.c.device.type)):
        own = local_tangents(narrow, norm.jacobian(z.L[:, part]))
        for name in local:
            local[name] += _abs_sum(getattr(own, name), 1).transpose(0, 1)
        kept_U += _abs_sum(own.row, 1).transpose(0, 1)
        kept_P += _abs_sum(own.row_P, 1).transpose(0, 1)
    sums, local = ({name: up(x, z.m + z.q) for name, x in family.items()} for family in (sums, local))
    kept_U, kept_P = up(kept_U, z.m + z.q), up(kept_P, z.m + z.q) + tangent_rounding(point, r)
    b_Q, b_K, b_V = (attention.split_heads(up(norm.R_N @ w.abs(), attention.width)) for w, _ in attention.projections)
    b_Q, b_K, b_V = b_Q + r.query, b_K + r.key, b_V + r.value(z.G.dtype)
    T_Q, T_K = sums["Q"] + local["Q"] + b_Q, sums["K"] + local["K"] + b_K

    others = 1 - torch.eye(point.n_tokens, dtype=point.P.dtype, device=point.P.device)
    b_U = b_Q @ point.K.abs().transpose(-1, -2) + point.Q.abs() @ b_K.transpose(-1, -2)
    b_U = b_U + (point.Q.abs() @ local["K"].transpose(-1, -2)) * others + T_Q @ T_K.transpose(-1, -2)
    b_U = up(b_U * attention.scale + r.scores, 4 * e).masked_fill(~point.visible, 0.0)
    softmax = softmax_bounds(point.log_P, f_P=kept_P, R_U=b_U, T_U=up(kept_U + b_U), doubt=point.doubt)
    require_finite("attention softmax", softmax.remainder, softmax.total)
    return OperatorRadii(
        kept_Q=sums["Q"] + local["Q"],
        kept_K=sums["K"] + local["K"],
        kept_V=sums["V"] + local["V"],
        local_V=local["V"],
        b_Q=b_Q,
        b_K=b_K,
        b_V=b_V,
        kept_U=kept_U,
        b_U=b_U,
        kept_P=kept_P,
        softmax=softmax,
    )


def decomposed_attention(
    block: Block[Attention], z: StructuredZonotope, arithmetic: Arithmetic = "real"
) -> tuple[StructuredZonotope, Widths]:
    """Z_A with A(x) in Z_A for x in z, z's symbols kept in place. Appends no generator: all errors are intervals."""
    norm = layernorm_bounds(block.norm, z)
    attention = block.branch
    point = attention_point(attention, norm.centre)
    narrow = moved(point, z.c.device, z.G.dtype)
    off = rounding_of(point, norm, z)
    r = operator_radii(point, narrow, norm, z, off)
    softmax = r.softmax

    G = z.G.clone()
    for part in chunks(z.m, _bytes(point), temporary_bytes(z.c.device.type)):
        n_dot = norm.jacobian(z.G[part].transpose(0, 1)).transpose(0, 1)
        G[part] += shared_images(narrow, shared_tangents(narrow, n_dot), softmax.sloped)
    L = z.L.clone()
    P_own = narrow.P.diagonal(dim1=-2, dim2=-1).T  # (S, H): each query's weight on itself
    sloped = softmax.sloped.T[:, None, :, None].to(z.G.dtype)  # (S, 1, H, 1)
    for part in chunks(z.q, _bytes(point), temporary_bytes(z.c.device.type)):
        own = local_tangents(narrow, norm.jacobian(z.L[:, part]))
        O_dot = torch.einsum("snhj,hje->snhe", own.row_P * sloped, narrow.V) + P_own[:, None, :, None] * own.V
        L[:, part] += O_dot.flatten(-2) @ narrow.attention.w_o

    others = 1 - torch.eye(z.n_tokens, dtype=z.c.dtype, device=z.c.device)
    w_o = attention.w_o.abs()
    from_softmax = attention.join_heads(softmax.remainder @ point.V.abs()) @ w_o
    from_norm = attention.join_heads(point.P @ r.b_V) @ w_o
    crossed = attention.join_heads((point.P * others) @ r.local_V) @ w_o
    product = attention.join_heads(softmax.total @ (r.kept_V + r.b_V)) @ w_o
    rounding = branch_rounding(norm, point, off, softmax, z, arithmetic)
    errors = up(from_softmax + from_norm + crossed + product, z.n_tokens + z.c.shape[1])
    out = StructuredZonotope(z.c + point.branch(), G, L, up(errors + rounding))
    require_finite("attention output", out.c, out.G, out.L, out.b)
    widths = Widths.of(
        carried=abs_sum(G, 0) + abs_sum(L, 1),
        cross_token=crossed,
        layernorm=from_norm,
        softmax=from_softmax,
        product=product,
        rounding=rounding,
    )
    return out, widths


def _abs_sum(tangents: Tensor, dim: int) -> Tensor:
    """The sum of absolute values over `dim`, rounded up in the tangents' own type."""
    return up(tangents.abs().sum(dim), tangents.shape[dim])


def _bytes(point: AttentionPoint) -> int:
    """Bytes that one generator per token needs while it passes through the branch."""
    H, S, e = point.Q.shape
    return point.Q.element_size() * (6 * S * H * e + 3 * H * S * S)
