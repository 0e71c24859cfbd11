"""The command line: commands are registered here, errors become exit codes here.

Nothing that is imported here may import torch: `--version`, `--help` and mistakes in the options are answered at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from zonogpt._version import __version__
from zonogpt.cli.commands import accuracy, check, comparison, inspection, radius, verdict
from zonogpt.cli.outputs import Guarded, complain
from zonogpt.cli.stopping import INTERRUPTED
from zonogpt.errors import ZonoGptError
from zonogpt_apps.cli import bench, demo

BAD_INPUT = 2
VERDICT_IN_EXIT_CODE = ("verify", "check")  # commands whose exit code is enough without standard output
HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="zonogpt",
    help="Proves that a GPT-2 model's answer does not change when its input moves inside a ball.",
    epilog="Start with:  zonogpt demo   or   zonogpt verify zoo:digits --image zoo:digits/0 --radius 2e-3",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings=HELP,
)
app.command(epilog=verdict.EXAMPLES, context_settings=HELP)(verdict.verify)
app.command(epilog=check.EXAMPLES, context_settings=HELP)(check.check)
app.command(epilog=accuracy.EXAMPLES, context_settings=HELP)(accuracy.certify)
app.command(epilog=radius.EXAMPLES, context_settings=HELP)(radius.radius)
app.command(epilog=comparison.EXAMPLES, context_settings=HELP)(comparison.compare)
app.command(epilog=inspection.EXAMPLES, context_settings=HELP)(inspection.inspect)
app.command(epilog=demo.EXAMPLES, context_settings=HELP)(demo.demo)
app.add_typer(bench.bench, name="bench", context_settings=HELP)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"zonogpt {__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Entry point. Mistakes of the user end with one clear message and exit code 2, never with a traceback.

    So does a failure to write to standard output, unless the exit code alone says the verdict.
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
        code = app(standalone_mode=False)
    except ZonoGptError as error:
        complain(error)
        return BAD_INPUT
    except KeyboardInterrupt:  # before a command runs; long commands say themselves what they kept
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:
        said = usage(error)
        if said is None:
            raise
        complain(said)
        return BAD_INPUT
    return code if isinstance(code, int) else 0


def usage(error: Exception) -> str | None:
    """One line for a mistake in the options; None for any other error.

    The error's class depends on the release of typer: some use click's, others their own copy of it.
    """
    if not hasattr(error, "format_message"):
        return None
    context = getattr(error, "ctx", None)
    command = "zonogpt" if context is None else context.command_path
    return f"{' '.join(error.format_message().split())} ({command} --help lists all options)"
