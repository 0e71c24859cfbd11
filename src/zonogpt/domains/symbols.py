"""Sums over the input's symbols of a family of tangents, added chunk by chunk.

A family is one vector T_j (..., k) per symbol eps_j, ||eps||_p <= 1; the symbol axis is -2. The steps need:

- radius: the largest |sum_j T_j eps_j| per coordinate (the dual norm: sum, 2-norm or maximum of absolute values),
- cover: a Gram whose ellipsoid contains every sum_j T_j eps_j,
- square: an upper bound of the largest |sum_j T_j eps_j|_2^2.

All three allow for the rounding of these sums, and take the tangents as exact: how they were computed is not known
here. Results are of type `dtype`, which is at least as long as the tangents'.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zonogpt.domains.choices import Note, unnoted
from zonogpt.domains.ellipsoidal import dual_norm, lambda_max, rounded_out, symmetrised, trace, widened
from zonogpt.domains.rounding import LIBRARY, up


class SymbolSums:
    def __init__(
        self, p: float, dtype: torch.dtype = torch.float64, with_radius: bool = True, with_cover: bool = True
    ) -> None:
        self.p, self.dtype, self.with_radius, self.with_cover = p, dtype, with_radius, with_cover
        self._coordinates: Tensor | None = None
        self._gram: Tensor | None = None
        self._lengths: Tensor | None = None
        self._count = 0

    def add(self, T: Tensor) -> None:
        """T (..., chunk, k)."""
        self._count += T.shape[-2]
        if self.with_radius:
            self._coordinates = self._join(self._coordinates, dual_norm(T, self.p, -2))
        if not self.with_cover:
            return
        length = torch.linalg.vector_norm(T, dim=-1)  # (..., chunk)
        if self.p == math.inf:
            # Cover of a box: weights proportional to |T_j|, and positive. A relative floor would depend on the chunks.
            length = length + torch.finfo(length.dtype).tiny ** 0.5
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
        if self.p == 2:  # squares may underflow, and every chunk is joined by a hypot
            underflow = math.sqrt(self._count * torch.finfo(self._coordinates.dtype).tiny)
            return up(self._coordinates + underflow, (1 + LIBRARY) * self._count + 4).to(self.dtype)
        return up(self._coordinates, self._count + 4).to(self.dtype)

    @property
    def cover(self) -> Tensor:
        return self.noted_cover(unnoted)

    def noted_cover(self, note: Note, off: Tensor | None = None) -> Tensor:
        """The cover; `note` is told where, for p = 1, it is a ball. With `off` (..., k) it contains the cover of any
        other tangents whose differences from these, all symbols together, move no coordinate by more than `off`."""
        assert self._gram is not None
        assert self._lengths is not None
        gram, terms = symmetrised(self._gram), self._count + self._gram.shape[-1]
        if self.p == math.inf:
            gram = self._lengths[..., None, None] * gram
        elif self.p == 1:
            # The l_1 ball lies in the l_2 ball, and maps to the hull of the +-T_j: the Gram, or a smaller round ball.
            ball = torch.diag_embed(self._lengths.square()[..., None].expand(gram.shape[:-1]))
            smaller = trace(ball) < trace(gram)
            note(smaller)
            gram = torch.where(smaller[..., None, None], ball, gram)
        size = trace(gram).sqrt()  # at least sum_j |T_j| for p = inf, their root mean square or the largest otherwise
        out = rounded_out(gram, terms).to(self.dtype)
        if off is None:
            return out
        lost = off.sum(-1)  # at least that size of the difference
        return widened(out, up(4 * lost * (size + lost), 4))

    def square(self) -> Tensor:
        assert self._lengths is not None
        if self.p == 1:
            assert self._gram is not None
            return up(self._lengths.square(), 2 * self._gram.shape[-1]).to(self.dtype)
        return torch.minimum(lambda_max(self.cover), up(self.radius.square().sum(-1), self.radius.shape[-1]))

    def _join(self, old: Tensor | None, new: Tensor) -> Tensor:
        if old is None:
            return new
        if self.p == math.inf:
            return old + new
        return torch.hypot(old, new) if self.p == 2 else torch.maximum(old, new)
