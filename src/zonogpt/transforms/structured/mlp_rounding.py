"""The rounding of an MLP block over a structured zonotope; its formulas are in mlp.py.

Rounding is relative to the sizes of the summands. Derivations: docs/math.md, Lemma 13.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.model.nodes import Mlp, size_of
from zonogpt.transforms.execution import mlp_error
from zonogpt.transforms.structured.layernorm import LayerNormBounds


@dataclass(frozen=True)
class HiddenRounding:
    """Rounding of the activation's input, (S, f)."""

    off: Tensor  # the centre is W_1 norm.centre + b_1 up to this
    norm: Tensor  # LayerNorm's rounding, times |W_1|
    moving: Tensor  # |W_1||LN(x) - norm.centre|: the rounding of all that moves is relative to it
    narrow: torch.dtype  # of the generators
    width: int

    def all_told(self, centre: Tensor) -> Tensor:
        """The rounding to add to a bound of |t - centre|."""
        products = gamma(2 * self.width + 8, self.narrow) * self.moving
        return self.norm + self.off + products + gamma(2, centre.dtype) * centre.abs()


def hidden_rounding(mlp: Mlp, norm: LayerNormBounds, z: StructuredZonotope) -> HiddenRounding:
    d = len(mlp.w_1)
    rows = torch.cat([norm.centre.abs(), norm.reach, norm.rounding]) @ mlp.w_1.abs()
    at_centre, moving, lost = rows.chunk(3)
    off = up(gamma(d + 2, z.c.dtype) * (at_centre + size_of(mlp.b_1)), d)
    return HiddenRounding(off, lost, up(moving, d), z.G.dtype, d)


@dataclass(frozen=True)
class Value:
    """The activation at the centre, (S, f): its value, off by `forming`, and its slope."""

    value: Tensor
    slope: Tensor
    forming: Tensor


def output_rounding(mlp: Mlp, z: StructuredZonotope, hidden: HiddenRounding, at: Value) -> Tensor:
    """(S, d): the rounding of the block's output, that is of LayerNorm, of the centre and of all that is linear; plus
    the skip's interval."""
    (d, f), wide, narrow = mlp.w_1.shape, z.c.dtype, z.G.dtype
    value, slope = at.value.abs(), at.slope.abs()
    doubt = up(at.forming + slope * (hidden.off + hidden.norm) + gamma(4, wide) * value, d)
    at_centre, doubt, moving = (torch.cat([value, doubt, slope * hidden.moving]) @ mlp.w_2.abs()).chunk(3)
    rounding = gamma(f + 3, wide) * (z.c.abs() + at_centre + size_of(mlp.b_2)) + doubt
    underflow = (z.m + z.q + d + f) * (d + f) * torch.finfo(narrow).tiny  # in old and new generators
    return up(rounding + gamma(3 * d + f + 16, narrow) * (z.radius + moving) + underflow, 2 * f) + z.b


def executed(mlp: Mlp, z: StructuredZonotope, norm: LayerNormBounds, hidden: Tensor) -> Tensor:
    """(S, d): how far an execution in float32 may be off; `hidden` bounds the activation's input."""
    return mlp_error(mlp, hidden, norm.size, norm.execution_error(z), up(z.c.abs() + z.radius))
