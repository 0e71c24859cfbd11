"""What `zonogpt radius` does and says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from zonogpt.cli.answers.inputs import open_inputs
from zonogpt.cli.asking import Files, Inputs, Run, norm
from zonogpt.cli.outputs import answer_stream, attempt, study_json, write_json
from zonogpt.cli.progress import loading, progress_bar
from zonogpt.cli.stopping import stoppable
from zonogpt.cli.tables import print_table
from zonogpt.cli.watching import BarWatcher
from zonogpt.model.hf import load
from zonogpt.model.ir import Model
from zonogpt.model.names import output_called
from zonogpt.studies.radii.comparison import Comparison, compare
from zonogpt.studies.radii.rows import ATTACK
from zonogpt.studies.radii.table import InputLine, by_input, inputs_as_csv
from zonogpt.support.files import write_whole
from zonogpt.support.numbers import exact, norm_name
from zonogpt.support.optional import require_plots
from zonogpt.verification.result import basis


def answer(
    name: str,
    inputs: Inputs,
    label: str | None,
    span: tuple[float, float],
    tolerance: float,
    run: Run,
    attack: bool,
    engine: str,
    workers: int | None,
    files: Files,
) -> None:
    if files.out is not None:
        require_plots()
    with loading(f"loading {name}", files.quiet):
        net = load(name)
    chosen = open_inputs(net, inputs, label)
    methods = (run.method, ATTACK) if attack else (run.method,)
    out = answer_stream(files.json)
    with progress_bar(files.quiet) as bar:
        watcher = BarWatcher(bar)
        with stoppable(watcher, files.out):
            found = compare(
                net, chosen.dataset, methods, *span, tolerance=tolerance, count=inputs.count, skip=inputs.skip,
                norm=norm(inputs), positions=chosen.positions, each=chosen.each, out=files.out, watcher=watcher,
                engine=engine, workers=workers, **run.options,
            )  # fmt: skip
    lines = by_input(found.rows, run.method)
    print(headline(lines), file=out)
    if not files.quiet:
        print_table(as_table(lines, net), out)
    out.flush()  # the answer is out, whatever becomes of the files
    if write(found, lines, net, name, files) and files.out is not None and not files.quiet:
        print(f"in {files.out}: rows.jsonl, settings.json, table.csv, radius.png", file=out)


def write(found: Comparison, lines: Sequence[InputLine], net: Model, name: str, files: Files) -> bool:
    """Writes the files; returns whether all could be written. Errors name those that could not."""
    done, out = [], files.out
    if out is not None:
        from zonogpt.studies.radii.figure import draw_inputs  # matplotlib is slow to import

        done.append(attempt(write_whole, out / "table.csv", inputs_as_csv(lines)))
        title = f"{Path(name).name}, method {found.methods[0]}, {norm_name(found.settings.norm)} ball"
        done.append(attempt(draw_inputs, lines, title, out / "radius.png", found.settings.norm))
    if files.json is not None:
        done.append(attempt(write_json, files.json, study_json(net, found.settings, lines, found.rows)))
    return all(done)


def headline(lines: Sequence[InputLine]) -> str:
    """The radii of one input, or a summary of many."""
    proofs = f" ({basis(lines[0].guarantee or '', lines[0].arithmetic)})"
    tried = [line for line in lines if line.status != "misclassified"]
    if len(lines) == 1 and tried:
        line = tried[0]
        certified = f"certified {exact(line.certified)}" if line.certified else "certified none of the radii tried"
        broken = "" if line.attacked is None else f", {said(line.attacked)}"
        return certified + broken + ("" if line.status == "done" else f", stopped early by {line.status}") + proofs
    proved = [line.certified for line in tried if line.certified > 0]
    wrong = f", {len(lines) - len(tried)} misclassified" if len(tried) < len(lines) else ""
    early = sum(line.status != "done" for line in tried)
    wrong += f", {early} stopped early" if early else ""
    if not proved:
        return f"certified none of {len(lines)}{wrong}{proofs}"
    mean = math.exp(sum(map(math.log, proved)) / len(proved))
    radii = f"{exact(min(proved))} to {exact(max(proved))}, geometric mean {mean:.3g}"
    return f"certified {len(proved)} of {len(lines)}: {radii}{wrong}{proofs}"


def said(attacked: float) -> str:
    return "not broken" if math.isinf(attacked) else f"broken at {exact(attacked)}"


def as_table(lines: Sequence[InputLine], net: Model) -> Table:
    texts = any(line.positions is not None for line in lines)
    table = Table("input", *(["tokens that move"] if texts else []))
    for heading in ("label", "certified", "broken at", "ratio", "s"):
        table.add_column(heading, justify="right")
    for line in lines:
        label = line.predicted if line.label is None else line.label
        cells = [escape(line.name), *([escape(line.moved)] if texts else [])]
        cells.append("-" if label is None else escape(output_called(net, label)))
        if line.status == "misclassified":
            table.add_row(*cells, "misclassified", "", "", "")
            continue
        certified = exact(line.certified) if line.certified else "none"
        if line.status != "done":
            certified += f" ({line.status})"
        broken = "-" if line.attacked is None else "none" if math.isinf(line.attacked) else exact(line.attacked)
        known = line.certified > 0 and line.attacked is not None and line.attacked < math.inf
        ratio = f"{line.attacked / line.certified:.1f}" if known and line.attacked is not None else "-"
        table.add_row(*cells, certified, broken, ratio, f"{line.seconds:.1f}")
    return table
