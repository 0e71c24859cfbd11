"""Claims about the outputs: rows of `C @ output + offset`, in groups. In every group, one row must be positive."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.model.nodes import Head
from zonogpt.support.numbers import exact
from zonogpt.support.tensors import ByValue

Groups = tuple[tuple[int, ...], ...]


class Functionals(NamedTuple):
    """The rows of a claim as functions of the input of the head's linear map: row k is `rows[k] . pooled + offset[k]`.

    A claim about several positions has rows (K, S, d), one functional for each token.
    """

    rows: Tensor  # (K, d)
    offset: Tensor  # (K,)

    def to(self, dtype: torch.dtype) -> Functionals:
        return Functionals(self.rows.to(dtype), self.offset.to(dtype))


class Claim(ABC):
    """For every input and every group, at least one row of the group is positive (which one may depend on the input).

    Wherever they appear, `margins` (..., K) hold a value or a bound for each of the K rows.
    """

    label: int | None  # the output that is claimed to be the largest, if that is the claim
    groups: Groups | None  # the rows of each group; None: every row is a group by itself

    @property
    def needs_every_row(self) -> bool:
        return self.groups is None

    @property
    @abstractmethod
    def n_rows(self) -> int: ...

    @property
    @abstractmethod
    def words(self) -> str:
        """The claim in words, for people."""

    @abstractmethod
    def margins(self, output: Tensor) -> Tensor:
        """(..., outputs) -> (..., K): the value of each row."""

    @abstractmethod
    def magnitude(self, output: Tensor) -> Tensor:
        """(..., outputs) -> (..., K): the absolute values of each row's terms, added up; for its rounding error."""

    @abstractmethod
    def spread(self, radius: Tensor) -> Tensor:
        """(..., outputs) -> (..., K): how far each row can move when every output moves by at most `radius`."""

    @abstractmethod
    def functionals(self, head: Head) -> Functionals:
        """The rows composed with the head's linear map, in float64."""

    @abstractmethod
    def functional_sizes(self, head: Head) -> Tensor:
        """(K, d): bounds on the rounding error of forming the rows, entry by entry, in units of gamma_d.

        An entry that sums d terms or fewer is off by at most gamma_d times the sum of their absolute values. The bound
        of an entry that sums over all outputs is n_outputs / d times as large."""

    def group_values(self, margins: Tensor) -> Tensor:
        """(..., K) -> (..., G): the largest row of each group, NaN where one of its rows is NaN."""
        return margins if self.groups is None else margins[..., _padded(self.groups, margins.device)].amax(-1)

    def value(self, margins: Tensor) -> Tensor:
        """(..., K) -> (...): the lowest group value; 0 or less where an output with these margins breaks the claim."""
        return self.group_values(margins).amin(-1)

    def proved(self, margins: Tensor) -> bool:
        """Whether these lower bounds (K,) prove the claim: every group has a positive one. NaN proves nothing."""
        return self._in_every_group(margins > 0)

    def broken(self, negative: Tensor) -> bool:
        """Whether an input with these rows (K,) known to be negative breaks the claim: all rows of some group are."""
        return not self._in_every_group(~negative)

    def deciding_row(self, margins: Tensor) -> int:
        """The row whose margin `value` returns."""
        if self.groups is None:
            return int(margins.argmin())
        group = self.groups[int(self.group_values(margins).argmin())]
        return group[int(margins[list(group)].argmax())]

    def _in_every_group(self, rows: Tensor) -> bool:
        """Whether every group contains one of these rows, given as bools (K,)."""
        return bool((rows if self.groups is None else rows[_padded(self.groups, rows.device)].any(-1)).all())


def _padded(groups: Groups, device: torch.device) -> Tensor:
    """(G, rows of the largest group): the rows of each group; a smaller group repeats its first row."""
    most = max(map(len, groups))
    return torch.tensor([[*group, *group[:1] * (most - len(group))] for group in groups], device=device)


