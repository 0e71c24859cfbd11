"""zonogpt compare"""

from __future__ import annotations

from typing import Annotated

import typer

from zonogpt.cli import options
from zonogpt.cli.asking import Files, Inputs, Run
from zonogpt.cli.options import ATTACK, INPUT, METHOD_NAMES, RUN, check_writable, radii_of, radius_of
from zonogpt.cli.progress import loading

ALL = "E,A,F,D,M,crown,deepz,covenn,ibp,attack"
EXAMPLES = """
Example:\n
zonogpt compare zoo:digits --data zoo:digits --count 3 --methods E,A,crown,attack
"""


def compare(
    model: options.ModelName,
    data: options.Data = None,
    image: options.Image = None,
    text: options.Text = None,
    ids: options.Ids = None,
    positions: options.Positions = None,
    words: options.Words = None,
    each: options.Each = False,
    norm: options.Norm = "inf",
    radius: Annotated[
        str, typer.Option(help="Radii at which proofs are counted.", metavar="R,R,...", rich_help_panel=INPUT)
    ] = "1e-5,1e-4,3e-4,1e-3,3e-3,1e-2",
    low: Annotated[
        str | None,
        typer.Option(
            help="Smallest radius to try. Default: the smallest of --radius.", metavar="R", rich_help_panel=INPUT
        ),
    ] = None,
    high: Annotated[
        str | None,
        typer.Option(
            help="Largest radius to try. Default: ten times the largest of --radius.",
            metavar="R",
            rich_help_panel=INPUT,
        ),
    ] = None,
    tolerance: options.Tolerance = 0.05,
    count: options.Count = None,
    skip: options.Skip = 0,
    split: options.Split = "test",
    label: options.Label = None,
    methods: Annotated[
        str, typer.Option(help=f"Some of {', '.join(METHOD_NAMES)}, {ATTACK}.", metavar="METHODS", rich_help_panel=RUN)
    ] = ALL,
    seed: options.Seed = 0,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds per input and method.", metavar="SECONDS", rich_help_panel=RUN)
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
    """Compare methods and an attack on the same inputs: what each proves, how far, how fast, in how much memory.

    Exit code: 0 finished, 2 bad input, 130 stopped by Ctrl-C.
    """
    check_writable(json)
    grid = radii_of(radius, "--radius")
    span = (
        min(grid) if low is None else radius_of(low, "--low"),
        10 * max(grid) if high is None else radius_of(high, "--high"),
    )
    inputs = Inputs(data, image, text, ids, positions, words, each, split, count, skip, norm, seed)
    run = Run("E", seed, timeout, device, dtype, arithmetic, budget)
    names = [name.strip() for name in methods.split(",")]

    with loading("starting", quiet):  # torch takes a second or two
        from zonogpt.cli.answers.comparison import answer

    answer(model, inputs, label, names, grid, span, tolerance, run, engine, workers, Files(out, json, quiet))
