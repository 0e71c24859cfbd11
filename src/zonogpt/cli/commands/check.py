"""zonogpt check"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zonogpt.cli import options
from zonogpt.errors import OptionError

EXAMPLES = """
Example:\n
zonogpt check digit.cert zoo:digits
"""


def check(
    certificate: Annotated[
        Path, typer.Argument(help="File from `zonogpt verify --certificate`.", metavar="CERTIFICATE")
    ],
    model: options.ModelName,
) -> None:
    """Check a certificate, with a program that shares no code with `verify`.

    Exit code: 0 valid, 1 invalid (the first line that does not hold is named), 2 unreadable.
    """
    if certificate.is_dir():
        raise OptionError(f"{certificate} is a directory; the certificate comes first: zonogpt check CERTIFICATE MODEL")

    from zonogpt.model.checkpoint import find
    from zonogpt_check.__main__ import main

    raise typer.Exit(main([str(certificate), str(find(model))]))
