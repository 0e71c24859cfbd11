"""What `zonogpt inspect` says."""

from __future__ import annotations

import dataclasses
import json as json_format
from pathlib import Path

from rich.console import Console
from rich.table import Table

from zonogpt.cli.answers.inputs import Tokens, one_input
from zonogpt.cli.asking import Inputs
from zonogpt.cli.outputs import answer_stream, write_json
from zonogpt.cli.progress import loading
from zonogpt.errors import OptionError
from zonogpt.methods import METHODS
from zonogpt.model.hf import load
from zonogpt.model.ir import Model
from zonogpt.spec.positions import Positions, named
from zonogpt.verification.inspection import Inspection
from zonogpt.verification.inspection import inspect as run

PROCESS_BYTES = 1 << 29  # roughly what Python takes with torch and transformers
MORE = (
    "what a run needs depends on how many tokens there are, and on which of them move together:"
    ' --tokens 20 --positions last, or --text "..." --words good'
)


def answer(
    name: str, inputs: Inputs, tokens: int | None, dtype: str | None, budget_bytes: int | None, json: Path | None
) -> None:
    with loading(f"loading {name}", False):
        net = load(name)
    found = predicted(net, inputs, tokens, dtype, budget_bytes)
    show(found, Console(soft_wrap=True, highlight=False, file=answer_stream(json)))
    if json is not None:
        write_json(json, json_format.dumps(dataclasses.asdict(found), indent=2) + "\n")


def predicted(
    net: Model, inputs: Inputs, tokens: int | None, dtype: str | None, budget_bytes: int | None
) -> Inspection:
    if inputs.text is not None or inputs.ids is not None:
        if tokens is not None:
            raise OptionError("--tokens is for a text that is not there yet; leave it out")
        text = one_input(net, inputs)
        assert isinstance(text, Tokens)
        return run(
            net, text.content, text.moving[:1] if inputs.each else text.moving, dtype=dtype, budget_bytes=budget_bytes
        )
    if inputs.words is not None:
        raise OptionError("--words are looked for in a text: give --text")
    chosen = named(inputs.positions, None)
    if tokens is None and chosen is not None:
        raise OptionError("--positions are of tokens: give --text, --ids, or --tokens, how many there will be")
    if tokens is None or chosen is None:
        return run(net, dtype=dtype, budget_bytes=budget_bytes)
    moving = Positions.parse(chosen).of(None, tokens)
    return run(net, tokens, moving[:1] if inputs.each else moving, dtype=dtype, budget_bytes=budget_bytes)


def show(found: Inspection, console: Console) -> None:
    console.print(f"supported: {found.architecture}, {found.n_parameters:,} parameters")
    console.print(
        f"{found.n_layers} layers ({found.n_blocks} blocks), width {found.width}, {found.n_heads} heads,"
        f" {found.hidden} hidden units, {found.n_outputs} outputs from the "
        + ("mean of the tokens" if found.pool == "mean" else "last token")
    )
    if found.tokens is None:
        console.print(MORE)
        return
    console.print(
        f"predicted for {found.tokens} tokens, {found.moving} of which move ({found.inputs:,} numbers), in"
        f" {found.dtype}; {gib(found.free_bytes)} are free:"
    )
    console.print(
        f"  a ball over all embeddings: {gib(found.structured_input_bytes)} as local generators,"
        f" {gib(found.dense_input_bytes)} as dense ones"
    )
    console.print(
        f"  generator pool: {found.generator_limit:,} per token, shared and local;"
        f" weights, with all their copies: {gib(found.weight_bytes)}"
    )
    table = Table("method", "what it does", box=None, pad_edge=False)
    for heading in ("shared", "local", "predicted peak", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, plan in found.plans.items():
        peak = plan.peak_bytes + found.weight_bytes + PROCESS_BYTES
        table.add_row(
            name,
            METHODS[name].summary,
            *("-" if count is None else f"{count:,}" for count in (plan.shared, plan.local)),
            gib(peak),
            "fits" if plan.peak_bytes <= found.free_bytes else "does not fit",
        )
    console.print(table)
    if found.seconds is not None:
        console.print(f"one run of E takes very roughly {duration(found.seconds)} here")


def duration(seconds: float) -> str:
    """The duration in one digit, as the prediction is no better than that."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{float(f'{seconds / size:.1g}'):g} {unit}"
    return f"{float(f'{seconds:.1g}'):g} s"


def gib(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**27 else f"{count / 2**20:,.1f} MiB"
