"""zonogpt certify"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from zonogpt.cli import options
from zonogpt.cli.options import check_writable, norm_of, numbers, size
from zonogpt.cli.outputs import as_json, attempt
from zonogpt.cli.progress import progress_bar
from zonogpt.cli.stopping import stoppable
from zonogpt.cli.tables import print_table
from zonogpt.cli.watching import BarWatcher
from zonogpt.datasets import open_dataset
from zonogpt.errors import OptionError
from zonogpt.model.hf import load
from zonogpt.studies.accuracy.certification import Certification
from zonogpt.studies.accuracy.certification import certify as run
from zonogpt.studies.accuracy.table import AccuracyLine, as_csv
from zonogpt.support.files import write_whole
from zonogpt.verification.result import basis


def certify(
    model: options.ModelName,
    data: Annotated[
        Path,
        typer.Option(help="MNIST files, a folder LABEL/*.png, or lines LABEL<TAB>TEXT."),
    ],
    radius: Annotated[str, typer.Option(help="One radius or several, increasing, as 3e-4,1e-3.")],
    count: options.Count = None,
    skip: options.Skip = 0,
    split: options.Split = "test",
    positions: Annotated[
        str | None, typer.Option(help="Tokens of a text that move: last (default), all, random:2, or 1,4.")
    ] = None,
    method: options.MethodName = "E",
    norm: options.Norm = "inf",
    attack: Annotated[bool, typer.Option(help="Search for counterexamples as well.")] = True,
    seed: options.Seed = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds per example and radius.")] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    arithmetic: options.Arithmetic = "real",
    budget: options.Budget = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for rows, settings, table and picture; resumes where it left off.")
    ] = None,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Certified accuracy over a data set: how many examples keep their label, proved, at every radius.

    Exit code: 0 when it ran through, 2 bad input, 130 stopped by Ctrl-C.
    """
    check_writable(json)
    radii, budget_bytes = numbers(radius, "--radius"), size(budget)
    net = load(model)
    dataset = open_dataset(data, net, model, split)
    if positions is not None and net.embedding.reads == "images":
        raise OptionError("--positions is for texts; every pixel of an image moves")
    with progress_bar(quiet) as bar:
        watcher = BarWatcher(bar)
        with stoppable(watcher, out):
            found = run(
                net, dataset, radii, count=count, skip=skip, norm=norm_of(norm), method=method,
                positions=positions or "last", attack=attack, seed=seed, timeout=timeout, device=device, dtype=dtype,
                budget_bytes=budget_bytes, out=out, arithmetic=arithmetic, engine=engine, workers=workers,
                watcher=watcher,
            )  # fmt: skip
    print(headline(found.table[-1]))
    if not quiet:
        print_table(as_table(found.table))
    sys.stdout.flush()  # the answer is out, whatever becomes of the files
    if write(found, model, out, json) and out is not None and not quiet:
        print(f"in {out}: rows.jsonl, settings.json, table.csv, certified.png")


def write(found: Certification, model: str, out: Path | None, json: Path | None) -> bool:
    """Whether all files could be written; those that could not are named."""
    done = []
    if out is not None:
        from zonogpt.studies.accuracy.figure import draw_accuracy  # matplotlib is slow to import

        done.append(attempt(write_whole, out / "table.csv", as_csv(found.table)))
        ball = {"inf": "l∞", "2": "l2", "1": "l1"}[found.settings.norm]
        title = f"{Path(model).name}: accuracy under {ball} changes, method {found.settings.method}"
        done.append(attempt(draw_accuracy, found.table, title, out / "certified.png"))
    if json is not None:
        done.append(attempt(write_whole, json, as_json(found.settings, found.table, found.rows)))
    return all(done)


def headline(line: AccuracyLine) -> str:
    clean = "no labels" if line.clean is None else f"clean {line.clean}"
    attacked = "not attacked" if line.attacked is None else f"attacked {line.attacked}"
    proofs = basis(line.guarantee, line.arithmetic)
    return f"certified {line.certified} of {line.examples} at radius {line.radius:g} ({clean}, {attacked}; {proofs})"


def as_table(lines: Sequence[AccuracyLine]) -> Table:
    table = Table()
    for heading in ("radius", "clean", "certified", "attacked", "unknown", "s / example"):
        table.add_column(heading, justify="right")
    for line in lines:
        counts = (line.clean, line.certified, line.attacked, line.unknown)
        shown = ["-" if count is None else str(count) for count in counts]
        table.add_row(f"{line.radius:g}", *shown, "-" if line.seconds is None else f"{line.seconds:.2f}")
    return table
