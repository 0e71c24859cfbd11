"""The command line: commands are registered here, errors become exit codes here."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zonogpt._version import __version__
from zonogpt.cli import accuracy, check, comparison, inspection, radius, verdict
from zonogpt.cli.outputs import Guarded, complain
from zonogpt.errors import ZonoGptError
from zonogpt_apps.cli import bench, demo

BAD_INPUT = 2
VERDICT_IN_EXIT_CODE = ("verify", "check")  # where nothing is lost with standard output

app = typer.Typer(
    name="zonogpt",
    help="Proves that a GPT-2 model's answer does not change when its input moves inside a ball.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(verdict.verify)
app.command()(check.check)
app.command()(accuracy.certify)
app.command()(radius.radius)
app.command()(comparison.compare)
app.command()(inspection.inspect)
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
    """Entry point. Mistakes of the user end with one clear message and exit code 2, never with a traceback.

    So does output that nobody can read, unless the exit code says it all.
    """
    out, err = Guarded(sys.stdout), Guarded(sys.stderr)
    sys.stdout, sys.stderr = out, err
    code = _run()
    out.flush()
    if out.failure is not None:
        complain(f"cannot write to standard output: {out.failure.strerror}")
        if not set(sys.argv[1:2]) & set(VERDICT_IN_EXIT_CODE):
            code = code or BAD_INPUT
    err.flush()
    sys.exit(code)


def _run() -> int:
    try:
        app()
    except ZonoGptError as error:
        complain(error)
        return BAD_INPUT
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
