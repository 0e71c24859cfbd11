"""The MLP block, sequential and fused (paper, sections "MLP Block Transform" and "Fused MLP Transform").

Both keep the old symbols through `x + (LN slope) W_1 diag(slope) W_2`. That chain is multiplied out once per token,
a (d, d) matrix, and applied to all generators: they meet the hidden units only once, to bound the preactivations, and
hidden-width generators are never held. Derivations: docs/math.md, section 6 and Lemma 13.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, temporary_bytes
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import StructuredZonotope, abs_sum
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.nodes import Block, Mlp, dense
from zonogpt.transforms.activations import bounds_of
from zonogpt.transforms.structured.layernorm import LayerNormBounds, layernorm_bounds
from zonogpt.transforms.structured.mlp_rounding import HiddenRounding, Value, executed, hidden_rounding, output_rounding
from zonogpt.transforms.structured.widths import Widths


@dataclass(frozen=True)
class _Hidden:
    """The activation's input t, with |t - centre| <= radius; and its rounding."""

    norm: LayerNormBounds
    centre: Tensor  # (S, f)
    radius: Tensor  # (S, f)
    rounding: HiddenRounding


def _hidden(block: Block[Mlp], z: StructuredZonotope) -> _Hidden:
    mlp, norm = block.branch, layernorm_bounds(block.norm, z)
    centre, rounding = dense(norm.centre, mlp.w_1, mlp.b_1), hidden_rounding(mlp, norm, z)
    radius = up(preactivation_radius(mlp, norm, z) + rounding.all_told(centre), len(mlp.w_1))
    require_finite("GELU input", centre, radius)
    return _Hidden(norm, centre, radius, rounding)


def sequential_mlp(
    block: Block[Mlp], z: StructuredZonotope, arithmetic: Arithmetic = "real"
) -> tuple[StructuredZonotope, Widths]:
    """Z_M with M(x) in Z_M for x in z, the symbols of z kept in place: LayerNorm, W_1, affine GELU, W_2 in turn.

    Appends per token d generators for LayerNorm's error and f for GELU's. Memory O(S d (m + q + d + f)).
    """
    h, mlp = _hidden(block, z), block.branch
    slope, mid, half = bounds_of(mlp.activation).strip(h.centre - h.radius, h.centre + h.radius)

    narrow = z.G.dtype
    G, L = _carried(mlp, h.norm, slope, z)
    E = h.norm.error_generators()
    E = torch.stack([e @ _chain(mlp, a) for e, a in zip(E, slope, strict=True)]).to(narrow)
    gelu_generators = (half[:, :, None] * mlp.w_2).to(narrow)  # (S, f, d)
    value = slope * h.centre + mid
    forming = gamma(4, narrow) * half + gamma(4, z.c.dtype) * mid.abs()
    rounding = output_rounding(mlp, z, h.rounding, Value(value, slope, forming))
    if arithmetic == "float32":
        rounding = rounding + executed(mlp, z, h.norm, up(h.centre.abs() + h.radius))
    out = StructuredZonotope(
        c=z.c + dense(value, mlp.w_2, mlp.b_2),
        G=G,
        L=torch.cat([L, E, gelu_generators], dim=1),
        b=up(rounding),
    )
    require_finite("MLP output", out.c, out.G, out.L, out.b)
    widths = Widths.of(
        carried=abs_sum(G, 0) + abs_sum(L, 1),
        layernorm=abs_sum(E, 1),
        gelu=half @ mlp.w_2.abs(),
        rounding=rounding,
    )
    return out, widths


