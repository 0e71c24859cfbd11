"""inspect(): what a model is, whether it can be verified, and what a run will cost, before any run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zonogpt.errors import OptionError
from zonogpt.methods import METHODS
from zonogpt.methods.method import Numerics
from zonogpt.methods.plan import Plan, Sizes, block_sizes, held_bytes
from zonogpt.methods.structured import pool_limit
from zonogpt.model.ir import Model, check_model
from zonogpt.support.tensors import tensors_in
from zonogpt.verification.options import as_dtype, check_limits


@dataclass(frozen=True)
class Inspection:
    name: str
    architecture: str
    n_parameters: int
    n_layers: int  # blocks in which tokens see each other
    n_blocks: int
    width: int
    n_heads: int
    hidden: int
    n_outputs: int
    pool: str
    tokens: int  # sequence length the predictions are for
    inputs: int  # raw numbers that move in the largest input set: all pixels, or the embeddings of all tokens
    dtype: str
    weight_bytes: int  # all copies of them that a run holds: see held_bytes
    structured_input_bytes: int  # input generators stored per token, 8 bytes each (the paper's example)
    dense_input_bytes: int  # the same as dense generators
    generator_limit: int
    plans: dict[str, Plan]  # method -> prediction, of those that have rules for the model


def inspect(
    model: Model,
    tokens: int | None = None,
    positions: int | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
) -> Inspection:
    """Sizes and predictions. For text: `tokens` ids (default: as many as fit), of which `positions` move (all)."""
    check_model(model)
    run_dtype = as_dtype(dtype)
    check_limits(None, budget_bytes)
    d = model.width
    if model.embedding.reads == "images":
        if tokens is not None or positions is not None:
            raise OptionError("tokens and positions are for text models; an image model's number of tokens is fixed")
        S, per_token = model.embedding.positions.shape[0], model.embedding.inputs_per_token
        inputs = S * per_token
    else:
        longest = model.embedding.positions.shape[0]
        S, per_token = longest if tokens is None else tokens, d
        if not 1 <= S <= longest:
            raise OptionError(f"tokens must lie in 1..{longest}; got {S}")
        moving = S if positions is None else positions
        if not 1 <= moving <= S:
            raise OptionError(f"positions must lie in 1..{S}; got {moving}")
        inputs = moving * d
    limit = pool_limit(S, d, run_dtype, budget_bytes)
    rows = max(1, model.n_outputs - 1)
    sizes = Sizes(S, S, d, block_sizes(model), inputs, per_token, rows, model.device.type)
    numerics = Numerics(run_dtype, budget_bytes=budget_bytes)
    plans = {name: method.plan(sizes, numerics) for name, method in METHODS.items() if method.rules.cover(model)}
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
        tokens=S,
        inputs=inputs,
        dtype=str(run_dtype).removeprefix("torch."),
        weight_bytes=held_bytes(
            n_parameters, run_parameters, model.dtype.itemsize, run_dtype.itemsize, model.source is not None
        ),
        structured_input_bytes=structured_bytes(S, d),
        dense_input_bytes=dense_bytes(S, d),
        generator_limit=limit,
        plans=plans,
    )


def structured_bytes(n_tokens: int, width: int) -> int:
    """A ball over all S d embedding coordinates as local generators: d per token, d coefficients each, 8 bytes."""
    return n_tokens * width**2 * 8


def dense_bytes(n_tokens: int, width: int) -> int:
    """The same ball as dense generators: S d of them, S d coefficients each, 8 bytes."""
    return n_tokens**2 * width**2 * 8


def count_parameters(value: Any) -> int:
    """Numbers in all distinct weight tensors (a tied head counts once)."""
    return sum(tensor.numel() for tensor in {t.data_ptr(): t for t in tensors_in(value)}.values())
