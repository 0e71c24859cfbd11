"""The MLP block over an ellipsoidal zonotope: LayerNorm, a strip around the activation, and the skip with the same
symbols.

    M(x) = x + W_2 (slope (W_1 n + b_1) + mid + half eps_g) + b_2,    n = LayerNorm's output

The activation's half-widths are a box over the hidden units. The forward pass covers it with an ellipsoid, but only
behind W_2; the adjoint never does.
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
    rounded_off,
    sandwich,
    support,
)
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import up
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.nodes import Block, Mlp, dense
from zonogpt.transforms.activations import bounds_of
from zonogpt.transforms.ellipsoidal.mlp_rounding import (
    StripSizes,
    executed,
    hidden_rounding,
    output_rounding,
    rounding_of_tangents,
)
from zonogpt.transforms.ellipsoidal.norm import NormStep, norm_step


@dataclass(frozen=True)
class MlpStep:
    mlp: Mlp
    norm: NormStep
    radius: Tensor  # (B, n, f): how far the activation's input is from the centre's
    slope: Tensor  # (B, n, f)
    mid: Tensor  # (B, n, f)
    half: Tensor  # (B, n, f)
    rounding: Tensor  # (B, n, d): |w| . rounding bounds what the step rounds off a functional w of its output
    choices: Choices = field(default_factory=Choices)

    kind = "mlp"
    as_prefix = None  # no token sees another

    @property
    def z(self) -> EllipsoidalZonotope:
        """The set before the block."""
        return self.norm.z

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Functionals (B, K, n, d) of the block's output as functionals of its input, and what each error takes."""
        hidden = functionals @ self.mlp.w_2.T  # (B, K, n, f)
        gelu = up((hidden.abs() * self.half[:, None]).sum((-1, -2)), self.half[0].numel())
        before, norm = self.norm.pull((hidden * self.slope[:, None]) @ self.mlp.w_1.T, limit)
        return functionals + before, {
            "layernorm": norm,
            "gelu": gelu,
            "rounding": rounded_off(functionals, self.rounding),
        }


def mlp_step(
    block: Block[Mlp], z: EllipsoidalZonotope, limit: int, arithmetic: Arithmetic = "real"
) -> tuple[EllipsoidalZonotope, MlpStep]:
    """Z' with M(x) in Z' for x in z, with the same symbols; and the step for the adjoint.

    With float32, every execution of M(x) is in Z'.

    Memory O(B (n m d + n d f)) and `limit` bytes of hidden tangents; products O(n m d f + n d^2 f).
    """
    mlp, choices, limit = block.branch, Choices(), stream_limit(limit, z.c.device)
    norm = norm_step(block.norm, z, limit)
    merged = minkowski(norm.jacobian_gram(z.Q), norm.error_gram, note=choices.at("t_merged"))
    centre = dense(norm.centre, mlp.w_1, mlp.b_1)  # (B, n, f)
    rounded = hidden_rounding(mlp, norm, z)
    moved = _symbols_at_hidden(mlp, norm, limit) + support(merged, mlp.w_1.T)
    radius = up(moved + rounded.all_told(centre, mlp.w_1.shape[0]), mlp.w_1.shape[0])
    require_finite("GELU input", centre, radius)
    slope, mid, half = bounds_of(mlp.activation).coarse_strip(centre - radius, centre + radius)

    chain = (mlp.w_1 * slope[..., None, :]) @ mlp.w_2  # (B, n, d, d)
    whole = norm.with_skip(chain)
    narrowed = whole.to(z.G.dtype)
    G = torch.empty_like(z.G)
    for part in chunks(z.m, z.c.numel() * z.c.element_size(), limit):
        G[:, :, part] = z.G[:, :, part] @ narrowed
    value = slope * centre + mid
    rounding = output_rounding(mlp, z, rounded, StripSizes(value, slope, mid, half))
    if arithmetic == "float32":
        rounding = rounding + executed(mlp, z, norm, up(centre.abs() + radius))
    fresh = box_cover(mlp.w_2, half, choices.at("t_box"))
    parts = sandwich(z.Q, whole), sandwich(norm.error_gram, chain), fresh
    box = rounding_of_tangents(rounding, z, narrowed, rounded)
    out = EllipsoidalZonotope(
        c=z.c + dense(value, mlp.w_2, mlp.b_2),
        G=G,
        Q=handed_on(minkowski(*parts, box=box, note=choices.at("t"))),
        p=z.p,
    )
    require_finite("MLP output", out.c, out.G, out.Q)
    return out, MlpStep(mlp, norm.for_the_tape(), radius, slope, mid, half, rounding, choices)


def _symbols_at_hidden(mlp: Mlp, norm: NormStep, limit: int) -> Tensor:
    """(B, n, f): the most that the symbols move the hidden units' input."""
    z = norm.z
    spread, w_1 = SymbolSums(z.p, z.c.dtype, with_cover=False), mlp.w_1.to(z.G.dtype)
    hidden = z.c[..., 0].numel() * mlp.w_1.shape[1]
    for part in chunks(z.m, 2 * (hidden + z.c.numel()) * z.c.element_size(), limit):
        spread.add(norm.jacobian(z.G[:, :, part]) @ w_1)
    return spread.radius
