"""The nodes that a family of methods has rules for. All others are refused by name before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zonogpt.errors import ModelError
from zonogpt.model.activations import Activation
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model


@dataclass(frozen=True)
class Rules:
    """The kinds of nodes (model/nodes.py) that a family can bound.

    `executed` names those, norms and activations included, that it also bounds for executions in float32. All other
    rules are about real arithmetic only.
    """

    blocks: frozenset[str]
    norms: frozenset[str]
    activations: frozenset[Activation]
    executed: frozenset[str]

    def require(self, model: Model, who: str, arithmetic: Arithmetic = "real") -> None:
        """ModelError unless there is a rule for every part of the model, in this arithmetic."""
        for part, where in self._missing(model):
            raise ModelError(f"{who} has no rule for {part} ({where} of {model.name})")
        if arithmetic != "real":
            kinds = {block.kind for block in model.blocks} | {norm.kind for norm in model.norms}
            kinds |= {activation.name for block in model.blocks for activation in block.shape.activations}
            for kind in sorted(kinds - self.executed):
                raise ModelError(f"{who} has no rule for executions of {kind} in {arithmetic} ({model.name})")

    def cover(self, model: Model) -> bool:
        return next(self._missing(model), None) is None

    def _missing(self, model: Model) -> Iterator[tuple[str, str]]:
        for number, block in enumerate(model.blocks, start=1):
            where = f"block {number}"
            if block.kind not in self.blocks:
                yield block.kind, where
            yield from ((norm.kind, where) for norm in block.norms if norm.kind not in self.norms)
            yield from ((a.name, where) for a in block.shape.activations if a not in self.activations)
        norm = model.head.norm
        if norm is None or norm.kind not in self.norms:
            yield ("no norm before the outputs" if norm is None else norm.kind), "head"
