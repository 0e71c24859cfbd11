"""Options that several commands share, word for word, and values that need reading: numbers, sizes, files to write.

Nothing here may import torch: a help screen, a completion or a mistake in the options is answered at once.
"""

from __future__ import annotations

import math
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from zonogpt.errors import OptionError

METHOD_NAMES = ("E", "A", "F", "M", "D", "A-literal", "F-literal", "M-literal", "D-literal", "ibp", "deepz", "crown",
                "covenn")  # fmt: skip
ATTACK = "attack"  # listed among the methods of a comparison

INPUT, CLAIM, RUN, OUTPUT = (
    "What moves",
    "What must stay",
    "How it is run",
    "What is written",
)  # panels of a help screen


# No angle brackets: they are markup on a help screen.
DATA_HELP = "MNIST files, a folder LABEL/*.png, a file of texts (.tsv, .csv, .jsonl, .txt), or zoo:digits."


def _methods(start: str) -> list[str]:
    return [name for name in METHOD_NAMES if name.startswith(start)]


def _models() -> list[str]:
    return ["zoo:digits"]


ModelName = Annotated[
    str,
    typer.Argument(
        help="Directory from save_pretrained, a hub name, or zoo:digits.", metavar="MODEL", autocompletion=_models
    ),
]

Image = Annotated[
    str | None,
    typer.Option(
        help="Picture (.png, .jpg, ...), array (.npy), or zoo:digits/0.", metavar="FILE", rich_help_panel=INPUT
    ),
]
Text = Annotated[
    str | None, typer.Option(help="Text, read with the model's tokenizer.", metavar="TEXT", rich_help_panel=INPUT)
]
Ids = Annotated[str | None, typer.Option(help="Token ids, as 5,17,3.", metavar="IDS", rich_help_panel=INPUT)]
Positions = Annotated[
    str | None,
    typer.Option(
        help="Tokens that move, all at once: last, all, random:2, or 1,4 (counted from 0).",
        metavar="WHICH",
        rich_help_panel=INPUT,
    ),
]
Words = Annotated[
    str | None,
    typer.Option(help="Words that move, all at once, as good,film.", metavar="WORDS", rich_help_panel=INPUT),
]
Each = Annotated[bool, typer.Option("--each", help="Move these tokens one at a time instead.", rich_help_panel=INPUT)]
Data = Annotated[
    Path | None,
    typer.Option(help=DATA_HELP, metavar="PATH", rich_help_panel=INPUT),
]
Count = Annotated[
    int | None, typer.Option(help="Number of examples. Default: all.", metavar="N", rich_help_panel=INPUT)
]
Skip = Annotated[int, typer.Option(help="Skip this many examples first.", metavar="N", rich_help_panel=INPUT)]
Split = Annotated[str, typer.Option(help="For MNIST files: test or train.", metavar="SPLIT", rich_help_panel=INPUT)]
Norm = Annotated[str, typer.Option(help="Norm of the ball: inf, 2 or 1.", metavar="NORM", rich_help_panel=INPUT)]
Radius = Annotated[
    str,
    typer.Option(
        help="How far the input may move, in that norm, as 0.01 or 8/255.", metavar="R", rich_help_panel=INPUT
    ),
]

Label = Annotated[
    str | None,
    typer.Option(
        help="The answer to keep, by number or name. Default: the model's own.", metavar="LABEL", rich_help_panel=CLAIM
    ),
]

