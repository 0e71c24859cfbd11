"""The domain of method E: shared input symbols and one error ellipsoid per token.

    x_s = c_s + sum_j G_s,j eps_j + phi_s,     ||eps||_p <= 1 shared by all tokens,     phi_s in the ellipsoid Q_s

p is infinity for a box of inputs, 2 or 1 for balls. The ellipsoid of a Gram matrix Q is { y : w.y <= sqrt(w^T Q w) for
every w }, so a linear map y -> y @ A sends Q to A^T Q A and no factor of Q is ever needed. Q is exactly symmetric:
every step that forms one by products ends with `symmetrised`. Every function here that makes a Gram adds to its
diagonal what forming it may have rounded away, so that the ellipsoid of Q as computed contains the exact set. G may be
of a shorter type than c and Q: its entries are as small as the input's radius, and their rounding with them.

Shapes, for a batch of B inputs of a model: c (B, n, d), G (B, n, m, d), Q (B, n, d, d). Tokens come first because the
heavy products are per token.
Derivations: docs/math.md, section 7 and Lemma 13.9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from zonogpt.domains.choices import Note, unnoted
from zonogpt.domains.rounding import gamma, gammas, least, room, up

MIRRORED, STRIPS = 512, 4  # from this width on, symmetric products are formed strip by strip up to the diagonal


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

    @cached_property
    def symbol_radius(self) -> Tensor:
        """(B, n, d): the most that the symbols move each coordinate."""
        underflow = math.sqrt(self.m * torch.finfo(self.G.dtype).tiny)  # lost by squares
        return up(dual_norm(self.G, self.p, 2) + underflow, self.m + 4).to(self.c.dtype)

    @cached_property
    def radius(self) -> Tensor:
        """(B, n, d): |x - c| <= radius."""
        return up(self.symbol_radius + coordinate_radius(self.Q))


def dual_norm(values: Tensor, p: float, dim: int) -> Tensor:
    """max sum_j values_j eps_j over ||eps||_p <= 1."""
    q = {math.inf: 1.0, 2.0: 2.0, 1.0: math.inf}[p]
    return torch.linalg.vector_norm(values, ord=q, dim=dim)


def trace(Q: Tensor) -> Tensor:
    """(..., d, d) -> (...): the trace, or 0 where rounding has made it negative."""
    return Q.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)


def support(Q: Tensor, w: Tensor) -> Tensor:
    """An upper bound of sqrt(w^T Q w) for Q (..., d, d) and directions w (..., k, d): (..., k).

    Where Q is nearly singular, w^T Q w may round to zero or below, so `rounding` is added under the root.
    """
    square = _forms(Q, w).clamp(min=0)
    return (square + rounding(Q)[..., None] * w.square().sum(-1)).sqrt()


def _forms(Q: Tensor, w: Tensor) -> Tensor:
    """(..., k): w^T Q w for every row of w.

    With many rows, the blocks of Q below its diagonal count twice, and those above it are not read.
    """
    if min(w.shape[-2:]) < MIRRORED:
        return ((w @ Q) * w).sum(-1)
    total = torch.zeros((), dtype=Q.dtype, device=Q.device)
    for part in _strips(Q.shape[-1]):
        below = torch.cat([w[..., part], 2 * w[..., part.stop :]], dim=-1)
        total = total + ((below @ Q[..., part.start :, part]) * w[..., part]).sum(-1)
    return total


def symmetric_product(A: Tensor, B: Tensor) -> Tensor:
    """A @ B, for a product that is symmetric up to rounding; the result is exactly symmetric.

    Wide products are formed strip by strip up to the diagonal, and mirrored.
    """
    d = A.shape[-2]
    if d < MIRRORED:
        return symmetrised(A @ B)
    batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    left, right = (x.expand(*batch, -1, -1).reshape(-1, *x.shape[-2:]) for x in (A, B))
    out = torch.empty(len(left), d, d, dtype=A.dtype, device=A.device)
    for part in _strips(d):
        torch.bmm(left[:, part], right[:, :, : part.stop], out=out[:, part, : part.stop])
        out[:, : part.start, part] = out[:, part, : part.start].mT
        out[:, part, part] = symmetrised(out[:, part, part])
    return out.reshape(*batch, d, d)


def symmetrised(Q: Tensor) -> Tensor:
    """(Q + Q^T) / 2. A quadratic form does not see the difference, but strips and means of rows do."""
    return (Q + Q.mT).mul_(0.5)


def _strips(d: int) -> list[slice]:
    edges = [d * k // STRIPS for k in range(STRIPS + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def rounding(Q: Tensor, terms: int | Tensor = 0) -> Tensor:
    """(...): by how much w^T Q w, for |w| = 1, or an entry of A^T Q A, for columns of length 1, can be off.

    A product of inner length d errs by at most gamma_d |A||B|, and |Q_ab| <= sqrt(Q_aa Q_bb) makes
    |w|^T |Q| |w| <= |w|^2 trace(Q). Two such products are 2 (d + 1) units; twice that leaves room for a third and some
    sums. Q may be a sum of `terms` (...) squares with weights that are sums themselves: 2 terms, and some.
    """
    k = torch.as_tensor(2 * terms + 16, device=Q.device).clamp(min=4 * (Q.shape[-1] + 4))
    return gammas(k, Q.dtype, Q) * trace(Q)


def rounded_off(functionals: Tensor, rounding: Tensor) -> Tensor:
    """(B, K): the sum of |w| . rounding over the tokens, for functionals (B, K, n, d) and rounding (B, n, d)."""
    return up(torch.einsum("bknd,bnd->bk", functionals.abs(), rounding), rounding[0].numel())


def coordinate_radius(Q: Tensor) -> Tensor:
    """The ellipsoid's extent in each coordinate, (..., d)."""
    return up(Q.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt())


