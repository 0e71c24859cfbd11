"""inspect(): what a model is, whether it can be verified, and what a run will cost, before any run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from zonogpt.errors import OptionError
from zonogpt.methods import METHODS
from zonogpt.methods.method import Numerics
from zonogpt.methods.plan import Plan, Sizes, block_sizes, held_bytes
from zonogpt.methods.structured import pool_limit
from zonogpt.methods.work import work_of
from zonogpt.model.ir import Model, as_ids, check_model
from zonogpt.spec.positions import Positions
from zonogpt.spec.spec import Ids, check_positions
from zonogpt.support.memory import free_bytes
from zonogpt.support.speed import multiply_adds_per_second
from zonogpt.support.tensors import tensors_in
from zonogpt.verification.options import as_dtype, check_limits

# For method E on two CPU cores. Right within a factor of 1.6 for nine sizes, widths 64 to 768, images and texts.
SECONDS_PER_BLOCK, SHARE_OF_SPEED = 0.012, 0.6


@dataclass(frozen=True, repr=False)
class Inspection:
    """What a model is, and what a run will need.

    name, architecture, n_parameters, width, n_heads, hidden, n_outputs: those of the model; hidden is the largest
        number of hidden units.
    n_blocks, n_layers: residual blocks, and those of them in which tokens see each other.
    pool: which tokens the outputs are read from.
    tokens, moving, inputs: how many tokens the predictions are for, how many of them move, and how many raw numbers
        that is. They are None if no tokens were given; the plans are empty then.
    dtype: the type of generators and tangents.
    weight_bytes: memory for all copies of the weights that a run holds.
    free_bytes: free memory on the model's device.
    structured_input_bytes, dense_input_bytes: memory for the generators of a ball over all embeddings, as local and as
        dense ones, 8 bytes per coefficient (the paper's example).
    generator_limit: how many generators a token may keep in the paper's methods.
    plans: for each method that has rules for the model, the memory of a run and the numbers of its symbols.
    seconds: roughly how long one run of method E takes here, right within a factor of 3.
    """

    name: str
    architecture: str
    n_parameters: int
    n_layers: int
    n_blocks: int
    width: int
    n_heads: int
    hidden: int
    n_outputs: int
    pool: str
    tokens: int | None
    moving: int | None
    inputs: int | None
    dtype: str
    weight_bytes: int
    free_bytes: int
    structured_input_bytes: int
    dense_input_bytes: int
    generator_limit: int
    plans: dict[str, Plan]
    seconds: float | None

    def __repr__(self) -> str:
        need = ""
        if "E" in self.plans:
            need = (
                f"; for {self.tokens} tokens, {self.moving} of which move, method E needs about"
                f" {self.plans['E'].peak_bytes / 2**30:.2f} GiB, and {self.free_bytes / 2**30:.2f} GiB are free"
            )
        about = f"{self.n_layers} layers, width {self.width}, {self.n_heads} heads"
        return f"Inspection({self.architecture}, {self.n_parameters:,} parameters: {about}{need})"


def inspect(
    model: Model,
    tokens: int | Ids | None = None,
    positions: Iterable[int] | Literal["last", "all"] | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
) -> Inspection:
    """The sizes of a model, and predictions of what a run needs.

    For texts, predictions need `tokens`, which is a text or a number of tokens, and the `positions` that move together
    (default: all). Without tokens there are no plans.
    """
    check_model(model)
    run_dtype = as_dtype(dtype)
    check_limits(None, budget_bytes)
    d = model.width
    longest, per_token = model.embedding.positions.shape[0], model.embedding.inputs_per_token
    if model.embedding.reads == "images":
        if tokens is not None or positions is not None:
            raise OptionError("tokens and positions are for text models; an image model's number of tokens is fixed")
        length, at = longest, tuple(range(longest))
    else:
        if tokens is None and positions is not None:
            raise OptionError("positions are of tokens: give a text, or how many tokens there are")
        length, at = _text(model, tokens, longest, positions)
    plans, seconds = {}, None
    if at:
        first = at[0] if model.causal else 0
        rows = max(1, model.n_outputs - 1)
        whole = Sizes(length, length, d, block_sizes(model), len(at) * per_token, per_token, rows, model.device.type)
        behind = replace(whole, n_tokens=length - first)  # method E leaves out the tokens before the first that moves
        numerics = Numerics(run_dtype, budget_bytes=budget_bytes)
        plans = {
            name: method.plan(behind if name == "E" else whole, numerics)
            for name, method in METHODS.items()
            if method.rules.cover(model)
        }
        if "E" in plans:
            seconds = about_seconds(work_of(behind).total, len(model.blocks), multiply_adds_per_second(model.device))
    n_parameters = count_parameters(model)
    run_parameters = count_parameters((model.blocks, model.head))
    return Inspection(
        name=model.name,
        architecture=model.architecture,
        n_parameters=n_parameters,
        n_layers=model.n_layers,
        n_blocks=len(model.blocks),
        width=d,
        n_heads=model.n_heads,
        hidden=model.hidden,
        n_outputs=model.n_outputs,
        pool=model.head.reading,
        tokens=length if at else None,
        moving=len(at) if at else None,
        inputs=len(at) * per_token if at else None,
        dtype=str(run_dtype).removeprefix("torch."),
        weight_bytes=held_bytes(
            n_parameters, run_parameters, model.dtype.itemsize, run_dtype.itemsize, model.source is not None
        ),
        free_bytes=free_bytes(model.device),
        structured_input_bytes=structured_bytes(length, d),
        dense_input_bytes=dense_bytes(length, d),
        generator_limit=pool_limit(length, d, run_dtype, budget_bytes),
        plans=plans,
        seconds=seconds,
    )


def _text(
    model: Model, tokens: int | Ids | None, longest: int, positions: Iterable[int] | str | None
) -> tuple[int, tuple[int, ...]]:
    """How many tokens are read, and which of them move. Without `tokens`: the most that can be read, and none."""
    if tokens is None:
        return longest, ()
    if isinstance(tokens, int):
        length, content = tokens, None
        if isinstance(tokens, bool) or not 1 <= length <= longest:
            raise OptionError(f"tokens must lie in 1..{longest}; got {tokens}")
    else:
        length, content = len(model.readable_ids(as_ids(model, tokens))), tokens
    chosen = "all" if positions is None else positions
    if isinstance(chosen, str):
        chosen = Positions.parse(chosen).of(content, length)
    return length, tuple(sorted(check_positions(chosen, length, length)))


def about_seconds(multiply_adds: float, blocks: int, per_second: float) -> float:
    """Roughly how long method E takes. Its products are smaller than those that the device was measured with, and each
    block costs some time whatever its size."""
    return SECONDS_PER_BLOCK * blocks + multiply_adds / (SHARE_OF_SPEED * per_second)


def structured_bytes(n_tokens: int, width: int) -> int:
    """The memory of a ball over all S d embedding coordinates as local generators.

    Each token has d of them, with d coefficients of 8 bytes each.
    """
    return n_tokens * width**2 * 8


def dense_bytes(n_tokens: int, width: int) -> int:
    """The memory of the same ball as dense generators: S d of them, with S d coefficients of 8 bytes each."""
    return n_tokens**2 * width**2 * 8


def count_parameters(value: Any) -> int:
    """How many numbers all distinct weight tensors hold (a tied head counts once)."""
    return sum(tensor.numel() for tensor in {t.data_ptr(): t for t in tensors_in(value)}.values())
