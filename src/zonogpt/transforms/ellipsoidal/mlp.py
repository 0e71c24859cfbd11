"""The MLP block over an ellipsoidal zonotope: LayerNorm, affine GELU, and the skip joined to the same symbols.

    M(x) = x + W_2 (slope (W_1 n + b_1) + mid + half eps_g) + b_2,    n = LayerNorm's output

GELU's half-widths are a true box over the hidden units; it is covered only behind W_2, and in the adjoint never.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from zonogpt.domains.choices import Choices
from zonogpt.domains.chunks import chunks, stream_limit
from zonogpt.domains.ellipsoidal import (
    EllipsoidalZonotope,
    box_cover,
    handed_on,
    minkowski,
    sandwich,
    support,
)
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import MlpBlock
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep, layernorm_step, rounded_off
from zonogpt.transforms.execution import mlp_error
from zonogpt.transforms.gelu import affine_gelu

GELU_PIECES = 16  # half-widths within 1 % of what they could be, at half the price of the paper's 32


@dataclass(frozen=True)
class MlpStep:
    block: MlpBlock
    norm: LayerNormStep
    radius: Tensor  # (B, n, f): how far GELU's input is from the centre's
    slope: Tensor  # (B, n, f)
    mid: Tensor  # (B, n, f)
    half: Tensor  # (B, n, f)
    rounding: Tensor  # (B, n, d): |w| . rounding bounds what the step rounds off a functional w of its output
    choices: Choices = field(default_factory=Choices)

    kind = "mlp"

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Functionals (B, K, n, d) of the block's output as functionals of its input, and what each error takes."""
        hidden = functionals @ self.block.w_2.T  # (B, K, n, f)
        gelu = up((hidden.abs() * self.half[:, None]).sum((-1, -2)), self.half[0].numel())
        before, norm = self.norm.pull((hidden * self.slope[:, None]) @ self.block.w_1.T, limit)
        return functionals + before, {
            "layernorm": norm,
            "gelu": gelu,
            "rounding": rounded_off(functionals, self.rounding),
        }


def mlp_step(
    block: MlpBlock, z: EllipsoidalZonotope, limit: int, arithmetic: Arithmetic = "real"
) -> tuple[EllipsoidalZonotope, MlpStep]:
    """Z' with M(x) in Z' for x in z, same symbols, and the step for the adjoint; with float32, every execution of M(x).

    Memory O(B (n m d + n d f)) and `limit` bytes of hidden tangents; products O(n m d f + n d^2 f).
    """
    d, f = block.w_1.shape
    wide, narrow = z.c.dtype, z.G.dtype
    norm = layernorm_step(block.norm, z, limit)
    choices = Choices()
    merged = minkowski(norm.jacobian_gram(z.Q), norm.error_gram, note=choices.at("t_merged"))
    centre = norm.centre @ block.w_1 + block.b_1  # (B, n, f)
    # Sizes of what the centre is the sum of, and of what moves: their rounding is relative to these.
    at_centre, moving = (torch.cat([norm.centre.abs(), norm.reach], dim=1) @ block.w_1.abs()).chunk(2, dim=1)
    off = up(gamma(d + 2, wide) * (at_centre + block.b_1.abs()), d)
    spread = SymbolSums(z.p, wide, with_cover=False)
    limit = stream_limit(limit, z.c.device)
    w_1 = block.w_1.to(narrow)
    for part in chunks(z.m, (2 * centre.numel() + 2 * z.c.numel()) * z.c.element_size(), limit):
        spread.add(norm.jacobian(z.G[:, :, part]) @ w_1)
    radius = spread.radius + support(merged, block.w_1.T) + off
    underflow = z.m * d * torch.finfo(narrow).tiny  # of tangents
    radius = up(radius + gamma(d + 4, narrow) * moving + gamma(2, wide) * centre.abs() + underflow, d)
    require_finite("GELU input", centre, radius)
    slope, mid, half = affine_gelu(centre - radius, centre + radius, GELU_PIECES)

    chain = (block.w_1 * slope[..., None, :]) @ block.w_2  # (B, n, d, d)
    whole = norm.with_skip(chain)
    narrowed = whole.to(narrow)
    G = torch.empty_like(z.G)
    for part in chunks(z.m, z.c.numel() * z.c.element_size(), limit):
        G[:, :, part] = z.G[:, :, part] @ narrowed
    value = slope * centre + mid
    doubt = slope.abs() * off + gamma(4, wide) * (value.abs() + mid.abs()) + gamma(d + 4, wide) * half
    behind = torch.cat([value.abs(), doubt, slope.abs() * moving], dim=1) @ block.w_2.abs()
    at_centre, doubt, moving = behind.chunk(3, dim=1)
    rounding = gamma(f + 3, wide) * (z.c.abs() + at_centre + block.b_2.abs()) + doubt
    rounding = up(rounding + gamma(2 * d + f + 16, wide) * (z.radius + moving), 2 * f)
    if arithmetic == "float32":
        hidden, n = up(centre.abs() + radius), up(norm.centre.abs() + norm.reach)
        rounding = rounding + mlp_error(block, hidden, n, norm.execution_error(), up(z.c.abs() + z.radius))
    in_tangents = rounding
    if narrow != wide:
        product = (z.symbol_radius[..., None, :] @ narrowed.abs().to(wide)).squeeze(-2)
        in_tangents = up(rounding + gamma(d + 4, narrow) * product + underflow, d)
    fresh = box_cover(block.w_2, half, choices.at("t_box"))
    parts = sandwich(z.Q, whole), sandwich(norm.error_gram, chain), fresh
    Q = handed_on(minkowski(*parts, box=in_tangents, note=choices.at("t")))
    c = z.c + value @ block.w_2 + block.b_2
    out = EllipsoidalZonotope(c, G, Q, z.p)
    require_finite("MLP output", out.c, out.G, out.Q)
    return out, MlpStep(block, norm.for_the_tape(), radius, slope, mid, half, rounding, choices)
