"""Sums over the input's symbols of a family of tangents, added chunk by chunk.

A family is one vector T_j (..., k) per symbol eps_j, ||eps||_p <= 1; the symbol axis is -2. What the steps need of it:

- radius: the largest |sum_j T_j eps_j| per coordinate (the dual norm: sum, 2-norm or maximum of absolute values),
- cover: a Gram whose ellipsoid contains every sum_j T_j eps_j,
- square: an upper bound of the largest |sum_j T_j eps_j|_2^2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import lambda_max, rounded_out, symmetrised, trace, weights


def dual_norm(values: Tensor, p: float, dim: int) -> Tensor:
    """max sum_j values_j eps_j over ||eps||_p <= 1."""
    q = {math.inf: 1.0, 2.0: 2.0, 1.0: math.inf}[p]
    return torch.linalg.vector_norm(values, ord=q, dim=dim)


class SymbolSums:
    def __init__(self, p: float, with_radius: bool = True, with_cover: bool = True) -> None:
        self.p, self.with_radius, self.with_cover = p, with_radius, with_cover
        self._coordinates: Tensor | None = None
        self._gram: Tensor | None = None
        self._lengths: Tensor | None = None
        self._count = 0

    def add(self, T: Tensor) -> None:
        """T (..., chunk, k)."""
        if self.with_radius:
            self._coordinates = self._join(self._coordinates, dual_norm(T, self.p, -2))
        if not self.with_cover:
            return
        self._count += T.shape[-2]
        length = torch.linalg.vector_norm(T, dim=-1)  # (..., chunk)
        if self.p == math.inf:
            # Box to ellipsoid with weights proportional to |T_j|.
            length = weights(length, dim=-1)
            scaled = T / length.sqrt()[..., None]
            self._lengths = self._join(self._lengths, length.sum(-1))
        else:
            scaled = T
            self._lengths = self._join(self._lengths, length.amax(-1))
        if self._gram is None:
            self._gram = scaled.mT @ scaled
        else:
            flat = scaled.flatten(0, -3)
            self._gram.view(-1, *self._gram.shape[-2:]).baddbmm_(flat.mT, flat)

    @property
    def radius(self) -> Tensor:
        assert self._coordinates is not None
        return self._coordinates

    @property
    def cover(self) -> Tensor:
        assert self._gram is not None
        assert self._lengths is not None
        if self.p == math.inf:
            return rounded_out(self._lengths[..., None, None] * symmetrised(self._gram), self._count)
        if self.p == 2:
            return rounded_out(symmetrised(self._gram), self._count)
        # The l_1 ball lies in the l_2 ball, and in the hull of the T_j: the smaller of the Gram and a round ball.
        k = self._gram.shape[-1]
        ball = self._lengths.square()[..., None, None] * torch.eye(k, dtype=self._gram.dtype, device=self._gram.device)
        smaller = torch.where((trace(ball) < trace(self._gram))[..., None, None], ball, symmetrised(self._gram))
        return rounded_out(smaller, self._count)

    def square(self) -> Tensor:
        assert self._lengths is not None
        if self.p == 1:
            return self._lengths.square()
        return torch.minimum(lambda_max(self.cover), self.radius.square().sum(-1))

    def _join(self, old: Tensor | None, new: Tensor) -> Tensor:
        if old is None:
            return new
        if self.p == math.inf:
            return old + new
        return torch.hypot(old, new) if self.p == 2 else torch.maximum(old, new)
