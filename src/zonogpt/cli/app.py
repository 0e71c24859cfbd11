"""The command line: commands are registered here, errors become exit codes here."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from zonogpt._version import __version__
from zonogpt.cli import bench, certify, check, compare, demo, inspect, radius, verify
from zonogpt.errors import ZonoGptError

BAD_INPUT = 2

app = typer.Typer(
    name="zonogpt",
    help="Proves that a GPT-2 model's answer does not change when its input moves inside a ball.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(verify.verify)
app.command()(check.check)
app.command()(certify.certify)
app.command()(radius.radius)
app.command()(compare.compare)
app.command()(inspect.inspect)
app.command()(demo.demo)
app.add_typer(bench.bench, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"zonogpt {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point. Mistakes of the user end with one clear message and exit code 2, never with a traceback."""
    try:
        app()
    except ZonoGptError as error:
        # Text, not markup: file names may hold anything.
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("error:", "red"), f" {error}"))
        sys.exit(BAD_INPUT)