def sandwich(Q: Tensor, A: Tensor) -> Tensor:
    """A^T Q A, widened by its rounding: the image under y -> y @ A (rows times matrix, as always in this package)."""
    out = symmetric_product(A.mT, Q @ A)
    return widened(out, image_rounding(Q, torch.linalg.matrix_norm(A).square()))


def image_rounding(Q: Tensor, size: Tensor) -> Tensor:
    """(...): by how much w^T (A^T Q A) w, for |w| = 1, can be off; `size` is |A|_F^2."""
    return rounding(Q) * size


def widened(Q: Tensor, by: Tensor) -> Tensor:
    """Q, changed in place, with `by` (...) times the identity added."""
    Q.diagonal(dim1=-2, dim2=-1).add_(by[..., None])
    return Q


def minkowski(*grams: Tensor, box: Tensor | None = None, note: Note = unnoted) -> Tensor:
    """A Gram whose ellipsoid contains every sum of one point of each: (sum t) sum_i Q_i / t_i, t_i = sqrt(trace Q_i).

    That choice of t has the least trace. `box` (..., d) is one more set, |y_k| <= box_k: the Gram
    diag(box_k sum_l box_l), whose t is sum_l box_l.
    """
    t = minkowski_weights(*grams, box=box)
    note(t)
    return weighted_sum(t, *grams, box=box)


def minkowski_weights(*grams: Tensor, box: Tensor | None = None) -> Tensor:
    """(sets, ...): the t of `minkowski`."""
    sizes = [trace(Q).sqrt() for Q in grams] + ([] if box is None else [box.sum(-1)])
    return weights(torch.stack(sizes), dim=0)


def weighted_sum(t: Tensor, *grams: Tensor, box: Tensor | None = None) -> Tensor:
    """`minkowski` with weights t (sets, ...): any positive ones are sound."""
    total = t.sum(0)
    factors = (total / t)[..., None, None]
    out = factors[0] * grams[0]
    for factor, Q in zip(factors[1 : len(grams)], grams[1:], strict=True):
        out.addcmul_(factor, Q)  # in place: a Gram per token is the largest array there is
    if box is not None:
        out.diagonal(dim1=-2, dim2=-1).add_(up(box * total[..., None], box.shape[-1]))
    return widened(out, up(gamma(2 * len(grams) + 4, out.dtype) * trace(out)))


