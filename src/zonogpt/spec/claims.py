"""What is claimed of the outputs: rows of `C @ output + offset > 0`, all of which must hold."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.support.tensors import ByValue


class Claim(Protocol):
    @property
    def n_rows(self) -> int: ...

    @property
    def words(self) -> str:
        """What is claimed, for people."""

    def margins(self, output: Tensor) -> Tensor:
        """(..., outputs) -> (..., K): the value of each row; the claim holds where all are positive."""

    def magnitude(self, output: Tensor) -> Tensor:
        """(..., outputs) -> (..., K): the sizes of what each row adds up, for its rounding."""

    def spread(self, radius: Tensor) -> Tensor:
        """(..., outputs) -> (..., K): how far each row can move when the outputs do by `radius`."""

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The rows as functionals of the pooled vector: (K, d) and (K,), for a head `pooled @ weight + bias`."""


@dataclass(frozen=True)
class MarginClaim:
    """Output `label` is above every other one: rows are true minus rival, rivals in increasing order.

    Kept apart from LinearClaim because a language model has 50,257 outputs and a dense C would fill the memory.
    """

    label: int
    n_outputs: int

    @property
    def n_rows(self) -> int:
        return self.n_outputs - 1

    @property
    def words(self) -> str:
        return f"label {self.label}"

    def rivals(self) -> list[int]:
        return [k for k in range(self.n_outputs) if k != self.label]

    def margins(self, output: Tensor) -> Tensor:
        return output[..., self.label, None] - output[..., self.rivals()]

    def magnitude(self, output: Tensor) -> Tensor:
        return output[..., self.label, None].abs() + output[..., self.rivals()].abs()

    def spread(self, radius: Tensor) -> Tensor:
        return self.magnitude(radius)

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        offset = weight.new_zeros(self.n_outputs) if bias is None else bias
        return self.margins(weight).T, self.margins(offset)


@dataclass(frozen=True, eq=False)
class LinearClaim(ByValue):
    rows: Tensor  # (K, outputs)
    offset: Tensor  # (K,)
    words: str = "linear claim"

    @property
    def n_rows(self) -> int:
        return self.rows.shape[0]

    def margins(self, output: Tensor) -> Tensor:
        return output @ self.rows.T + self.offset

    def magnitude(self, output: Tensor) -> Tensor:
        return output.abs() @ self.rows.abs().T + self.offset.abs()

    def spread(self, radius: Tensor) -> Tensor:
        return radius @ self.rows.abs().T

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.rows @ weight.T, self.offset if bias is None else self.offset + self.rows @ bias


def margin_claim(label: int, n_outputs: int) -> MarginClaim:
    try:
        index = operator.index(label)
    except TypeError as error:
        raise SpecError(f"the label must be an integer; got {label!r}") from error
    if not 0 <= index < n_outputs:
        raise SpecError(f"label {index} is out of range; this model has outputs 0..{n_outputs - 1}")
    if n_outputs < 2:
        raise SpecError("this model has one output: there is no rival for a label; leave the label out")
    return MarginClaim(index, n_outputs)


def sign_claim(output: Tensor) -> LinearClaim:
    """Every output keeps its side of 0; `output` (K,) says which. A row per output."""
    sides = torch.where(output.double().cpu() > 0, 1.0, -1.0)
    words = "the output keeps its sign" if len(sides) == 1 else f"each of {len(sides)} labels keeps its side of 0"
    return LinearClaim(torch.diag(sides), torch.zeros_like(sides), words)


def interval_claim(interval: object, n_outputs: int) -> LinearClaim:
    """Every output stays inside (low, high); one side may be infinite. Rows: output - low, then high - output."""
    try:
        low, high = map(float, interval)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise SpecError(f"an interval is two numbers (low, high), as (0.2, 0.8); got {interval!r}") from error
    if not low < high or (math.isinf(low) and math.isinf(high)):  # NaN is not smaller
        raise SpecError(f"an interval needs low < high, and at least one of them finite; got ({low:g}, {high:g})")
    sides = [(1.0, -low), (-1.0, high)]
    rows = torch.cat([sign * torch.eye(n_outputs, dtype=torch.float64) for sign, at in sides if math.isfinite(at)])
    offset = torch.tensor([at for _, at in sides if math.isfinite(at)], dtype=torch.float64)
    which = "the output stays" if n_outputs == 1 else f"all {n_outputs} outputs stay"
    return LinearClaim(rows, offset.repeat_interleave(n_outputs), f"{which} between {low:g} and {high:g}")


def linear_claim(rows: object, offset: object, n_outputs: int) -> LinearClaim:
    try:
        C, o = torch.as_tensor(rows, dtype=torch.float64), torch.as_tensor(offset, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"a linear claim needs numbers, rows (K, {n_outputs}) and offset (K,): {error}") from error
    if C.dim() != 2 or C.shape[0] == 0 or C.shape[1] != n_outputs or o.shape != C.shape[:1]:
        raise SpecError(
            f"a linear claim needs rows (K, {n_outputs}) and an offset (K,), K at least 1;"
            f" got {tuple(C.shape)} and {tuple(o.shape)}"
        )
    if not bool(torch.isfinite(C).all() and torch.isfinite(o).all()):
        raise SpecError("a linear claim must be finite")
    return LinearClaim(C.clone(), o.clone())  # the caller may use the arrays again