@dataclass(frozen=True)
class MarginClaim(Claim):
    """Output `label` is above every other one: each row is its output minus a rival's, rivals in increasing order.

    This is not a LinearClaim because a language model has 50,257 outputs, and a dense C would fill the memory.
    """

    label: int
    n_outputs: int
    name: str | None = field(default=None, compare=False)  # what the label is called, for people

    groups = None

    @property
    def n_rows(self) -> int:
        return self.n_outputs - 1

    @property
    def words(self) -> str:
        return f"label {self.label}" + ("" if self.name is None else f" ({self.name!r})")

    def rivals(self) -> list[int]:
        return [k for k in range(self.n_outputs) if k != self.label]

    def margins(self, output: Tensor) -> Tensor:
        return output[..., self.label, None] - output[..., self.rivals()]

    def magnitude(self, output: Tensor) -> Tensor:
        return output[..., self.label, None].abs() + output[..., self.rivals()].abs()

    def spread(self, radius: Tensor) -> Tensor:
        return self.magnitude(radius)

    def functionals(self, head: Head) -> Functionals:
        weight = head.weight.double()
        offset = weight.new_zeros(self.n_outputs) if head.bias is None else head.bias.double()
        return Functionals(self.margins(weight).T, self.margins(offset))

    def functional_sizes(self, head: Head) -> Tensor:
        return self.margins(head.weight.double()).T.abs()  # an entry is one difference: off by a unit of itself


@dataclass(frozen=True)
class TopClaim(Claim):
    """One output stays among the `k` largest: at every input, at most k - 1 rows fail. The rows are those of `above`.

    As groups, the claim says that of every k rows one is positive. There are too many of these groups to list, but
    sorting says the same: the claim holds where the k-th lowest row is positive.
    """

    above: MarginClaim
    k: int

    label = None  # the output need not be the largest
    groups = None

    @property
    def needs_every_row(self) -> bool:
        return False

    @property
    def n_rows(self) -> int:
        return self.above.n_rows

    @property
    def words(self) -> str:
        return f"{self.above.words} stays among the {self.k} largest outputs"

    def margins(self, output: Tensor) -> Tensor:
        return self.above.margins(output)

    def magnitude(self, output: Tensor) -> Tensor:
        return self.above.magnitude(output)

    def spread(self, radius: Tensor) -> Tensor:
        return self.above.spread(radius)

    def functionals(self, head: Head) -> Functionals:
        return self.above.functionals(head)

    def functional_sizes(self, head: Head) -> Tensor:
        return self.above.functional_sizes(head)

    def group_values(self, margins: Tensor) -> Tensor:
        """(..., K) -> (..., 1): the k-th lowest row; NaN where any row is NaN."""
        value = margins.kthvalue(self.k, dim=-1, keepdim=True).values
        return torch.where(margins.isnan().any(-1, keepdim=True), math.nan, value)

    def proved(self, margins: Tensor) -> bool:
        return int((~(margins > 0)).sum()) < self.k

    def broken(self, negative: Tensor) -> bool:
        return int(negative.sum()) >= self.k

    def deciding_row(self, margins: Tensor) -> int:
        return int(margins.kthvalue(self.k).indices)


@dataclass(frozen=True, eq=False)
class LinearClaim(ByValue, Claim):
    rows: Tensor  # (K, outputs)
    offset: Tensor  # (K,)
    words: str = "linear claim"
    groups: Groups | None = None

    label = None

    @property
    def n_rows(self) -> int:
        return self.rows.shape[0]

    def margins(self, output: Tensor) -> Tensor:
        return output @ self.rows.T + self.offset

    def magnitude(self, output: Tensor) -> Tensor:
        return output.abs() @ self.rows.abs().T + self.offset.abs()

    def spread(self, radius: Tensor) -> Tensor:
        return radius @ self.rows.abs().T

    def functionals(self, head: Head) -> Functionals:
        weight = head.weight.double()
        offset = self.offset if head.bias is None else self.offset + self.rows @ head.bias.double()
        return Functionals(self.rows @ weight.T, offset)

    def functional_sizes(self, head: Head) -> Tensor:
        width, n_outputs = head.weight.shape
        return self.magnitude(head.weight.double()).T * max(1, n_outputs / width)


