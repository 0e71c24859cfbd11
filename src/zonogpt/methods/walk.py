"""Method E's way through the blocks: one loop for moving and still tokens, and one rule for each kind of block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from zonogpt.domains.choices import Choices
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.finite import NonFiniteBoundError
from zonogpt.methods.method import NonFiniteBlockError
from zonogpt.methods.rules import Rules
from zonogpt.methods.work import Tick, nobody
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model
from zonogpt.model.nodes import Attention, Block, Mlp
from zonogpt.transforms.activations import ACTIVATIONS
from zonogpt.transforms.ellipsoidal.attention import attend
from zonogpt.transforms.ellipsoidal.mlp import mlp_step
from zonogpt.transforms.ellipsoidal.norm import NORMS, NormStep
from zonogpt.transforms.ellipsoidal.sources import sources
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.queries import Queries


class Step(Protocol):
    """What the backward pass needs of a block."""

    @property
    def kind(self) -> str: ...
    @property
    def z(self) -> EllipsoidalZonotope:
        """The set before the block."""

    @property
    def norm(self) -> NormStep | None:
        """The block's norm; None where it has none."""

    @property
    def choices(self) -> Choices:
        """The choices that a certificate must write down; empty where certificates have no rule for the block."""

    def pull(self, functionals: Tensor, limit: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Functionals (B, K, I, d) of the block's output as functionals (B, K, n, d) of its input, and the losses.

        A loss (B, K), by the name of an error, bounds what this error of the step takes from every row. The loss
        "rounding" includes all that the step rounds off, forward and backward.
        """

    @property
    def as_prefix(self) -> Prefix | None:
        """The block's tokens as later ones see them; None where tokens do not see each other."""


@dataclass(frozen=True)
class Surroundings:
    """What a block's rule needs besides the set."""

    prefix: Prefix | None  # tokens before those of the set; None: there are none
    queries: Queries  # the tokens that the block's output is for
    padding: Tensor | None  # as in Attention.visible
    limit: int  # bytes of temporaries
    arithmetic: Arithmetic


Rule = Callable[[Any, EllipsoidalZonotope, Surroundings], tuple[EllipsoidalZonotope, Step]]


def _attention(block: Block[Attention], z: EllipsoidalZonotope, at: Surroundings) -> tuple[EllipsoidalZonotope, Step]:
    prefix = Prefix.none(z.c, block.branch) if at.prefix is None else at.prefix
    return attend(sources(block, z, prefix, at.limit), at.queries, at.limit, at.padding, at.arithmetic)


def _mlp(block: Block[Mlp], z: EllipsoidalZonotope, at: Surroundings) -> tuple[EllipsoidalZonotope, Step]:
    return mlp_step(block, z, at.limit, at.arithmetic)


STEPS: Mapping[str, Rule] = {"attention": _attention, "mlp": _mlp}
EXECUTED = frozenset({"attention", "mlp", "LayerNorm", "tanh-GELU"})  # whose rules heed `arithmetic`
RULES = Rules(frozenset(STEPS), frozenset(NORMS), frozenset(ACTIVATIONS), EXECUTED)


@dataclass(frozen=True)
class Walk:
    """One way through the blocks. `prefix(t)` gives the tokens before those that walk, as block t, from 0, sees them;
    None: there are none.

    With `every_token` every block gets all tokens. Without it, only the last token goes on behind the last attention
    block, if the head reads no other.
    """

    model: Model
    limit: int
    arithmetic: Arithmetic = "real"
    padding: Tensor | None = None
    prefix: Callable[[int], Prefix] | None = None
    every_token: bool = False
    tick: Tick = nobody  # told of every block

    @property
    def last_attention(self) -> int:
        """The last block in which tokens see each other; -1 without any."""
        return max((t for t, block in enumerate(self.model.blocks) if block.shape.heads), default=-1)

    def steps(
        self, z: EllipsoidalZonotope, count: int | None = None
    ) -> Iterator[tuple[int, EllipsoidalZonotope, Step]]:
        """For each of the first `count` blocks: its number from 0, the set behind it, and its step."""
        for t, block in enumerate(self.model.blocks[:count]):
            self.tick(t, 0.0)
            prefix = self.prefix(t) if self.prefix is not None and block.shape.heads else None
            at = Surroundings(prefix, self._queries(t, z, prefix), self.padding, self.limit, self.arithmetic)
            try:
                z, step = STEPS[block.kind](block, z, at)
            except NonFiniteBoundError as error:
                raise NonFiniteBlockError(t + 1, block.kind, error.step) from error
            yield t, z, step

    def _queries(self, t: int, z: EllipsoidalZonotope, prefix: Prefix | None) -> Queries:
        before = 0 if prefix is None else prefix.n_tokens
        if t == self.last_attention and self.model.head.reads_last and not self.every_token:
            return Queries.last(z.n_tokens, before)
        return Queries.every(z.n_tokens, before)
