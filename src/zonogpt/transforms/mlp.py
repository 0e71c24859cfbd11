"""The MLP block, sequential and fused (paper, sections "MLP Block Transform" and "Fused MLP Transform").

Both keep the old symbols through `x + (LN slope) W_1 diag(slope) W_2`. That chain is multiplied out once per token,
a (d, d) matrix, and applied to all generators: they meet the hidden units only once, to bound the preactivations, and
hidden-width generators are never held. Derivations: docs/math.md, section "MLP".
"""

from __future__ import annotations

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, temporary_bytes
from zonogpt.domains.finite import require_finite
from zonogpt.domains.structured import StructuredZonotope, abs_sum
from zonogpt.model.ir import MlpBlock
from zonogpt.transforms.gelu import affine_gelu, curvature_bound, gelu, gelu_slope
from zonogpt.transforms.layernorm import LayerNormBounds, layernorm_bounds
from zonogpt.transforms.widths import Widths


def sequential_mlp(block: MlpBlock, z: StructuredZonotope) -> tuple[StructuredZonotope, Widths]:
    """Z_M with M(x) in Z_M for x in z, the symbols of z kept in place: LayerNorm, W_1, affine GELU, W_2 in turn.

    Appends per token d generators for LayerNorm's error and f for GELU's. Memory O(S d (m + q + d + f)).
    """
    norm = layernorm_bounds(block.norm, z)
    centre = norm.centre @ block.w_1 + block.b_1  # (S, f)
    radius = preactivation_radius(block, norm, z)
    require_finite("GELU input", centre, radius)
    slope, mid, half = affine_gelu(centre - radius, centre + radius)

    G, L = _carried(block, norm, slope, z)
    E = norm.error_generators()
    E = torch.stack([e @ _chain(block, a) for e, a in zip(E, slope, strict=True)])
    gelu_generators = half[:, :, None] * block.w_2  # (S, f, d)
    out = StructuredZonotope(
        c=z.c + (slope * centre + mid) @ block.w_2 + block.b_2,
        G=G,
        L=torch.cat([L, E, gelu_generators], dim=1),
        b=torch.zeros_like(z.b),
    )
    require_finite("MLP output", out.c, out.G, out.L)
    widths = Widths.of(
        carried=abs_sum(G, 0) + abs_sum(L, 1),
        layernorm=abs_sum(E, 1),
        gelu=half @ block.w_2.abs(),
    )
    return out, widths


def fused_mlp(block: MlpBlock, z: StructuredZonotope) -> tuple[StructuredZonotope, Widths]:
    """Z_M with M(x) in Z_M for x in z, the block linearised at the centre as a whole and its error an interval R_M.

    Cheaper than the sequential transform (no hidden unit gets a generator of its own) and looser.
    """
    norm = layernorm_bounds(block.norm, z)
    centre = norm.centre @ block.w_1 + block.b_1  # (S, f)
    change = preactivation_radius(block, norm, z)
    require_finite("GELU input", centre, change)
    slope = gelu_slope(centre)
    bend = 0.5 * curvature_bound(centre - change, centre + change) * change.square()
    G, L = _carried(block, norm, slope, z)
    from_norm = torch.stack([(r @ _error_chain(norm, block, a).abs()) for r, a in zip(norm.R_hat, slope, strict=True)])
    from_gelu = bend @ block.w_2.abs()
    out = StructuredZonotope(z.c + gelu(centre) @ block.w_2 + block.b_2, G, L, from_norm + from_gelu)
    require_finite("MLP output", out.c, out.G, out.L, out.b)
    widths = Widths.of(carried=abs_sum(G, 0) + abs_sum(L, 1), layernorm=from_norm, gelu=from_gelu)
    return out, widths


def preactivation_radius(block: MlpBlock, norm: LayerNormBounds, z: StructuredZonotope) -> Tensor:
    """(S, f): bounds |W_1 (LN(x) - norm.centre)| over z, generator by generator."""
    # LayerNorm's error is mean-free, so each column of diag(gamma) W_1 may be centred before |.| is taken, or not.
    weighted = block.norm.gamma[:, None] * block.w_1
    radius = torch.minimum(norm.R_hat @ weighted.abs(), norm.R_hat @ (weighted - weighted.mean(0)).abs())
    for stack in z.generator_stacks():
        each = 2 * radius.numel() * radius.element_size()
        for part in chunks(stack.shape[1], each, temporary_bytes(stack.device.type)):
            radius = radius + (norm.jacobian(stack[:, part]) @ block.w_1).abs().sum(1)
    return radius


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
    for stack in (G.transpose(0, 1), L):
        each = 2 * stack.shape[0] * stack.shape[2] * stack.element_size()
        for part in chunks(stack.shape[1], each, temporary_bytes(stack.device.type)):
            stack[:, part] += norm.jacobian(stack[:, part]) @ chains
    return G, L
