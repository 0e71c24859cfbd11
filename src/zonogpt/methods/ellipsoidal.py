"""Method E: one forward pass of ellipsoidal zonotopes, then one backward pass for all rows of the claim.

The forward pass bounds the *sizes* of every step's error. The backward pass carries each row through the linear maps
that the forward pass kept, and bounds each error in the step where it arises, before any covering:

    margin >= value at the centre - (rows at the input over the input set) - sum over steps of (support of its error)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zonogpt.domains.finite import NonFiniteBoundError
from zonogpt.errors import OptionError
from zonogpt.methods.adjoint import backward, where_lost
from zonogpt.methods.ledger import Ledger, LedgerEntry
from zonogpt.methods.method import Bounds, NonFiniteBlockError, Numerics, OnBlock
from zonogpt.methods.plan import (
    Plan,
    Sizes,
    chunk_bytes,
    filling_batch,
    kept_bytes,
    known_token_bytes,
    most_kept_bytes,
    n_moving,
    plan_ellipsoidal,
    still_token_bytes,
    whole_sizes,
)
from zonogpt.methods.prefixes import PrefixCache, first_moving
from zonogpt.methods.rules import Rules
from zonogpt.methods.tape import forward
from zonogpt.methods.walk import RULES, Walk
from zonogpt.methods.work import Teller, work_of
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec
from zonogpt.support.memory import free_bytes

# Specs are batched together only if each has at least this share of the largest number of moving tokens among them,
# because padding is wasted work. A GPU gains from large batches; a CPU does not, so it pads nothing.
LEAST_MOVING = {"cuda": 0.75}
TOGETHER = {"cuda": 256}  # still tokens that are propagated together
SHORT = 64  # sequences of up to this many tokens may be padded to twice their length; longer ones not at all


@dataclass(frozen=True)
class EllipsoidalMethod:
    name: str = "E"
    summary: str = "error ellipsoids, adjoint claim pass"
    rounding_bounded: bool = True
    rules: Rules = RULES
    prefixes: PrefixCache | None = None

    def for_run(self, model: Model, specs: Sequence[Spec], numerics: Numerics) -> EllipsoidalMethod:
        prefixes = PrefixCache(model, numerics.arithmetic, *prefix_tokens(model, numerics.budget_bytes))
        prefixes.expect(specs)
        return dataclasses.replace(self, prefixes=prefixes)

    def sizes(self, model: Model, spec: Spec) -> Sizes:
        return sizes(model, spec)

    def plan(self, sizes: Sizes, numerics: Numerics) -> Plan:
        return plan_ellipsoidal(sizes, numerics.dtype.itemsize, 1, numerics.budget_bytes)

    def batches(self, model: Model, specs: Sequence[Spec], numerics: Numerics) -> list[list[int]]:
        """Batches of specs that are `alike` and have about as many moving tokens (LEAST_MOVING), within the budget."""
        groups: dict[object, list[int]] = {}
        for i, spec in enumerate(specs):
            groups.setdefault(alike(model, spec), []).append(i)
        budget_bytes = numerics.budget_bytes
        budget = self._besides(default_budget(model.device) if budget_bytes is None else budget_bytes)
        item, least = numerics.dtype.itemsize, LEAST_MOVING.get(model.device.type, 1.0)
        if self.prefixes is not None and self.prefixes.arithmetic == "float32":
            least = 1.0  # executions of still tokens are bounded in another way: margins would depend on the batch
        out = []
        for group in groups.values():
            size = {i: sizes(model, specs[i]) for i in group}
            length = max(size[i].length for i in group)
            left = sorted(group, key=lambda i: -size[i].n_tokens)
            while left:
                longest = dataclasses.replace(size[left[0]], length=length)
                each = plan_ellipsoidal(longest, item, 1, budget).peak_bytes
                if budget_bytes is not None and each > budget_bytes:
                    raise OptionError(
                        f"the budget is {budget_bytes / 2**20:,.0f} MiB,"
                        f" but method E needs {each / 2**20:,.0f} MiB here"
                    )
                most_kept = most_kept_bytes(model.device.type) // kept_bytes(longest, item)
                most = max(1, min(budget // each, most_kept, filling_batch(longest)))
                batch = [i for i in left[:most] if size[i].n_tokens >= least * longest.n_tokens]
                out.append(batch)
                left = left[len(batch) :]
        return out

    def _besides(self, budget: int) -> int:
        """The part of the budget that the cached prefixes leave for a batch."""
        return budget if self.prefixes is None else budget - self.prefixes.most_bytes

    def bound_many(
        self, model: Model, specs: Sequence[Spec], numerics: Numerics, on_block: OnBlock | None
    ) -> list[Bounds]:
        dtype, budget_bytes = numerics.dtype, numerics.budget_bytes
        each = [sizes(model, spec) for spec in specs]
        longest = dataclasses.replace(
            each[0], n_tokens=max(size.n_tokens for size in each), length=max(size.length for size in each)
        )
        # A GPU's large chunks must leave room for the batch itself.
        budget = default_budget(model.device) if budget_bytes is None and model.device.type == "cuda" else budget_bytes
        limit = chunk_bytes(longest, dtype.itemsize, len(specs), None if budget is None else self._besides(budget))
        teller = Teller(on_block, tuple(block.kind for block in model.blocks), work_of(longest))
        walk = Walk(model, limit, numerics.arithmetic, tick=teller.tick("forward"))
        tape = forward(walk, specs, dtype, self.prefixes, teller.tick("still tokens"))
        try:
            margins, losses = backward(tape, teller.tick("backward"))
        except NonFiniteBoundError as error:
            raise NonFiniteBlockError(len(model.blocks) + 1, "head", error.step) from error
        lost = ["" if spec.claim.proved(margins[b]) else where_lost(tape, b) for b, spec in enumerate(specs)]
        widths = torch.stack(list(losses.values()), dim=1).tolist()
        ledgers = [
            Ledger(tuple(LedgerEntry(*where, w) for where, w in zip(losses, row, strict=True))) for row in widths
        ]
        return [Bounds(*parts) for parts in zip(margins, ledgers, lost, strict=True)]


def default_budget(device: torch.device) -> int:
    """The most bytes for a batch: on a GPU much of the free memory, should one input need it; on a CPU enough to
    fill the cores, but no more than suits the caches."""
    if device.type == "cuda":
        return int(0.7 * free_bytes(device))
    return 1 << 30


def prefix_tokens(model: Model, budget_bytes: int | None) -> tuple[int, int]:
    """How many still tokens go through the network together, and how many are remembered at most."""
    budget = default_budget(model.device) if budget_bytes is None else budget_bytes
    each = still_token_bytes(model.width, model.n_heads, model.hidden, SHORT)
    together = min(TOGETHER.get(model.device.type, 1), budget // each)
    return together, budget // (8 * known_token_bytes(model))


def sizes(model: Model, spec: Spec) -> Sizes:
    """The sizes of a run from the first token that moves on: only these tokens go through the network as a batch."""
    return dataclasses.replace(whole_sizes(model, spec), n_tokens=spec.input.n_tokens - first_moving(model, spec))


def alike(model: Model, spec: Spec) -> object:
    """A key that all specs of a batch share. Where the last token is read, short sequences may differ in length."""
    S = spec.input.n_tokens
    length = (S - 1).bit_length() if model.head.reads_last and S <= SHORT else -S
    return length, spec.claim.n_rows, spec.input.p, n_moving(spec)


METHOD_E = EllipsoidalMethod()
