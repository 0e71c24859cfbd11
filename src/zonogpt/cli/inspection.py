"""zonogpt inspect"""

from __future__ import annotations

import dataclasses
import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from zonogpt.cli import options
from zonogpt.cli.options import check_writable, size
from zonogpt.methods import METHODS
from zonogpt.model.hf import load
from zonogpt.support.files import write_whole
from zonogpt.verification.inspection import Inspection
from zonogpt.verification.inspection import inspect as run

PROCESS_BYTES = 1 << 29  # Python with torch and transformers, about


def inspect(
    model: options.ModelName,
    tokens: Annotated[int | None, typer.Option(help="Text length to predict for. Default: all positions.")] = None,
    positions: Annotated[int | None, typer.Option(help="How many tokens move. Default: all.")] = None,
    dtype: options.Dtype = None,
    budget: options.Budget = None,
    json: Annotated[Path | None, typer.Option(help="Write everything to this file.")] = None,
) -> None:
    """Say what a model is, whether it can be verified, and what a run will need, before any run."""
    check_writable(json)
    found = run(load(model), tokens, positions, dtype, size(budget))
    show(found)
    if json is not None:
        write_whole(json, json_format.dumps(dataclasses.asdict(found), indent=2) + "\n")


def show(found: Inspection) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"supported: {found.architecture}, {found.n_parameters:,} parameters")
    console.print(
        f"{found.n_layers} layers ({found.n_blocks} blocks), width {found.width}, {found.n_heads} heads,"
        f" {found.hidden} hidden units, {found.n_outputs} outputs from the "
        + ("mean of the tokens" if found.pool == "mean" else "last token")
    )
    console.print(f"predicted for {found.tokens} tokens and {found.inputs:,} moving inputs, in {found.dtype}:")
    console.print(
        f"  a ball over all embeddings: {gib(found.structured_input_bytes)} as local generators,"
        f" {gib(found.dense_input_bytes)} as dense ones"
    )
    console.print(
        f"  generator pool: {found.generator_limit:,} per token, shared and local;"
        f" weights, with all their copies: {gib(found.weight_bytes)}"
    )
    table = Table("method", "what it does", box=None, pad_edge=False)
    for heading in ("shared", "local", "predicted peak"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, plan in found.plans.items():
        table.add_row(
            name,
            METHODS[name].summary,
            *("-" if count is None else f"{count:,}" for count in (plan.shared, plan.local)),
            gib(plan.peak_bytes + found.weight_bytes + PROCESS_BYTES),
        )
    console.print(table)


def gib(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**27 else f"{count / 2**20:,.1f} MiB"
