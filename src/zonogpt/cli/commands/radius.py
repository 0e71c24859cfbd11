"""zonogpt radius"""

from __future__ import annotations

from typing import Annotated

import typer

from zonogpt.cli import options
from zonogpt.cli.asking import Files, Inputs, Run
from zonogpt.cli.options import INPUT, RUN, check_writable, radius_of
from zonogpt.cli.progress import loading

TOLERANCE = 0.02
EXAMPLES = """
Examples:\n
zonogpt radius zoo:digits --data zoo:digits --count 3\n
zonogpt radius MODEL --text "a good film" --positions all --each
"""


def radius(
    model: options.ModelName,
    data: options.Data = None,
    image: options.Image = None,
    text: options.Text = None,
    ids: options.Ids = None,
    positions: options.Positions = None,
    words: options.Words = None,
    each: options.Each = False,
    norm: options.Norm = "inf",
    low: Annotated[str, typer.Option(help="Smallest radius to try.", metavar="R", rich_help_panel=INPUT)] = "1e-5",
    high: Annotated[str, typer.Option(help="Largest radius to try.", metavar="R", rich_help_panel=INPUT)] = "0.5",
    tolerance: options.Tolerance = TOLERANCE,
    count: options.Count = None,
    skip: options.Skip = 0,
    split: options.Split = "test",
    label: options.Label = None,
    method: options.MethodName = "E",
    attack: Annotated[
        bool, typer.Option(help="Search for the smallest broken radius as well.", rich_help_panel=RUN)
    ] = True,
    seed: options.Seed = 0,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds per input for the proofs, and as many for the attack.", metavar="SECONDS", rich_help_panel=RUN
        ),
    ] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    arithmetic: options.Arithmetic = "real",
    budget: options.Budget = None,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    out: options.Out = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """How far an input may move: the largest radius that is proved and the smallest that is broken, by bisection.

    The table has a row for each input; with --each, for each token that moves. In a single text, every token moves one
    at a time unless you say otherwise. Exit code: 0 finished, 2 bad input, 130 stopped by Ctrl-C.
    """
    check_writable(json)
    inputs = Inputs(data, image, text, ids, positions, words, each, split, count, skip, norm, seed)
    run = Run(method, seed, timeout, device, dtype, arithmetic, budget)
    span = radius_of(low, "--low"), radius_of(high, "--high")

    with loading("starting", quiet):  # torch takes a second or two
        from zonogpt.cli.answers.radius import answer

    answer(model, inputs, label, span, tolerance, run, attack, engine, workers, Files(out, json, quiet))
