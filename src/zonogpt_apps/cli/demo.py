"""zonogpt demo"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from zonogpt.cli.options import check_writable
from zonogpt.cli.progress import progress_bar

EXAMPLES = """
Examples:\n
zonogpt demo\n
zonogpt demo --example --out example.svg
"""


def demo(
    example: Annotated[
        bool, typer.Option("--example", help="Bound the paper's worked example instead of the digits.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Picture to write. Default: zonogpt-demo.png or zonogpt-demo-example.png.", metavar="FILE"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
) -> None:
    """Verify the bundled model on its digits, print a table and draw a picture."""
    file = out or Path("zonogpt-demo-example.png" if example else "zonogpt-demo.png")
    check_writable(file, (".png", ".pdf", ".svg"))
    (show_example if example else show_study)(file, quiet)
    print(f"picture: {file}")


def show_study(file: Path, quiet: bool) -> None:
    from zonogpt_apps.demo import study
    from zonogpt_apps.demo.figures import draw_study  # matplotlib is slow to import

    with progress_bar(quiet) as bar:
        task = bar.add_task("loading", total=None)
        found = study.run_study(lambda what, total: bar.update(task, advance=1, total=total, description=what))
    n = len(found.labels)
    table = Table(
        "method",
        *(f"radius {radius:g}" for radius in study.RADII),
        "s / run",
        title=f"Digits proved, of {n}: no change of any pixel within the radius alters the answer",
        title_justify="left",
    )
    for method in study.METHODS:
        counts = [str(found.proved(method, radius)) for radius in study.RADII]
        table.add_row(method, *counts, f"{found.seconds(method):.2f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(said_of_radii(found.largest), soft_wrap=True)
    draw_study(found, file)


def said_of_radii(radii: Sequence[float]) -> str:
    """The result, in words, of the search between the table's radii."""
    from zonogpt_apps.demo import study

    able = [radius for radius in radii if radius > 0]
    most = f"; {len(radii) - len(able)} digits have none" if len(able) < len(radii) else ""
    between = f"from {min(able):g} to {max(able):g}" if able else "none"
    return f"largest radius that {study.SEARCHED} proves, searched to {study.TOLERANCE:.0%}: {between}{most}"


def show_example(file: Path, quiet: bool) -> None:
    from zonogpt_apps.demo import worked_example
    from zonogpt_apps.demo.example_figure import draw_example

    table = Table(
        "",
        "lower",
        "upper",
        "positive?",
        title="The paper's worked example: [A(x)]_11 over the box of radius 0.02",
    )
    for name, (low, high) in worked_example.intervals().items():
        verdict = "" if name == "sampled" else "proved" if low > 0 else "not proved"
        table.add_row(name, f"{low:.4f}", f"{high:.4f}", verdict)
    centre = float(worked_example.BLOCK(worked_example.CENTRE)[0, 0])
    console = Console(highlight=False)
    console.print(table)
    console.print(f"value at the centre: {centre:.4f}")
    z, generators = worked_example.bound_by_deepz()
    console.print(
        f"deepz: {generators} generators, centre {float(z.c[0, 0]):.4f}, sum {float(z.G[:, 0, 0].abs().sum()):.4f}"
        f" (the paper: {worked_example.PAPER_DEEPZ_GENERATORS}, {worked_example.PAPER_DEEPZ_CENTRE}, 1.61)"
    )
    draw_example(file)
