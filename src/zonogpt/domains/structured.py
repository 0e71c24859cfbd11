"""The structured zonotope of the paper: shared generators, generators local to a token, and an interval.

    Z(c, G, L, b) = { c + sum_j G_j eps_j + (L_s eps_s)_s + e  :  |eps| <= 1,  |e| <= b }

Shapes: c (S, d), G (m, S, d), L (S, q, d), b (S, d); every token has the same number q of local generators (short
ones are zero). Prefix rule: a transform keeps the old generators in place and appends new ones after them; only
`reduce` drops or reorders, between blocks. That is what makes adding a skip connection sound. G and L may be of a
shorter type than c and b: they are as small as the set. What a function here rounds off joins b.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from zonogpt.domains.rounding import up

POOL_BYTES = 1 << 29  # 512 MiB, the paper's pool for float32 generators
NEGLIGIBLE = 1e-6  # part of a set that is not worth generators
FLOOR = 64  # generators that are always kept, however small the pool


@dataclass(frozen=True)
class StructuredZonotope:
    c: Tensor
    G: Tensor
    L: Tensor
    b: Tensor

    @property
    def n_tokens(self) -> int:
        return self.c.shape[0]

    @property
    def m(self) -> int:
        return self.G.shape[0]

    @property
    def q(self) -> int:
        return self.L.shape[1]

    @property
    def radius(self) -> Tensor:
        """(S, d): the smallest r with Z inside c + [-r, r]."""
        return up(self.symbol_radius + self.b)

    @cached_property
    def symbol_radius(self) -> Tensor:
        """(S, d): the generators' part of `radius`."""
        wide = self.b.dtype
        return up(up(abs_sum(self.G, 0), self.m).to(wide) + up(abs_sum(self.L, 1), self.q).to(wide))

    def generator_stacks(self) -> tuple[Tensor, Tensor]:
        """Shared and local generators, token first: (S, m, d) and (S, q, d)."""
        return self.G.transpose(0, 1), self.L


def abs_sum(generators: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Sum of absolute values over `dim`, as computed, without a second copy of the generators."""
    return torch.linalg.vector_norm(generators, ord=1, dim=dim)


def from_local(centre: Tensor, local: Tensor, pool: int) -> StructuredZonotope:
    """Z(c, 0, L, 0): the paper's initial set, every input number a generator local to its token, at most `pool`."""
    S, d = centre.shape
    return reduce(StructuredZonotope(centre, centre.new_zeros(0, S, d), local, centre.new_zeros(S, d)), pool)


def from_promoted(centre: Tensor, local: Tensor, pool: int) -> StructuredZonotope:
    """The same set with every input number a *shared* generator, so that attention can carry it to other tokens.

    Numbers of radius 0 give no generator. Only the `pool` largest are promoted, the others become intervals at
    once: the dense generators of a long text would not fit in memory even until they are reduced.
    """
    S, d = centre.shape
    weight = abs_sum(local, 2)  # (S, q)
    keep, drop = _split(weight.flatten(), min(pool, int((weight > 0).sum())))
    token, index = keep // local.shape[1], keep % local.shape[1]
    G = centre.new_zeros(len(keep), S, d)
    G[torch.arange(len(keep), device=centre.device), token] = local[token, index]
    rest = local.flatten(0, 1)[drop].abs()
    b = centre.new_zeros(S, d).index_add(0, drop // local.shape[1], rest)
    b = up(b, local.shape[1]) if len(drop) else b
    return StructuredZonotope(centre, G, centre.new_zeros(S, 0, d), b)


def convert(z: StructuredZonotope) -> StructuredZonotope:
    """The same set with the interval written as local generators (Lemma: interval-to-zonotope conversion).

    The fused transforms need this: the skip and the branch must see one symbol for each interval coordinate.
    """
    if not bool(z.b.any()):
        return z
    boxes = torch.diag_embed(rounded_up(z.b, z.L.dtype))
    return dataclasses.replace(z, L=torch.cat([z.L, boxes], dim=1), b=torch.zeros_like(z.b))


def settled(z: StructuredZonotope) -> StructuredZonotope:
    """The same set, converted unless its interval is negligible, as it is where only rounding has made it.

    Transforms also accept an interval without symbols. That is looser than generators, but d more of these for every
    token would cost more time than a millionth of the set is worth.
    """
    return z if float(z.b.sum()) <= NEGLIGIBLE * float(z.symbol_radius.sum()) else convert(z)


def cast(z: StructuredZonotope, dtype: torch.dtype) -> StructuredZonotope:
    """A superset of z with generators in `dtype`: the error of rounding them is added to the interval."""
    if dtype == z.G.dtype:
        return z
    G, L = z.G.to(dtype), z.L.to(dtype)
    lost = (z.G - G.to(z.c)).abs().sum(0) + (z.L - L.to(z.c)).abs().sum(1)
    return StructuredZonotope(z.c, G, L, up(z.b + lost, z.m + z.q))


def rounded_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in `dtype`, never below it."""
    out = x.to(dtype)
    return torch.where(out.to(x.dtype) < x, torch.nextafter(out, torch.full_like(out, torch.inf)), out)


def generator_limit(n_tokens: int, width: int, pool_bytes: int = POOL_BYTES, item_bytes: int = 4) -> int:
    """C = max(64, floor(pool / (item S d))): how many generators, shared and local together, a token may keep."""
    return max(FLOOR, pool_bytes // (item_bytes * n_tokens * width))


def reduce(z: StructuredZonotope, pool: int) -> StructuredZonotope:
    """A superset of z with m = min(m, pool) shared and q = min(q, pool - m) local generators.

    Those with the largest summed absolute coefficients are kept; the others go into the interval, coordinate by
    coordinate (Lemma: generator reduction).
    """
    m = min(z.m, pool)
    q = min(z.q, pool - m)
    G, L, b = z.G, z.L, z.b
    if m < z.m:
        keep, drop = _split(abs_sum(G, (1, 2)), m)
        b = up(b + up(abs_sum(G[drop], 0), z.m).to(b.dtype))
        G = G[keep]
    if q < z.q:
        keep, drop = _split(abs_sum(L, 2), q)  # (S, q), (S, rest)
        b = up(b + up(abs_sum(torch.take_along_dim(L, drop[:, :, None], 1), 1), z.q).to(b.dtype))
        L = torch.take_along_dim(L, keep[:, :, None], 1)
    return StructuredZonotope(z.c, G, L, b)


def _split(weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices (last dimension) of the `count` largest weights and of the rest, each in increasing order."""
    order = weight.argsort(dim=-1, descending=True, stable=True)
    return order[..., :count].sort(-1).values, order[..., count:].sort(-1).values
