"""Norms over ellipsoidal zonotopes: what every rule gives, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from zonogpt.domains.choices import Choices
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.model.nodes import Norm
from zonogpt.transforms.ellipsoidal.layernorm import layernorm_step
from zonogpt.transforms.queries import Queries


class NormStep(Protocol):
    """For every x in z:  norm(x) = centre + J (x - c) + e + s,  |s| <= rounding,  e + s in E(error_gram).

    `rounding` also bounds what applying J in floating point takes away.
    """

    @property
    def norm(self) -> Norm: ...
    @property
    def z(self) -> EllipsoidalZonotope: ...
    @property
    def centre(self) -> Tensor: ...  # (B, n, d)
    @property
    def rounding(self) -> Tensor: ...  # (B, n, d)
    @property
    def reach(self) -> Tensor: ...  # (B, n, d): |norm(x) - centre| <= reach
    @property
    def error_gram(self) -> Tensor: ...  # (B, n, d, d)
    @property
    def choices(self) -> Choices: ...
    @property
    def output_size(self) -> Tensor:
        """(B, n, d): bounds the norm's output."""

    def jacobian(self, v: Tensor) -> Tensor:
        """J v for tangents (B, n, k, d)."""

    def jacobian_gram(self, Q: Tensor) -> Tensor:
        """J Q J^T and its rounding, (B, n, d, d)."""

    def with_skip(self, A: Tensor) -> Tensor:
        """The matrix (B, n, d, d) of v -> v + (J v) @ A, for A (B, n, d, d)."""

    def at(self, queries: Queries) -> NormStep:
        """The step at the queries' tokens; only J needs to be cut to them."""

    def execution_error(self) -> Tensor:
        """(B, n, d): what an execution of the norm in float32 may be off by, over the whole set."""

    def for_the_tape(self) -> NormStep:
        """The step without the Gram of its error, which the backward pass does not need."""

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Functionals (B, K, n, d) of the output as functionals of the input, and what the error takes (B, K)."""

    def loss(self, functionals: Tensor, limit: int) -> Tensor:
        """(B, K): the most that functionals (B, K, n, d) fall below their value at the centre; pulls nothing back."""


NORMS: Mapping[str, Callable[[Norm, EllipsoidalZonotope, int], NormStep]] = {"LayerNorm": layernorm_step}


def norm_step(norm: Norm, z: EllipsoidalZonotope, limit: int) -> NormStep:
    return NORMS[norm.kind](norm, z, limit)