MethodName = Annotated[
    str,
    typer.Option(
        help=f"One of {', '.join(METHOD_NAMES)}.", metavar="METHOD", autocompletion=_methods, rich_help_panel=RUN
    ),
]
Seed = Annotated[
    int, typer.Option(help="Seed of the attack and of random positions.", metavar="N", rich_help_panel=RUN)
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...", metavar="DEVICE", rich_help_panel=RUN)]
Dtype = Annotated[str | None, typer.Option(help="float64 (default) or float32.", metavar="TYPE", rich_help_panel=RUN)]
Arithmetic = Annotated[
    str,
    typer.Option(
        help="What the verdict covers: real arithmetic (real), or every execution in float32 (float32).",
        metavar="KIND",
        rich_help_panel=RUN,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="Memory that a run may take (for A, F, M, D: its generators), as 512MiB.",
        metavar="SIZE",
        rich_help_panel=RUN,
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(help="Stop when two radii are this close, relatively.", metavar="RATIO", rich_help_panel=RUN),
]
Engine = Annotated[
    str,
    typer.Option(
        help="local, or ray: the Ray cluster at RAY_ADDRESS, or a new one on this machine.",
        metavar="ENGINE",
        rich_help_panel=RUN,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Parallel workers. Default: 1 locally, and as many as fit on a cluster.", metavar="N", rich_help_panel=RUN
    ),
]

Out = Annotated[
    Path | None,
    typer.Option(
        help="Directory for rows, table and picture. A run resumes there.", metavar="DIR", rich_help_panel=OUTPUT
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        help="Write settings, table and rows to this file (- for standard output).",
        metavar="FILE",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the first line only.", rich_help_panel=OUTPUT)]

UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
STANDARD = Path("-")  # standard input or output, as a file


def check_method(name: str) -> None:
    if name not in METHOD_NAMES:
        raise OptionError(f"method {name!r} is unknown; there are {', '.join(METHOD_NAMES)}")


def integers(text: str, name: str) -> list[int]:
    """ "5,17" -> [5, 17]."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise OptionError(f"{name} takes integers separated by commas; got {text!r}") from error


def numbers(text: str, name: str) -> list[float]:
    """ "1e-3,8/255" -> [0.001, 0.03137...]."""
    return [_number(part, text, name) for part in text.split(",")]


def number(text: str, name: str) -> float:
    """ "8/255" -> 0.03137...; a fraction is rounded up, as a ball of that radius must not be too small."""
    found = numbers(text, name)
    if len(found) != 1:
        raise OptionError(f"{name} takes one number, as 0.01 or 8/255; got {text!r}")
    return found[0]


def radii_of(text: str, name: str) -> list[float]:
    """Numbers that are not negative."""
    found = numbers(text, name)
    if not all(radius >= 0 for radius in found):  # nor NaN
        raise OptionError(f"{name} must be 0 or more; got {text!r}")
    return found


def radius_of(text: str, name: str) -> float:
    """One number that is not negative."""
    number(text, name)
    return radii_of(text, name)[0]


def _number(part: str, text: str, name: str) -> float:
    above, slash, below = part.partition("/")
    try:
        if "/" in below:
            raise ValueError("two fraction bars")
        return _rounded_up(Fraction(above) / Fraction(below)) if slash else float(above)
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise OptionError(f"{name} takes numbers separated by commas, as 0.01 or 8/255; got {text!r}") from error


def _rounded_up(exact: Fraction) -> float:
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def two_numbers(text: str, name: str) -> tuple[float, float]:
    """ "0.2,0.8" -> (0.2, 0.8); -inf and inf are numbers."""
    found = [] if "/" in text else numbers(text, name)  # a fraction would be rounded up, at either end
    if len(found) != 2:
        raise OptionError(f"{name} takes two numbers, LOW,HIGH; got {text!r}")
    return found[0], found[1]


def size(text: str | None) -> int | None:
    """ "512MiB" -> 536870912."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in UNITS:
        raise OptionError(f"--budget takes a number of bytes such as 512MiB or 2GB; got {text!r}")
    try:
        return int(float(match[1]) * UNITS[match[2].upper()])
    except OverflowError as error:
        raise OptionError("--budget is larger than any memory") from error


def norm_of(text: str) -> float:
    """ "inf", "2" or "1", also with an l in front."""
    norms = {"inf": math.inf, "2": 2.0, "1": 1.0}
    name = text.strip().lower().removeprefix("l").removeprefix("_")
    if name not in norms:
        raise OptionError(f"--norm is inf, 2 or 1; got {text!r}")
    return norms[name]


def check_writable(file: Path | None, suffixes: tuple[str, ...] = ()) -> None:
    """OptionError, before any work, if this file cannot be written or has none of these suffixes (if any are given)."""
    if file is None or (file == STANDARD and not suffixes):
        return
    try:
        target = file.resolve()
        special = target.exists() and not target.is_file()  # a pipe or device is written to, not replaced
        place = target if special else target.parent
        possible = target.parent.is_dir() and not target.is_dir() and os.access(place, os.W_OK)
    except OSError as error:  # a name that is too long, a loop of links
        raise OptionError(f"cannot write {file}: {error}") from error
    if not possible:
        raise OptionError(f"cannot write {file}: it is a directory, or its directory does not exist or is read-only")
    if suffixes and file.suffix.lower() not in suffixes:
        raise OptionError(f"cannot write {file}: the name must end in {' or '.join(suffixes)}")
