"""How much width each step of a block put into the block's output: the raw material of the ledger."""

from __future__ import annotations

from torch import Tensor


class Widths(dict[str, float]):
    """Step name -> mean over tokens and features of the radius that the step contributes to the block's output."""

    @staticmethod
    def of(**radii: Tensor) -> Widths:  # each (S, d)
        return Widths({name.replace("_", "-"): float(radius.mean()) for name, radius in radii.items()})
