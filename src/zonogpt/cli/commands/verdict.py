"""zonogpt verify"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zonogpt.cli import options
from zonogpt.cli.asking import Claimed, Inputs, Run
from zonogpt.cli.options import CLAIM, OUTPUT, RUN, check_writable, radius_of
from zonogpt.cli.progress import loading
from zonogpt.errors import OptionError

EXAMPLES = """
Examples:\n
zonogpt verify zoo:digits --image zoo:digits/0 --radius 2e-3\n
zonogpt verify MODEL --text "a good film" --words good --radius 0.01 --attack
"""


def verify(
    model: options.ModelName,
    radius: options.Radius,
    image: options.Image = None,
    text: options.Text = None,
    ids: options.Ids = None,
    positions: options.Positions = None,
    words: options.Words = None,
    each: options.Each = False,
    norm: options.Norm = "inf",
    label: options.Label = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The answer stays above these outputs, as 3 or POSITIVE,NEUTRAL.",
            metavar="LABELS",
            rich_help_panel=CLAIM,
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="The answer stays among the K largest outputs.", metavar="K", rich_help_panel=CLAIM),
    ] = None,
    keep_sign: Annotated[
        bool, typer.Option("--keep-sign", help="Every output keeps its side of 0.", rich_help_panel=CLAIM)
    ] = False,
    interval: Annotated[
        str | None,
        typer.Option(
            help="Every output stays between these two (regression).", metavar="LOW,HIGH", rich_help_panel=CLAIM
        ),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            help='JSON file {"rows": [[...]], "offset": [...]}: rows @ outputs + offset > 0 (- for standard input).',
            metavar="FILE",
            rich_help_panel=CLAIM,
        ),
    ] = None,
    method: options.MethodName = "E",
    attack: Annotated[
        bool, typer.Option("--attack/--no-attack", help="First search for a counterexample.", rich_help_panel=RUN)
    ] = False,
    hint: Annotated[
        bool | None,
        typer.Option(
            "--hint/--no-hint",
            help="If unknown: look for a smaller radius that E certifies. Default: only on a terminal.",
            rich_help_panel=RUN,
        ),
    ] = None,
    seed: options.Seed = 0,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds; checked between blocks.", metavar="SECONDS", rich_help_panel=RUN),
    ] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    arithmetic: options.Arithmetic = "real",
    budget: options.Budget = None,
    counterexample: Annotated[
        Path | None,
        typer.Option(
            help="If falsified: write the input to this .npz, and if it is an image, a .png beside it.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            help="If verified (by E, in real arithmetic): write the proof to this file, for `zonogpt check`.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Check the certificate once it is written.", rich_help_panel=OUTPUT)
    ] = True,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write the whole result to this file (- for standard output).", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the verdict.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Try to prove that the answer stays the same over the whole ball, or find an input that changes it.

    The first word of the answer is the verdict. Exit code: 0 verified, 10 unknown, 20 falsified, 30 timeout, 2 bad
    input. It stays the verdict's if a file cannot be written afterwards; the file is then named.
    """
    check_writable(json)
    check_writable(counterexample, (".npz",))
    if certificate == options.STANDARD:
        raise OptionError("a certificate is written to a file")
    check_writable(certificate)
    if certificate is not None and (method, arithmetic) != ("E", "real"):
        raise OptionError("certificates are written by method E, about the network in real arithmetic")
    if each and (certificate is not None or counterexample is not None):
        raise OptionError("--certificate and --counterexample are about one input; with --each there are several")
    inputs = Inputs(None, image, text, ids, positions, words, each, norm=norm, seed=seed)
    claimed = Claimed(label, interval, target, top_k, keep_sign, rows)
    run = Run(method, seed, timeout, device, dtype, arithmetic, budget)
    reach = radius_of(radius, "--radius")

    with loading("starting", quiet):  # torch takes a second or two
        from zonogpt.cli.answers.verdict import VerdictFiles, answer

    files = VerdictFiles(counterexample, certificate, check, json, quiet)
    raise typer.Exit(answer(model, inputs, claimed, reach, run, attack, hint, files))