def weights(sizes: Tensor, dim: int) -> Tensor:
    """Positive weights close to `sizes` (>= 0): any positive ones are sound, but none may vanish.

    A set whose size has been rounded to zero must not be lost, and 1 / t must not overflow. The floor, a millionth of
    the sum, costs nothing.
    """
    return sizes + 1e-6 * sizes.sum(dim, keepdim=True) + torch.finfo(sizes.dtype).tiny ** 0.5


def box_cover(A: Tensor, R: Tensor, note: Note = unnoted, off: Tensor | None = None) -> Tensor:
    """A Gram that contains {e @ A : |e_k| <= R_k}, for A (..., k, d) and R (..., k).

    sum_k R_k^2 A_k A_k^T / w_k with weights w_k proportional to R_k |A_k|, which makes the trace smallest. With `off`
    (..., k) it contains the cover, by the same weights, of any other A whose rows are within `off` of these.
    """
    size = torch.linalg.vector_norm(A, dim=-1)
    t = weights(R * (size if off is None else size + off), dim=-1)
    note(t)
    there = R > 0  # a row without extent needs no weight
    total = (t * there).sum(-1, keepdim=True)
    scaled = A * (R * (total / t).sqrt())[..., None]
    out = rounded_out(symmetric_product(scaled.mT, scaled), terms=there.sum(-1))
    # R^2 A' A'^T / t <= R^2 (A A^T + 2 off |A| + off^2) / t <= R^2 A A^T / t + 2 R off, for t >= R (|A| + off)
    return out if off is None else widened(out, up(2 * total[..., 0] * (R * off).sum(-1), A.shape[-2]))


def lambda_max(Q: Tensor, squarings: int = 4, rows: Tensor | None = None) -> Tensor:
    """An upper bound of the largest eigenvalue: (trace Q^p)^(1/p) for p = 2^(squarings + 1), rescaled on the way.

    `rows` (...): how many rows are not 0 in every entry, if not all; the others round nothing.
    """
    floor = torch.finfo(Q.dtype).tiny
    scale = trace(Q) + floor
    power, log_scale = symmetrised(Q) / scale[..., None, None], torch.zeros_like(scale)
    for k in range(squarings):
        if k > 0:
            size = trace(power) + floor  # trace(P^2) >= trace(P)^2 / d
            power, log_scale = power / size[..., None, None], log_scale + size.log()
        power, log_scale = symmetric_product(power, power), 2 * log_scale
    log_norm = (torch.linalg.matrix_norm(power) + floor).log() + log_scale
    # A squaring errs by |fl(P^2) - P^2|_F <= gamma_d |P|_F^2, at most gamma_d trace(Q) / eigenvalue of its eigenvalue,
    # and every root taken later halves that: all squarings together move the eigenvalue by at most gamma_d trace(Q),
    # which is added at the end. The norm may lose gamma_d sqrt(d) of itself, since |P|_F^2 <= sqrt(d) |P^2|_F. The last
    # norm adds up d^2 squares, and the logarithms are at most 2^squarings log(d) in size.
    d = torch.tensor(Q.shape[-1]) if rows is None else rows
    like = torch.zeros((), dtype=Q.dtype) if rows is None else scale  # without dimensions: on any device
    squaring, norm = ((d + 4) * d.double().sqrt()).ceil(), d * d // 2 ** (squarings + 1)
    logarithms = 16 + 4 * torch.frexp(d.double()).exponent  # the number of binary digits of d
    outward = 1 + gammas(squaring + norm + logarithms, Q.dtype, like)
    return up(scale * ((log_norm / 2.0**squarings).exp().clamp(max=1) * outward + gammas(d + 8, Q.dtype, like)))


def rounded_out(Q: Tensor, terms: int | Tensor = 0) -> Tensor:
    """Q, with a multiple of the identity added in place: more than forming Q rounded away and may have underflowed."""
    return widened(Q, up(rounding(Q, terms) + (64 + terms) * least(Q.dtype)))


def handed_on(Q: Tensor) -> Tensor:
    """Q, widened in place by `room`: the checker computes such a Gram again and compares."""
    return Q.mul_(1 + room()) if room() else Q
