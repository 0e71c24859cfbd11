"""What `zonogpt compare` does and says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from zonogpt.cli.answers.inputs import open_inputs
from zonogpt.cli.answers.telling import describe_moved
from zonogpt.cli.asking import Files, Inputs, Run, norm
from zonogpt.cli.outputs import answer_stream, attempt, study_json, write_json
from zonogpt.cli.progress import loading, progress_bar
from zonogpt.cli.stopping import stoppable
from zonogpt.cli.tables import print_table
from zonogpt.cli.watching import BarWatcher
from zonogpt.model.hf import load
from zonogpt.model.ir import Model
from zonogpt.studies.radii.comparison import Comparison, compare
from zonogpt.studies.radii.rows import ATTACK
from zonogpt.studies.radii.table import MethodLine, as_csv, tabulate
from zonogpt.support.files import write_whole
from zonogpt.support.numbers import exact, norm_name
from zonogpt.support.optional import require_plots


def answer(
    name: str,
    inputs: Inputs,
    label: str | None,
    methods: list[str],
    grid: list[float],
    span: tuple[float, float],
    tolerance: float,
    run: Run,
    engine: str,
    workers: int | None,
    files: Files,
) -> None:
    if files.out is not None:
        require_plots()
    with loading(f"loading {name}", files.quiet):
        net = load(name)
    chosen = open_inputs(net, inputs, label)
    out = answer_stream(files.json)
    with progress_bar(files.quiet) as bar:
        watcher = BarWatcher(bar)
        with stoppable(watcher, files.out):
            found = compare(
                net, chosen.dataset, methods, *span, grid=grid, tolerance=tolerance, count=inputs.count,
                skip=inputs.skip, norm=norm(inputs), positions=chosen.positions, each=chosen.each, out=files.out,
                watcher=watcher, engine=engine, workers=workers, **run.options,
            )  # fmt: skip
    lines = tabulate(found.rows, found.methods, grid)
    print(headline(lines), file=out)
    if not files.quiet:
        print_table(as_table(lines, grid), out)
        for line in describe_moved(found.rows, chosen.each):
            print(line, file=out)
    out.flush()  # the answer is out, whatever becomes of the files
    if write(found, lines, net, name, files) and files.out is not None and not files.quiet:
        print(f"in {files.out}: rows.jsonl, settings.json, table.csv, comparison.png", file=out)


def write(found: Comparison, lines: Sequence[MethodLine], net: Model, name: str, files: Files) -> bool:
    """Writes the files; returns whether all could be written. Errors name those that could not."""
    grid, done, out = found.settings.grid, [], files.out
    if out is not None:
        from zonogpt.studies.radii.figure import draw_comparison  # matplotlib is slow to import

        done.append(attempt(write_whole, out / "table.csv", as_csv(lines, grid)))
        title = f"{Path(name).name}: {lines[0].inputs} inputs, {norm_name(found.settings.norm)} ball"
        done.append(
            attempt(draw_comparison, lines, found.rows, grid, title, out / "comparison.png", found.settings.norm)
        )
    if files.json is not None:
        done.append(attempt(write_json, files.json, study_json(net, found.settings, lines, found.rows)))
    return all(done)


def headline(lines: Sequence[MethodLine]) -> str:
    """Which methods prove the largest radii."""
    able = [line for line in lines if line.radius and line.method != ATTACK]
    ranked = sorted(able, key=lambda line: -(line.radius or 0.0))
    if not ranked:
        return "no method certifies anything at these radii"
    about = "" if ranked[0].arithmetic == "real" else f" in {ranked[0].arithmetic} arithmetic"
    return f"certified radius{about}, geometric mean: " + ", ".join(
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
    for heading in (*map(exact, grid), "radius", "s / run", "MiB"):
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
