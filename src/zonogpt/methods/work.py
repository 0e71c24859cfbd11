"""The work of a run of method E, counted roughly before it runs: for the bar, and to predict how long it will take.

Only products that grow with the third power of a size are counted, in multiply-adds. Predictions from it are rough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zonogpt.methods.method import OnBlock, Part, Progress
from zonogpt.methods.plan import Sizes
from zonogpt.model.nodes import Shape

Tick = Callable[[int, float], None]  # block t, from 0, is about to be entered; this share of the rows is done


def nobody(t: int, share: float = 0.0) -> None:
    """A Tick that tells nobody."""


@dataclass(frozen=True)
class Work:
    """Multiply-adds, block by block."""

    still: tuple[float, ...]  # tokens before the first that moves
    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.still) + sum(self.forward) + sum(self.backward)

    def before(self, part: Part, t: int, share: float = 0.0) -> float:
        """The share of all work, 0 to 1, that comes before block t (from 0) of this part."""
        if part == "still tokens":
            done = sum(self.still[:t])
        elif part == "forward":
            done = sum(self.still) + sum(self.forward[:t])
        else:  # from the last block to the first, once for each piece of the rows
            piece = sum(self.backward)
            done = sum(self.still) + sum(self.forward) + share * piece + (1 - share) * sum(self.backward[t + 1 :])
        return min(1.0, done / self.total) if self.total else 0.0


def work_of(sizes: Sizes) -> Work:
    """The work of one input."""
    moving, before = sizes.n_tokens, sizes.length - sizes.n_tokens
    blocks = [shape for _, shape in sizes.blocks]
    return Work(
        tuple(_still(sizes, shape, before) for shape in blocks),
        tuple(_forward(sizes, shape, moving) for shape in blocks),
        tuple(_backward(sizes, shape, moving) for shape in blocks),
    )


def _weights(sizes: Sizes, shape: Shape) -> int:
    """How many numbers the block's matrices have."""
    return sizes.width * (4 * shape.inner if shape.heads else 2 * shape.hidden)


def _still(sizes: Sizes, shape: Shape, tokens: int) -> float:
    """The work of taking a d x d Gram for each token through every matrix."""
    return tokens * sizes.width * _weights(sizes, shape)


def _forward(sizes: Sizes, shape: Shape, tokens: int) -> float:
    """The same, and a tangent for every symbol of the input at each token."""
    seen = 2 * sizes.length * shape.inner if shape.heads else 0
    return _still(sizes, shape, tokens) + tokens * sizes.n_inputs * (_weights(sizes, shape) + seen)


def _backward(sizes: Sizes, shape: Shape, tokens: int) -> float:
    """The work of taking each row of the claim through every matrix, and of its length in every Gram."""
    seen = 2 * sizes.length * shape.inner if shape.heads else 0
    return tokens * sizes.n_rows * (_weights(sizes, shape) + seen + sizes.width**2)


@dataclass(frozen=True)
class Teller:
    """Tells of every block that is entered, on the way forward and back, and how much of the work is done by then."""

    on_block: OnBlock | None
    kinds: tuple[str, ...]  # of the blocks
    work: Work

    def tick(self, part: Part) -> Tick:
        if self.on_block is None:
            return nobody
        tell, count = self.on_block, len(self.kinds)

        def told(t: int, share: float = 0.0) -> None:
            tell(Progress(t + 1, count, self.kinds[t], part, self.work.before(part, t, share)))

        return told