def fused_mlp(
    block: Block[Mlp], z: StructuredZonotope, arithmetic: Arithmetic = "real"
) -> tuple[StructuredZonotope, Widths]:
    """Z_M with M(x) in Z_M for x in z, the block linearised at the centre as a whole and its error an interval R_M.

    Cheaper than the sequential transform (no hidden unit gets a generator of its own) and looser.
    """
    h, mlp, wide = _hidden(block, z), block.branch, z.c.dtype
    (d, f), of = mlp.w_1.shape, bounds_of(mlp.activation)
    slope, value = of.slope(h.centre), mlp.activation(h.centre)
    # The slope may be off, which adds to the bend in first order. Its size is at most 2, and so are its parts'.
    bend = 0.5 * of.curvature(h.centre - h.radius, h.centre + h.radius) * h.radius.square()
    bend = up(bend + gamma(of.slope_units, wide) * (1 + h.centre.abs()) * h.radius)
    G, L = _carried(mlp, h.norm, slope, z)
    chains = (_error_chain(h.norm, mlp, a).abs() for a in slope)
    from_norm = torch.stack([r @ chain for r, chain in zip(h.norm.R_hat, chains, strict=True)])
    from_gelu = up(bend @ mlp.w_2.abs(), f)
    forming = gamma(of.value_units, wide) * h.centre.abs()
    rounding = output_rounding(mlp, z, h.rounding, Value(value, slope, forming))
    if arithmetic == "float32":
        rounding = rounding + executed(mlp, z, h.norm, up(h.centre.abs() + h.radius))
    out = StructuredZonotope(z.c + dense(value, mlp.w_2, mlp.b_2), G, L, up(up(from_norm, d) + from_gelu + rounding))
    require_finite("MLP output", out.c, out.G, out.L, out.b)
    widths = Widths.of(carried=abs_sum(G, 0) + abs_sum(L, 1), layernorm=from_norm, gelu=from_gelu, rounding=rounding)
    return out, widths


def preactivation_radius(mlp: Mlp, norm: LayerNormBounds, z: StructuredZonotope) -> Tensor:
    """(S, f): bounds |W_1 (LN(x) - norm.centre)| over z, generator by generator, without the rounding of products."""
    # LayerNorm's error is mean-free, so each column of diag(gamma) W_1 may be centred before |.| is taken, or not.
    weighted = norm.norm.gamma[:, None] * mlp.w_1
    radius = torch.minimum(norm.R_hat @ weighted.abs(), norm.R_hat @ norm.norm.centre(weighted.T).T.abs())
    narrow = z.G.dtype
    w_1 = mlp.w_1.to(narrow)
    for stack in z.generator_stacks():
        each = 2 * radius.numel() * radius.element_size()
        for part in chunks(stack.shape[1], each, temporary_bytes(stack.device.type)):
            tangents = norm.jacobian(stack[:, part]) @ w_1
            radius = radius + up(tangents.abs().sum(1), tangents.shape[1]).to(radius.dtype)
    underflow = (z.m + z.q) * len(w_1) * torch.finfo(narrow).tiny
    return up(radius + underflow, z.m + z.q + len(w_1))


def _chain(mlp: Mlp, slope: Tensor) -> Tensor:
    """W_1 diag(slope) W_2 of one token, (d, d)."""
    return (mlp.w_1 * slope) @ mlp.w_2


def _error_chain(norm: LayerNormBounds, mlp: Mlp, slope: Tensor) -> Tensor:
    """The chain seen by LayerNorm's normalised, mean-free error ehat, (d, d)."""
    chain = norm.norm.gamma[:, None] * _chain(mlp, slope)
    return norm.norm.centre(chain.T).T


def _carried(mlp: Mlp, norm: LayerNormBounds, slope: Tensor, z: StructuredZonotope) -> tuple[Tensor, Tensor]:
    """The old generators behind the block: v + (J_LN v) W_1 diag(slope) W_2, shared and local."""
    G, L = z.G.clone(), z.L.clone()
    chains = torch.stack([_chain(mlp, a) for a in slope])  # (S, d, d)
    chains = chains.to(z.G.dtype)
    for stack in (G.transpose(0, 1), L):
        each = 2 * stack.shape[0] * stack.shape[2] * stack.element_size()
        for part in chunks(stack.shape[1], each, temporary_bytes(stack.device.type)):
            stack[:, part] += norm.jacobian(stack[:, part]) @ chains
    return G, L
