"""Bounds of rounding errors, in unit roundoffs, for every method that bounds its own rounding.

The model of arithmetic: +, -, *, / and sqrt are IEEE operations rounded to nearest, sums and products of matrices may
be added up in any order, with or without fused multiply-add, elementary functions err by at most LIBRARY units u.
A sum or product of inner length k is then off by at most gamma_k times the sum of the absolute values,
gamma_k = k u / (1 - k u). `verify` keeps out coarser rounding (TF32, bfloat16 products).
Derivations: docs/math.md, section 13. Checked against ball arithmetic in tests/test_rounding.py.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

LEAST_ROOM = 1e-100  # the least of all bounds and squares: the checker's squares underflow below 1e-154
LIBRARY = 4  # units u that exp, expm1, log, log1p, tanh, sinh, sigmoid, rsqrt and hypot may be off by


class _Accounting(NamedTuple):
    units: float  # what one operation is assumed to round off, in unit roundoffs
    room: float  # how much wider every bound is made besides, relative to its size


EVERY_ROUNDING = _Accounting(1.0, 0.0)
_accounting: ContextVar[_Accounting] = ContextVar("accounting", default=EVERY_ROUNDING)


@contextlib.contextmanager
def _set(accounting: _Accounting) -> Iterator[None]:
    token = _accounting.set(accounting)
    try:
        yield
    finally:
        _accounting.reset(token)


def unaccounted() -> contextlib.AbstractContextManager[None]:
    """Inside, rounding counts as zero: to show in tests that its bounds are needed, and to measure what they cost."""
    return _set(_Accounting(0.0, 0.0))


def with_room() -> contextlib.AbstractContextManager[None]:
    """Inside, bounds are a little wider than need be: a checker that rounds differently stays within them."""
    return _set(_Accounting(64.0, 1e-6))


def accounted() -> bool:
    return _accounting.get().units > 0


def room() -> float:
    return _accounting.get().room


def unit(dtype: torch.dtype) -> float:
    """u: the largest relative error of one operation."""
    return torch.finfo(dtype).eps / 2 * _accounting.get().units


def gamma(k: int, dtype: torch.dtype) -> float:
    """gamma_k, the relative error of k operations in a row; infinite where nothing can be said."""
    ku = k * unit(dtype)
    return ku / (1 - ku) if ku < 1 else math.inf


def gammas(k: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
    """gamma_k of every entry, in the type of `like`, rounded up; k may be a fraction."""
    ku = k.double() * unit(dtype)
    return up(torch.where(ku < 1, ku / (1 - ku), math.inf).to(like), 1)


def least(dtype: torch.dtype) -> float:
    """The least value of every bound, because of underflow: the smallest normal number, or more where there is room."""
    return LEAST_ROOM if room() else torch.finfo(dtype).tiny


@functools.cache
def _constant(value: float, dtype: torch.dtype) -> Tensor:
    """Without dimensions: such a tensor joins others on any device."""
    return torch.tensor(value, dtype=dtype)


def up(x: Tensor, k: int | Tensor = 6) -> Tensor:
    """At least x (1 + gamma_k), for sizes x >= 0 that took k operations on numbers of one sign; k may be a tensor.

    Two more operations are counted for the multiplication and its factor, and `least` is added for what underflowed,
    unless that was multiplied by more than 1 afterwards (Lemma 13.3).
    """
    if not accounted():
        return x
    if isinstance(k, Tensor):
        return x * (1 + gammas(k + 2, x.dtype, x) + room()) + least(x.dtype)
    return torch.add(_constant(least(x.dtype), x.dtype), x, alpha=1 + gamma(k + 2, x.dtype) + room())  # one call


def part(share: float, x: Tensor, k: int = 6) -> Tensor:
    """At least share x (1 + gamma_k), like `up`: a bound of errors of the relative size `share`.

    Three more operations are counted: the multiplication, and two for its factor.
    """
    if not accounted():
        return share * x
    return torch.add(_constant(least(x.dtype), x.dtype), x, alpha=share * (1 + gamma(k + 3, x.dtype)))  # one call


def length(x: Tensor, dim: int = -1) -> Tensor:
    """At least the 2-norm of x along `dim`, whose squares may underflow."""
    d = x.shape[dim]
    return up(torch.linalg.vector_norm(x, dim=dim) + math.sqrt(d * torch.finfo(x.dtype).tiny), d + 4)