def margin_claim(label: int, n_outputs: int, name: str | None = None) -> MarginClaim:
    return MarginClaim(_output(label, n_outputs), n_outputs, name)


def top_claim(label: int, n_outputs: int, k: object, name: str | None = None) -> MarginClaim | TopClaim:
    """The label stays among the k largest outputs."""
    above = margin_claim(label, n_outputs, name)
    count = operator.index(k) if hasattr(k, "__index__") and not isinstance(k, bool) else 0
    if not 1 <= count < n_outputs:
        raise SpecError(f"top_k must lie in 1..{n_outputs - 1}, below the number of outputs; got {k!r}")
    return above if count == 1 else TopClaim(above, count)


def target_claim(label: int, targets: Sequence[int], n_outputs: int, words: str) -> LinearClaim:
    """Output `label` stays above each of the targets, whatever the others do."""
    at, below = _output(label, n_outputs), [_output(target, n_outputs) for target in targets]
    if at in below:
        raise SpecError(f"output {at} is the answer itself, so it cannot be a target")
    if not below or len(set(below)) != len(below):
        raise SpecError(f"targets must be distinct outputs, and at least one; got {below}")
    rows = torch.zeros(len(below), n_outputs, dtype=torch.float64)
    rows[:, at] = 1.0
    rows[range(len(below)), below] = -1.0
    return LinearClaim(rows, torch.zeros(len(below), dtype=torch.float64), words)


def _output(label: int, n_outputs: int) -> int:
    try:
        index = operator.index(label)
    except TypeError as error:
        raise SpecError(f"the label must be an integer; got {label!r}") from error
    if not 0 <= index < n_outputs:
        raise SpecError(f"label {index} is out of range; this model has outputs 0..{n_outputs - 1}")
    if n_outputs < 2:
        raise SpecError("this model has one output: there is no rival for a label; leave the label out")
    return index


def sign_claim(output: Tensor) -> LinearClaim:
    """Every output keeps its side of 0, which is that of `output` (K,). There is one row per output."""
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
    return LinearClaim(rows, offset.repeat_interleave(n_outputs), f"{which} between {exact(low)} and {exact(high)}")


def linear_claim(
    rows: object, offset: object, n_outputs: int, groups: Iterable[Iterable[int]] | None = None
) -> LinearClaim:
    """All of `rows @ output + offset` are positive or, with `groups`, at least one row of each group.

    The shapes are (K, outputs) and (K,).
    """
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
    C, o = C.clone(), o.clone()  # the caller may use the arrays again
    kept = None if groups is None else check_groups(groups, len(C))
    if kept is None:
        return LinearClaim(C, o)
    return LinearClaim(C, o, f"linear claim, any row of each of {len(kept)} groups", kept)


def check_groups(groups: Iterable[Iterable[int]], n_rows: int) -> Groups | None:
    """The groups as tuples; None if every row is a group by itself, so that all rows must hold."""
    try:
        kept = tuple(tuple(operator.index(row) for row in group) for group in groups)
    except TypeError as error:
        raise SpecError(f"groups are lists of row numbers, as [[0, 1], [2]]; got {groups!r}") from error
    named = {row for group in kept for row in group}
    if not all(kept) or any(len(set(group)) != len(group) for group in kept) or named != set(range(n_rows)):
        raise SpecError(
            f"every group needs a row, none twice, and every row 0..{n_rows - 1} a group; got {[*map(list, kept)]}"
        )
    return None if all(len(group) == 1 for group in kept) else kept
