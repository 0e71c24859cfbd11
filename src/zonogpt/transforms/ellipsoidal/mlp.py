"""The MLP block over an ellipsoidal zonotope: LayerNorm, affine GELU, and the skip joined to the same symbols.

    M(x) = x + W_2 (slope (W_1 n + b_1) + mid + half eps_g) + b_2,    n = LayerNorm's output

GELU's half-widths are a true box over the hidden units; it is covered only behind W_2, and in the adjoint never.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, stream_limit
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, box_cover, minkowski, rounded_out, sandwich, support
from zonogpt.domains.finite import require_finite
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.ir import MlpBlock
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep, layernorm_step
from zonogpt.transforms.gelu import affine_gelu

GELU_PIECES = 16  # half-widths within 1 % of what they could be, at half the price of the paper's 32


@dataclass(frozen=True)
class MlpStep:
    block: MlpBlock
    norm: LayerNormStep
    slope: Tensor  # (B, n, f)
    half: Tensor  # (B, n, f)

    kind = "mlp"

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Functionals (B, K, n, d) of the block's output as functionals of its input, and what each error takes."""
        hidden = functionals @ self.block.w_2.T  # (B, K, n, f)
        gelu = (hidden.abs() * self.half[:, None]).sum((-1, -2))
        before, norm = self.norm.pull((hidden * self.slope[:, None]) @ self.block.w_1.T, limit)
        return functionals + before, {"layernorm": norm, "gelu": gelu}


def mlp_step(block: MlpBlock, z: EllipsoidalZonotope, limit: int) -> tuple[EllipsoidalZonotope, MlpStep]:
    """Z' with M(x) in Z' for x in z, same symbols, and the step for the adjoint.

    Memory O(B (n m d + n d f)) and `limit` bytes of hidden tangents; products O(n m d f + n d^2 f).
    """
    norm = layernorm_step(block.norm, z, limit)
    merged = minkowski(norm.jacobian_gram(z.Q), norm.error_gram)
    centre = norm.centre @ block.w_1 + block.b_1  # (B, n, f)
    spread = SymbolSums(z.p, with_cover=False)
    limit = stream_limit(limit, z.c.device)
    for part in chunks(z.m, (2 * centre.numel() + 2 * z.c.numel()) * z.c.element_size(), limit):
        spread.add(norm.jacobian(z.G[:, :, part]) @ block.w_1)
    radius = spread.radius + support(merged, block.w_1.T)
    require_finite("GELU input", centre, radius)
    slope, mid, half = affine_gelu(centre - radius, centre + radius, GELU_PIECES)

    chain = (block.w_1 * slope[..., None, :]) @ block.w_2  # (B, n, d, d)
    whole = norm.with_skip(chain)
    G = torch.empty_like(z.G)
    for part in chunks(z.m, z.c.numel() * z.c.element_size(), limit):
        G[:, :, part] = z.G[:, :, part] @ whole
    Q = minkowski(sandwich(z.Q, whole), sandwich(norm.error_gram, chain), box_cover(block.w_2, half))
    c = z.c + (slope * centre + mid) @ block.w_2 + block.b_2
    out = EllipsoidalZonotope(c, G, rounded_out(Q, terms=len(block.w_2)), z.p)
    require_finite("MLP output", out.c, out.G, out.Q)
    return out, MlpStep(block, norm.for_the_tape(), slope, half)
