"""The MLP block, sequential and fused (paper, sections "MLP Block Transform" and "Fused MLP Transform").

Both keep the old symbols through `x + (LN slope) W_1 diag(slope) W_2`. That chain is multiplied out once per token,
a (d, d) matrix, and applied to all generators: they meet the hidden units only once, to bound the preactivations, and
hidden-width generators are never held. Derivations: docs/math.md, sections "MLP" and "Rounding".
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
from zonogpt.model.ir import MlpBlock
from zonogpt.transforms.execution import mlp_error
from zonogpt.transforms.gelu import affine_gelu, curvature_bound, gelu, gelu_slope
from zonogpt.transforms.layernorm import LayerNormBounds, layernorm_bounds
from zonogpt.transforms.widths import Widths


@dataclass(frozen=True)
class _Hidden:
    """GELU's input: t = centre + (what moves), |t - centre| <= radius; and what its rounding is relative to."""

    norm: LayerNormBounds
    centre: Tensor  # (S, f)
    radius: Tensor  # (S, f)
    off: Tensor  # (S, f): the centre is W_1 norm.centre + b_1 up to this
    moving: Tensor  # (S, f): |W_1||LN(x) - norm.centre|


def _hidden(block: MlpBlock, z: StructuredZonotope) -> _Hidden:
    d, wide, narrow = block.w_1.shape[0], z.c.dtype, z.G.dtype
    norm = layernorm_bounds(block.norm, z)
    centre = norm.centre @ block.w_1 + block.b_1
    at_centre, moving, lost = (torch.cat([norm.centre.abs(), norm.reach, norm.rounding]) @ block.w_1.abs()).chunk(3)
    off = up(gamma(d + 2, wide) * (at_centre + block.b_1.abs()), d)
    moving = up(moving, d)
    radius = preactivation_radius(block, norm, z) + lost + off
    radius = up(radius + gamma(2 * d + 8, narrow) * moving + gamma(2, wide) * centre.abs(), d)
    require_finite("GELU input", centre, radius)
    return _Hidden(norm, centre, radius, off, moving)


def _output_rounding(
    block: MlpBlock,
    h: _Hidden,
    z: StructuredZonotope,
    value: Tensor,
    slope: Tensor,
    doubt: Tensor,
    arithmetic: Arithmetic,
) -> Tensor:
    """(S, d): what the block's output misses: LayerNorm's rounding, that of the centre, and of all that is linear; and
    the skip's interval.

    `value` (S, f) is GELU's output at the centre, off by `doubt`; `slope` its slope.
    """
    (d, f), wide, narrow = block.w_1.shape, z.c.dtype, z.G.dtype
    slope = slope.abs()
    lost = h.norm.rounding @ block.w_1.abs()
    doubt = up(doubt + slope * (h.off + lost) + gamma(4, wide) * value.abs(), d)
    at_centre, doubt, moving = (torch.cat([value.abs(), doubt, slope * h.moving]) @ block.w_2.abs()).chunk(3)
    rounding = gamma(f + 3, wide) * (z.c.abs() + at_centre + block.b_2.abs()) + doubt
    underflow = (z.m + z.q + d + f) * (d + f) * torch.finfo(narrow).tiny  # of old and new generators
    rounding = up(rounding + gamma(3 * d + f + 16, narrow) * (z.radius + moving) + underflow, 2 * f) + z.b
    if arithmetic == "real":
        return rounding
    hidden, skip = up(h.centre.abs() + h.radius), up(z.c.abs() + z.radius)
    return rounding + mlp_error(block, hidden, h.norm.size, h.norm.execution_error(z), skip)


def sequential_mlp(
    block: MlpBlock, z: StructuredZonotope, arithmetic: Arithmetic = "real"
) -> tuple[StructuredZonotope, Widths]:
    """Z_M with M(x) in Z_M for x in z, the symbols of z kept in place: LayerNorm, W_1, affine GELU, W_2 in turn.

    Appends per token d generators for LayerNorm's error and f for GELU's. Memory O(S d (m + q + d + f)).
    """
    h = _hidden(block, z)
    slope, mid, half = affine_gelu(h.centre - h.radius, h.centre + h.radius)

    narrow = z.G.dtype
    G, L = _carried(block, h.norm, slope, z)
    E = h.norm.error_generators()
    E = torch.stack([e @ _chain(block, a) for e, a in zip(E, slope, strict=True)]).to(narrow)
    gelu_generators = (half[:, :, None] * block.w_2).to(narrow)  # (S, f, d)
    value = slope * h.centre + mid
    forming = gamma(4, narrow) * half + gamma(4, z.c.dtype) * mid.abs()
    rounding = _output_rounding(block, h, z, value, slope, forming, arithmetic)
    out = StructuredZonotope(
        c=z.c + value @ block.w_2 + block.b_2,
        G=G,
        L=torch.cat([L, E, gelu_generators], dim=1),
        b=up(rounding),
    )
    require_finite("MLP output", out.c, out.G, out.L, out.b)
    widths = Widths.of(
        carried=abs_sum(G, 0) + abs_sum(L, 1),
        layernorm=abs_sum(E, 1),
        gelu=half @ block.w_2.abs(),
        rounding=rounding,
    )
    return out, widths


