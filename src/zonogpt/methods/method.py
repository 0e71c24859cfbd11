"""What every method is: a name, and a function from a model and a spec to bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from zonogpt.methods.ledger import Ledger
from zonogpt.methods.plan import Plan, Sizes
from zonogpt.methods.rules import Rules
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec

Part = Literal["search", "still tokens", "forward", "backward"]


@dataclass(frozen=True)
class Progress:
    """Block `block` of `blocks`, of this kind, is about to be bounded. `done` of the work, 0 to 1, has been done.

    Method E has several parts: tokens before the first that moves go forward, then the others do, then the rows of the
    claim go back. A search for counterexamples comes before all blocks.
    """

    block: int
    blocks: int
    kind: str
    part: Part = "forward"
    done: float = 0.0
    task: str = ""  # the purpose of the run, if it is not the verdict itself


OnBlock = Callable[[Progress], None]


@dataclass(frozen=True)
class Numerics:
    """How bounds are computed, and what they are about."""

    dtype: torch.dtype = torch.float64  # of generators and tangents
    arithmetic: Arithmetic = "real"  # methods without `rounding_bounded` know only "real"
    budget_bytes: int | None = None


@dataclass(frozen=True)
class Bounds:
    margins: Tensor  # (K,): certified lower bounds of the claim's rows
    ledger: Ledger
    where_lost: str = ""  # the block in which the error overtook the linear part, for people; empty if none


class Method(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """One line for `zonogpt inspect` and the docs."""

    @property
    def rounding_bounded(self) -> bool:
        """Whether the bounds include their own rounding; if not, it is estimated."""

    @property
    def rules(self) -> Rules:
        """What the method can bound."""

    def sizes(self, model: Model, spec: Spec) -> Sizes:
        """What the cost of this spec depends on."""

    def plan(self, sizes: Sizes, numerics: Numerics) -> Plan:
        """The memory that one input of these sizes will need, counted before it runs."""

    def for_run(self, model: Model, specs: Sequence[Spec], numerics: Numerics) -> Method:
        """The method for a run over these specs, with a cache for what they have in common if it can use one."""

    def batches(self, model: Model, specs: Sequence[Spec], numerics: Numerics) -> list[list[int]]:
        """Batches, as indices of specs that are best bounded together: their embedded inputs must have one shape."""

    def bound_many(
        self, model: Model, specs: Sequence[Spec], numerics: Numerics, on_block: OnBlock | None
    ) -> list[Bounds]:
        """Sound bounds for one such batch, on the device of model and specs, which are in float64."""


class NotEnoughMemoryError(MemoryError):
    """A run would need more memory than it may have; raised before anything is allocated."""


class NonFiniteBlockError(ArithmeticError):
    """A bound became NaN or infinite, in this block and step."""

    def __init__(self, block: int, kind: str, step: str) -> None:
        super().__init__(f"the bound became NaN or infinite in block {block} ({kind}), step {step!r}")
        self.block, self.kind, self.step = block, kind, step
