"""LayerNorm at the centre of a set as computed in floating point, and the error of that.

With z0 = c - mean(c), a0 = tau + |z0|^2 / d, rho = 1 / sqrt(a0), k = rho / (d a0), LayerNorm's Jacobian before gamma is

    J v = rho (v - mean v) - k (z0 . v) z0.

All letters stand for the computed numbers, and J for the map that they define. Leading dimensions are tokens.
Derivations: docs/math.md, Lemma 13.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from zonogpt.domains.rounding import gamma, length, up
from zonogpt.model.nodes import Norm


@dataclass(frozen=True)
class NormPoint:
    norm: Norm
    z0: Tensor  # (..., d)
    norm2: Tensor  # (...): |z0|^2
    a0: Tensor  # (...)
    missing: Tensor  # (..., d): z0 is c - mean(c) up to this

    @cached_property
    def rho(self) -> Tensor:
        return self.a0.rsqrt()

    @cached_property
    def k(self) -> Tensor:
        return self.rho / (self.z0.shape[-1] * self.a0)

    @cached_property
    def missed(self) -> Tensor:
        """(...): bounds the length of c - mean(c) - z0."""
        return length(self.missing)

    @cached_property
    def size(self) -> Tensor:
        """(...): at least |z0|."""
        return length(self.z0)

    def image(self, deviation: Tensor) -> Tensor:
        """(..., d): bounds |J v| and each of its parts, for |v| <= deviation."""
        z0 = self.z0.abs()
        spread = self.rho[..., None] * self.norm.centred_size(deviation)
        along = (self.k * (z0 * deviation).sum(-1))[..., None] * z0
        return up(spread + along, 2 * z0.shape[-1])

    def slack(self, deviation: Tensor) -> Tensor:
        """(..., d): bounds what J of the deviation misses because z0 is not exactly c - mean(c), nor mean-free."""
        z0, size, far = self.z0.abs(), self.size[..., None], length(deviation)[..., None]
        turned = (self.k * self.missed)[..., None] * (z0 * size + (z0 + size) * far)
        return up(self.rho[..., None] * self.missing + turned, 2 * z0.shape[-1])


def norm_point(norm: Norm, c: Tensor) -> NormPoint:
    d = c.shape[-1]
    z0 = norm.centre(c)
    norm2 = z0.square().sum(-1)
    missing = gamma(d + 4, c.dtype) * (c.abs().mean(-1, keepdim=True) + z0.abs())
    return NormPoint(norm, z0, norm2, norm.tau + norm2 / d, missing)


def units(d: int) -> int:
    """The operations in rho and k, two sums over the features among them: both are off by at most gamma of this."""
    return 2 * d + 24
