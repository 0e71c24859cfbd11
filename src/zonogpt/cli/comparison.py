"""zonogpt compare"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from zonogpt.cli import options
from zonogpt.cli.inputs import open_inputs
from zonogpt.cli.options import check_writable, norm_of, numbers, size
from zonogpt.cli.outputs import as_json, attempt
from zonogpt.cli.progress import progress_bar
from zonogpt.cli.stopping import stoppable
from zonogpt.cli.tables import print_table
from zonogpt.cli.watching import BarWatcher
from zonogpt.methods import METHODS
from zonogpt.model.hf import load
from zonogpt.studies.radii.comparison import Comparison
from zonogpt.studies.radii.comparison import compare as run
from zonogpt.studies.radii.rows import ATTACK
from zonogpt.studies.radii.table import MethodLine, as_csv, tabulate
from zonogpt.support.files import write_whole

ALL = "E,A,F,D,M,crown,deepz,covenn,ibp,attack"


def compare(
    model: options.ModelName,
    data: options.Data = None,
    image: options.Image = None,
    text: options.Text = None,
    ids: options.Ids = None,
    positions: options.EachPosition = None,
    label: options.Label = None,
    methods: Annotated[str, typer.Option(help=f"Some of {', '.join(METHODS)}, {ATTACK}.")] = ALL,
    radius: Annotated[str, typer.Option(help="Radii at which proofs are counted.")] = "1e-5,1e-4,3e-4,1e-3,3e-3,1e-2",
    low: Annotated[float | None, typer.Option(help="The smallest radius to try. Default: smallest of these.")] = None,
    high: Annotated[float | None, typer.Option(help="The largest. Default: ten times the largest of these.")] = None,
    tolerance: options.Tolerance = 0.05,
    count: options.Count = None,
    skip: options.Skip = 0,
    split: options.Split = "test",
    norm: options.Norm = "inf",
    seed: options.Seed = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds per input and method.")] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    arithmetic: options.Arithmetic = "real",
    budget: options.Budget = None,
    out: options.Out = None,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Several methods, and an attack, on the same inputs: what each proves, how far, how fast, in how much memory.

    Exit code: 0 when it ran through, 2 bad input, 130 stopped by Ctrl-C.
    """
    check_writable(json)
    grid, budget_bytes = numbers(radius, "--radius"), size(budget)
    names = [name.strip() for name in methods.split(",")]
    net = load(model)
    dataset, tokens = open_inputs(net, model, data, split, image, text, ids, positions, label)
    with progress_bar(quiet) as bar:
        watcher = BarWatcher(bar)
        with stoppable(watcher, out):
            found = run(
                net, dataset, names, low or min(grid), high or 10 * max(grid), grid, tolerance, count=count, skip=skip,
                norm=norm_of(norm), positions=tokens, seed=seed, timeout=timeout, device=device, dtype=dtype,
                budget_bytes=budget_bytes, out=out, watcher=watcher, arithmetic=arithmetic, engine=engine,
                workers=workers,
            )  # fmt: skip
    lines = tabulate(found.rows, found.methods, grid)
    print(headline(lines))
    if not quiet:
        print_table(as_table(lines, grid))
    sys.stdout.flush()  # the answer is out, whatever becomes of the files
    if write(found, lines, model, out, json) and out is not None and not quiet:
        print(f"in {out}: rows.jsonl, settings.json, table.csv, comparison.png")


def write(found: Comparison, lines: Sequence[MethodLine], model: str, out: Path | None, json: Path | None) -> bool:
    """Whether all files could be written; those that could not are named."""
    grid, done = found.settings.grid, []
    if out is not None:
        from zonogpt.studies.radii.figure import draw_comparison  # matplotlib is slow to import

        done.append(attempt(write_whole, out / "table.csv", as_csv(lines, grid)))
        title = f"{Path(model).name}: {lines[0].inputs} inputs, l_{found.settings.norm} ball"
        done.append(attempt(draw_comparison, lines, found.rows, grid, title, out / "comparison.png"))
    if json is not None:
        done.append(attempt(write_whole, json, as_json(found.settings, lines, found.rows)))
    return all(done)


def headline(lines: Sequence[MethodLine]) -> str:
    """Who proves the largest radii."""
    able = [line for line in lines if line.radius and line.method != ATTACK]
    ranked = sorted(able, key=lambda line: -(line.radius or 0.0))
    if not ranked:
        return "no method certifies anything at these radii"
    about = "" if ranked[0].arithmetic == "real" else f" in {ranked[0].arithmetic} arithmetic"
    return f"certified radius{about}, mean: " + ", ".join(
        f"{line.method} {line.radius:.3g}" + (" (rounding estimated)" if line.guarantee == "estimated" else "")
        for line in ranked
    )


def as_table(lines: Sequence[MethodLine], grid: Sequence[float]) -> Table:
    table = Table(
        title=f"Proved at each radius, of {lines[0].inputs} inputs (attack: not broken, smallest broken)",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    table.add_column("method", no_wrap=True)
    for heading in (*(f"{radius:g}" for radius in grid), "radius", "s / run", "MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("rounding", no_wrap=True)
    early = any(line.stopped for line in lines)
    if early:
        table.add_column("stopped early")
    for line in lines:
        table.add_row(
            line.method,
            *map(str, line.counts),
            "-" if line.radius is None else f"{line.radius:.2e}",
            "-" if line.seconds_per_run is None else f"{line.seconds_per_run:.2f}",
            "-" if line.method == ATTACK else f"{line.peak_bytes / 2**20:,.0f}",
            line.guarantee or "-",
            *([line.stopped] if early else []),
        )
    return table
