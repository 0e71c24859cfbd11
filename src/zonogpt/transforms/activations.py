"""What the methods know of each activation: one row of a table.

`strip(low, high)` is (slope, mid, half) with |g(t) - slope t - mid| <= half for every t in [low, high], elementwise.
Derivations: docs/math.md, sections 3 and 12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from zonogpt.domains.rounding import LIBRARY
from zonogpt.model.activations import GELU_TANH, Activation
from zonogpt.transforms.functions import GELU, Function
from zonogpt.transforms.gelu import affine_gelu, curvature_bound, gelu_slope

COARSE_PIECES = 16  # half-widths within 1 % of what they could be, at half the price of the paper's 32

Strip = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class ActivationBounds:
    function: Function  # for the methods that go operator by operator
    strip: Strip
    coarse_strip: Strip  # a faster one, almost as good
    slope: Callable[[Tensor], Tensor]  # g'
    curvature: Callable[[Tensor, Tensor], Tensor]  # bounds |g''| over [low, high]
    slope_units: int  # g' as computed is off by at most this many units of 1 + |t|
    value_units: int  # g as computed is off by at most this many units of |t|
    steepest: float  # bounds |g'| everywhere
    executed_units: int  # an execution of g in float32 is off by at most this many units of |t|


ACTIVATIONS: dict[Activation, ActivationBounds] = {
    GELU_TANH: ActivationBounds(
        function=GELU,
        strip=affine_gelu,
        coarse_strip=lambda low, high: affine_gelu(low, high, COARSE_PIECES),
        slope=gelu_slope,
        curvature=curvature_bound,
        slope_units=48,
        value_units=12,
        steepest=1.13,  # tests/test_lemmas.py
        executed_units=12 + 2 * LIBRARY,  # those of float64, and a cube by `pow`
    ),
}


def bounds_of(activation: Activation) -> ActivationBounds:
    return ACTIVATIONS[activation]
