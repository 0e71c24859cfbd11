"""zonogpt inspect"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zonogpt.cli import options
from zonogpt.cli.asking import Inputs
from zonogpt.cli.options import INPUT, OUTPUT, check_writable, size
from zonogpt.cli.progress import loading

EXAMPLES = """
Examples:\n
zonogpt inspect zoo:digits\n
zonogpt inspect MODEL --text "a good film" --words good
"""


def inspect(
    model: options.ModelName,
    text: options.Text = None,
    ids: options.Ids = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Number of tokens, if no text is given.", metavar="N", rich_help_panel=INPUT),
    ] = None,
    positions: options.Positions = None,
    words: options.Words = None,
    each: options.Each = False,
    dtype: options.Dtype = None,
    budget: options.Budget = None,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write everything to this file (- for standard output).", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> None:
    """Describe a model: can it be verified, and what will a run need?

    For a text, that depends on how many tokens there are and which of them move.
    """
    check_writable(json)
    inputs = Inputs(None, None, text, ids, positions, words, each)
    budget_bytes = size(budget)

    with loading("starting", False):  # torch takes a second or two
        from zonogpt.cli.answers.inspection import answer

    answer(model, inputs, tokens, dtype, budget_bytes, json)
