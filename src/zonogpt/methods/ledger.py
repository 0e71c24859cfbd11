"""What a method reports besides its margins: where width came from, and how it accounts for its own rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Guarantee = Literal["bounded", "estimated"]  # how the rounding of the bounds themselves is accounted for


@dataclass(frozen=True)
class LedgerEntry:
    """The `width` that a `step` of residual block `block` (from 1; the input is 0, the head comes last) has caused.

    `kind` is the block's: "attention" or "mlp", or "input" or "head".

    Methods A, F, M, D: the mean radius over tokens and features that the step put into its block's output; for the
    head, the mean loss over the claim's rows. The step "carried" is the radius of earlier symbols behind the block;
    "reduction" is width that moved from generators into the interval and so lost its symbol, without growing.

    Method E: what the step took from the margin, the mean over the claim's rows that went back (all, up to 1,024). The
    sum of all entries is the value at the centre less the margin, before the allowance for rounding.
    """

    block: int
    kind: str
    step: str
    width: float


@dataclass(frozen=True)
class Ledger:
    """Where width, or margin, was lost: `entries` in the network's order."""

    entries: tuple[LedgerEntry, ...] = ()

    def total(self, block: int) -> float:
        """Width at the end of a block, all steps together."""
        return sum(e.width for e in self.entries if e.block == block and e.step != "reduction")

    def blocks(self) -> list[int]:
        return sorted({e.block for e in self.entries})
