"""zonogpt radius"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from zonogpt.cli import options
from zonogpt.cli.inputs import open_inputs
from zonogpt.cli.options import check_writable, norm_of, size
from zonogpt.cli.outputs import as_json, attempt
from zonogpt.cli.progress import progress_bar
from zonogpt.cli.stopping import stoppable
from zonogpt.cli.tables import print_table
from zonogpt.cli.watching import BarWatcher
from zonogpt.model.hf import load
from zonogpt.studies.radii.comparison import Comparison, compare
from zonogpt.studies.radii.radius import TOLERANCE
from zonogpt.studies.radii.rows import ATTACK
from zonogpt.studies.radii.table import InputLine, by_input, inputs_as_csv
from zonogpt.support.files import write_whole
from zonogpt.verification.result import basis


def radius(
    model: options.ModelName,
    data: options.Data = None,
    image: options.Image = None,
    text: options.Text = None,
    ids: options.Ids = None,
    positions: options.EachPosition = None,
    label: options.Label = None,
    low: Annotated[float, typer.Option(help="The smallest radius to try.")] = 1e-5,
    high: Annotated[float, typer.Option(help="The largest.")] = 0.5,
    tolerance: options.Tolerance = TOLERANCE,
    count: options.Count = None,
    skip: options.Skip = 0,
    split: options.Split = "test",
    method: options.MethodName = "E",
    norm: options.Norm = "inf",
    attack: Annotated[bool, typer.Option(help="Search for the smallest broken radius as well.")] = True,
    seed: options.Seed = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds per input, for proofs and attack each.")] = None,
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
    """How far an input may move: the largest radius that is proved and the smallest that is broken, by bisection.

    One line per image, or per token position of a text. Exit code: 0 when it ran through, 2 bad input, 130 stopped by
    Ctrl-C.
    """
    check_writable(json)
    budget_bytes = size(budget)
    net = load(model)
    dataset, tokens = open_inputs(net, model, data, split, image, text, ids, positions, label)
    methods = (method, ATTACK) if attack else (method,)
    with progress_bar(quiet) as bar:
        watcher = BarWatcher(bar)
        with stoppable(watcher, out):
            found = compare(
                net, dataset, methods, low, high, tolerance=tolerance, count=count, skip=skip, norm=norm_of(norm),
                positions=tokens, seed=seed, timeout=timeout, device=device, dtype=dtype, budget_bytes=budget_bytes,
                out=out, watcher=watcher, arithmetic=arithmetic, engine=engine, workers=workers,
            )  # fmt: skip
    lines = by_input(found.rows, method)
    print(headline(lines))
    if not quiet:
        print_table(as_table(lines))
    sys.stdout.flush()  # the answer is out, whatever becomes of the files
    if write(found, lines, model, method, out, json) and out is not None and not quiet:
        print(f"in {out}: rows.jsonl, settings.json, table.csv, radius.png")


def write(
    found: Comparison, lines: Sequence[InputLine], model: str, method: str, out: Path | None, json: Path | None
) -> bool:
    """Whether all files could be written; those that could not are named."""
    done = []
    if out is not None:
        from zonogpt.studies.radii.figure import draw_inputs  # matplotlib is slow to import

        done.append(attempt(write_whole, out / "table.csv", inputs_as_csv(lines)))
        title = f"{Path(model).name}, method {method}, l_{found.settings.norm} ball"
        done.append(attempt(draw_inputs, lines, title, out / "radius.png"))
    if json is not None:
        done.append(attempt(write_whole, json, as_json(found.settings, lines, found.rows)))
    return all(done)


def headline(lines: Sequence[InputLine]) -> str:
    """The verdict of one input, or what many come to."""
    proofs = f" ({basis(lines[0].guarantee or '', lines[0].arithmetic)})"
    tried = [line for line in lines if line.status != "misclassified"]
    if len(lines) == 1 and tried:
        line = tried[0]
        certified = f"certified {line.certified:g}" if line.certified else "certified none"
        certified += "" if line.status == "done" else f" so far, stopped by {line.status}"
        return certified + ("" if line.attacked is None else f", {said(line.attacked)}") + proofs
    proved = [line.certified for line in tried if line.certified > 0]
    wrong = f", {len(lines) - len(tried)} misclassified" if len(tried) < len(lines) else ""
    early = sum(line.status != "done" for line in tried)
    wrong += f", {early} stopped early" if early else ""
    if not proved:
        return f"certified none of {len(lines)}{wrong}{proofs}"
    mean = math.exp(sum(map(math.log, proved)) / len(proved))
    radii = f"{min(proved):g} to {max(proved):g}, mean {mean:.3g}"
    return f"certified {len(proved)} of {len(lines)}: {radii}{wrong}{proofs}"


def said(attacked: float) -> str:
    return "not broken" if math.isinf(attacked) else f"broken {attacked:g}"


def as_table(lines: Sequence[InputLine]) -> Table:
    texts = any(line.position is not None for line in lines)
    table = Table("input", *(["token"] if texts else []))
    for heading in ("label", "certified", "broken", "ratio", "s"):
        table.add_column(heading, justify="right")
    for line in lines:
        label = line.predicted if line.label is None else line.label
        cells = [line.name, *([str(line.position)] if texts else []), "-" if label is None else str(label)]
        if line.status == "misclassified":
            table.add_row(*cells, "misclassified", "", "", "")
            continue
        certified = f"{line.certified:g}" if line.certified else "none"
        if line.status != "done":
            certified += f" ({line.status})"
        broken = "-" if line.attacked is None else "none" if math.isinf(line.attacked) else f"{line.attacked:g}"
        known = line.certified > 0 and line.attacked is not None and line.attacked < math.inf
        ratio = f"{line.attacked / line.certified:.1f}" if known and line.attacked is not None else "-"
        table.add_row(*cells, certified, broken, ratio, f"{line.seconds:.1f}")
    return table
