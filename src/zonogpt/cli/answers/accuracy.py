"""What `zonogpt certify` does and says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
from zonogpt.studies.accuracy.certification import Certification, certify
from zonogpt.studies.accuracy.table import AccuracyLine, as_csv
from zonogpt.support.files import write_whole
from zonogpt.support.numbers import exact
from zonogpt.support.optional import require_plots
from zonogpt.verification.result import basis


def answer(
    name: str,
    inputs: Inputs,
    radii: list[float],
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
    chosen = open_inputs(net, inputs)
    out = answer_stream(files.json)
    with progress_bar(files.quiet) as bar:
        watcher = BarWatcher(bar)
        with stoppable(watcher, files.out):
            found = certify(
                net, chosen.dataset, radii, count=inputs.count, skip=inputs.skip, norm=norm(inputs), method=run.method,
                positions=chosen.positions, each=chosen.each, attack=attack, out=files.out, engine=engine,
                workers=workers, watcher=watcher, **run.options,
            )  # fmt: skip
    print(headline(found), file=out)
    if not files.quiet:
        print_table(as_table(found.table), out)
        for line in describe_moved(found.rows, chosen.each):
            print(line, file=out)
    out.flush()  # the answer is out, whatever becomes of the files
    if write(found, net, name, files) and files.out is not None and not files.quiet:
        print(f"in {files.out}: rows.jsonl, settings.json, table.csv, certified.png", file=out)


def write(found: Certification, net: Model, name: str, files: Files) -> bool:
    """Writes the files; returns whether all could be written. Errors name those that could not."""
    done, out = [], files.out
    if out is not None:
        from zonogpt.studies.accuracy.figure import draw_accuracy  # matplotlib is slow to import

        done.append(attempt(write_whole, out / "table.csv", as_csv(found.table)))
        title = f"{Path(name).name}: accuracy under {found.changes}, method {found.settings.method}"
        done.append(
            attempt(draw_accuracy, found.table, title, out / "certified.png", found.settings.norm, found.counted)
        )
    if files.json is not None:
        done.append(attempt(write_json, files.json, study_json(net, found.settings, found.table, found.rows)))
    return all(done)


def headline(found: Certification) -> str:
    """The counts at every radius, in one line."""
    lines = found.table
    first = lines[0]
    certified = f"{first.certified} of {found.counted} at radius {exact(first.radius)}"
    certified += "".join(f", {line.certified} at {exact(line.radius)}" for line in lines[1:])
    clean = "no labels" if first.clean is None else f"clean {first.clean}"
    survived = [str(line.survived) for line in lines if line.survived is not None]
    attack = f"survived the attack {', '.join(survived)}" if survived else "not attacked"
    return f"certified {certified} ({clean}; {attack}; {basis(first.guarantee, first.arithmetic)})"


def as_table(lines: Sequence[AccuracyLine]) -> Table:
    table = Table()
    for heading in ("radius", "clean", "certified", "survived", "unknown", "s / example"):
        table.add_column(heading, justify="right")
    for line in lines:
        counts = (line.clean, line.certified, line.survived, line.unknown)
        shown = ["-" if count is None else str(count) for count in counts]
        table.add_row(exact(line.radius), *shown, "-" if line.seconds is None else f"{line.seconds:.2f}")
    return table
