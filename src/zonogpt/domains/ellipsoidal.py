"""The domain of method E: shared input symbols and one error ellipsoid per token.

    x_s = c_s + sum_j G_s,j eps_j + phi_s,     ||eps||_p <= 1 shared by all tokens,     phi_s in the ellipsoid Q_s

p is infinity for a box of inputs, 2 or 1 for balls. The ellipsoid of a Gram matrix Q is { y : w.y <= sqrt(w^T Q w) for
every w }, so a linear map A sends Q to A Q A^T and no factor of Q is ever needed. Shapes, for a batch of B inputs of
one model: c (B, n, d), G (B, n, m, d), Q (B, n, d, d). Tokens come first because the heavy products are per token.
Derivations: docs/math.md, section "Method E".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EllipsoidalZonotope:
    c: Tensor
    G: Tensor
    Q: Tensor
    p: float

    @property
    def n_tokens(self) -> int:
        return self.c.shape[1]

    @property
    def m(self) -> int:
        return self.G.shape[2]


def trace(Q: Tensor) -> Tensor:
    """(..., d, d) -> (...): never negative, whatever rounding did."""
    return Q.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)


def support(Q: Tensor, w: Tensor) -> Tensor:
    """sqrt(w^T Q w) for Q (..., d, d) and directions w (..., k, d): (..., k)."""
    return ((w @ Q) * w).sum(-1).clamp(min=0).sqrt()


def coordinate_radius(Q: Tensor) -> Tensor:
    """The ellipsoid's extent in each coordinate, (..., d)."""
    return Q.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()


def sandwich(Q: Tensor, A: Tensor) -> Tensor:
    """The image A^T Q A under y -> y @ A (rows times matrix, as everywhere in this package)."""
    return A.mT @ (Q @ A)


def minkowski(*grams: Tensor) -> Tensor:
    """A Gram whose ellipsoid contains every sum of one point of each; of least trace among (sum t) sum_i Q_i / t_i."""
    sizes = [trace(Q).sqrt() for Q in grams]
    total = torch.stack(sizes).sum(0)
    return sum(
        ((total * reciprocal(size))[..., None, None] * Q for size, Q in zip(sizes, grams, strict=True)),
        torch.zeros_like(grams[0]),
    )


def reciprocal(t: Tensor) -> Tensor:
    """1 / t, and 0 for t = 0: a set of size zero adds nothing."""
    return torch.where(t > 0, 1 / t, torch.zeros_like(t))


def box_cover(A: Tensor, R: Tensor) -> Tensor:
    """A Gram that contains {e @ A : |e_k| <= R_k}, for A (..., k, d) and R (..., k).

    sum_k R_k^2 A_k A_k^T / w_k with weights w_k proportional to R_k |A_k|, which makes the trace smallest.
    """
    length = torch.linalg.vector_norm(A, dim=-1)
    scaled = A * (R * reciprocal(length)).sqrt()[..., None]
    return (R * length).sum(-1)[..., None, None] * (scaled.mT @ scaled)


def lambda_max(Q: Tensor, squarings: int = 4) -> Tensor:
    """An upper bound of the largest eigenvalue: (trace Q^p)^(1/p) for p = 2^(squarings + 1), rescaled on the way."""
    scale = trace(Q)
    power = Q * reciprocal(scale)[..., None, None]
    log_scale = torch.zeros_like(scale)
    for _ in range(squarings):
        power, log_scale = power @ power, 2 * log_scale
        size = trace(power)
        power, log_scale = power * reciprocal(size)[..., None, None], log_scale + size.clamp(min=1e-30).log()
    root = 2.0**squarings
    frobenius = torch.linalg.matrix_norm(power)
    return scale * (((frobenius.clamp(min=1e-30).log() + log_scale) / root).exp()).clamp(max=1)


def rounded_out(Q: Tensor) -> Tensor:
    """Q plus more of the identity than forming it and taking w^T Q w can have rounded away.

    A product of inner length d errs by at most gamma_d |A||B|, and |Q_ab| <= sqrt(Q_aa Q_bb), so w^T Q w errs by
    less than a few d u |w|^2 trace(Q). The absolute term stands for entries that underflowed.
    """
    d, info = Q.shape[-1], torch.finfo(Q.dtype)
    slack = 4 * (d + 8) * info.eps * trace(Q) + torch.where(trace(Q) > 0, 64 * info.tiny, 0.0)
    return Q + slack[..., None, None] * torch.eye(d, dtype=Q.dtype, device=Q.device)