def fused_mlp(
    block: MlpBlock, z: StructuredZonotope, arithmetic: Arithmetic = "real"
) -> tuple[StructuredZonotope, Widths]:
    """Z_M with M(x) in Z_M for x in z, the block linearised at the centre as a whole and its error an interval R_M.

    Cheaper than the sequential transform (no hidden unit gets a generator of its own) and looser.
    """
    h = _hidden(block, z)
    (d, f), wide = block.w_1.shape, z.c.dtype
    slope, value = gelu_slope(h.centre), gelu(h.centre)
    # The slope may be off: that is one more bend, in first order. Its size is at most 2, and so are its parts'.
    bend = 0.5 * curvature_bound(h.centre - h.radius, h.centre + h.radius) * h.radius.square()
    bend = up(bend + gamma(48, wide) * (1 + h.centre.abs()) * h.radius)
    G, L = _carried(block, h.norm, slope, z)
    chains = (_error_chain(h.norm, block, a).abs() for a in slope)
    from_norm = torch.stack([r @ chain for r, chain in zip(h.norm.R_hat, chains, strict=True)])
    from_gelu = up(bend @ block.w_2.abs(), f)
    rounding = _output_rounding(block, h, z, value, slope, gamma(12, wide) * h.centre.abs(), arithmetic)
    out = StructuredZonotope(z.c + value @ block.w_2 + block.b_2, G, L, up(up(from_norm, d) + from_gelu + rounding))
    require_finite("MLP output", out.c, out.G, out.L, out.b)
    widths = Widths.of(carried=abs_sum(G, 0) + abs_sum(L, 1), layernorm=from_norm, gelu=from_gelu, rounding=rounding)
    return out, widths


def preactivation_radius(block: MlpBlock, norm: LayerNormBounds, z: StructuredZonotope) -> Tensor:
    """(S, f): bounds |W_1 (LN(x) - norm.centre)| over z, generator by generator; rounding of products apart."""
    # LayerNorm's error is mean-free, so each column of diag(gamma) W_1 may be centred before |.| is taken, or not.
    weighted = block.norm.gamma[:, None] * block.w_1
    radius = torch.minimum(norm.R_hat @ weighted.abs(), norm.R_hat @ (weighted - weighted.mean(0)).abs())
    narrow = z.G.dtype
    w_1 = block.w_1.to(narrow)
    for stack in z.generator_stacks():
        each = 2 * radius.numel() * radius.element_size()
        for part in chunks(stack.shape[1], each, temporary_bytes(stack.device.type)):
            tangents = norm.jacobian(stack[:, part]) @ w_1
            radius = radius + up(tangents.abs().sum(1), tangents.shape[1]).to(radius.dtype)
    underflow = (z.m + z.q) * len(w_1) * torch.finfo(narrow).tiny
    return up(radius + underflow, z.m + z.q + len(w_1))


def _chain(block: MlpBlock, slope: Tensor) -> Tensor:
    """W_1 diag(slope) W_2 of one token, (d, d)."""
    return (block.w_1 * slope) @ block.w_2


def _error_chain(norm: LayerNormBounds, block: MlpBlock, slope: Tensor) -> Tensor:
    """The chain seen by LayerNorm's normalised, mean-free error ehat, (d, d)."""
    chain = norm.norm.gamma[:, None] * _chain(block, slope)
    return chain - chain.mean(0)


def _carried(block: MlpBlock, norm: LayerNormBounds, slope: Tensor, z: StructuredZonotope) -> tuple[Tensor, Tensor]:
    """The old generators behind the block: v + (J_LN v) W_1 diag(slope) W_2, shared and local."""
    G, L = z.G.clone(), z.L.clone()
    chains = torch.stack([_chain(block, a) for a in slope])  # (S, d, d)
    chains = chains.to(z.G.dtype)
    for stack in (G.transpose(0, 1), L):
        each = 2 * stack.shape[0] * stack.shape[2] * stack.element_size()
        for part in chunks(stack.shape[1], each, temporary_bytes(stack.device.type)):
            stack[:, part] += norm.jacobian(stack[:, part]) @ chains
    return G, L
