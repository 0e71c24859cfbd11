"""zonogpt certify"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zonogpt.cli import options
from zonogpt.cli.asking import Files, Inputs, Run
from zonogpt.cli.options import DATA_HELP, INPUT, RUN, check_writable, radii_of
from zonogpt.cli.progress import loading

EXAMPLES = """
Examples:\n
zonogpt certify zoo:digits --data zoo:digits --radius 1e-3,4e-3 --out run\n
zonogpt certify MODEL --data sentences.tsv --positions all --each --radius 0.01
"""


def certify(
    model: options.ModelName,
    data: Annotated[
        Path,
        typer.Option(help=DATA_HELP, metavar="PATH", rich_help_panel=INPUT),
    ],
    radius: Annotated[
        str,
        typer.Option(
            help="One radius, or several in increasing order, as 3e-4,8/255.", metavar="R,R,...", rich_help_panel=INPUT
        ),
    ],
    count: options.Count = None,
    skip: options.Skip = 0,
    split: options.Split = "test",
    positions: options.Positions = None,
    words: options.Words = None,
    each: options.Each = False,
    norm: options.Norm = "inf",
    method: options.MethodName = "E",
    attack: Annotated[bool, typer.Option(help="Search for counterexamples as well.", rich_help_panel=RUN)] = True,
    seed: options.Seed = 0,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds per example and radius.", metavar="SECONDS", rich_help_panel=RUN)
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
    """Certified accuracy over a data set: for how many examples is it proved, at each radius, that the label stays?

    In a text, the last token moves unless --positions or --words says otherwise. Exit code: 0 finished, 2 bad input,
    130 stopped by Ctrl-C.
    """
    check_writable(json)
    radii = radii_of(radius, "--radius")
    inputs = Inputs(data, None, None, None, positions, words, each, split, count, skip, norm, seed)
    run = Run(method, seed, timeout, device, dtype, arithmetic, budget)

    with loading("starting", quiet):  # torch takes a second or two
        from zonogpt.cli.answers.accuracy import answer

    answer(model, inputs, radii, run, attack, engine, workers, Files(out, json, quiet))
