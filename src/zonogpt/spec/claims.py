"""What is claimed of the outputs: rows of `C @ output + offset > 0`, all of which must hold."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.tensors import ByValue


class Claim(Protocol):
    @property
    def n_rows(self) -> int: ...

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
