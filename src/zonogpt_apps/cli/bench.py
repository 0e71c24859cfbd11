"""zonogpt bench train, make, run, report: the paper's benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zonogpt.cli import options
from zonogpt.cli.options import METHOD_NAMES, numbers, size
from zonogpt.cli.progress import progress_bar
from zonogpt.cli.stopping import stoppable
from zonogpt_apps.bench.grid import IMAGES, RADII, SENTENCES, ModelId, parse_models

if TYPE_CHECKING:
    from zonogpt_apps.bench.training.record import Training

bench = typer.Typer(
    help="The paper's benchmark: 16 models, 2,880 instances. First train, then make, run, report.",
    epilog="Start with:  zonogpt bench train --out trained --models mnist-small-2",
    no_args_is_help=True,
)

Models = Annotated[
    str | None,
    typer.Option(help="As mnist-small-2,sst-medium-24, or mnist, or sst. Default: all.", metavar="MODELS"),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Directory with mnist, sst2 and gpt2. Default: Hugging Face's hub.", metavar="DIR"),
]
Trained = Annotated[Path, typer.Option(help="Directory of the trained models.", metavar="DIR")]
Instances = Annotated[Path, typer.Option(help="Directory of the instances.", metavar="DIR")]


@bench.command(epilog="Example:  zonogpt bench train --out trained --models mnist-small-2")
def train(
    out: Annotated[
        Path, typer.Option(help="Directory for the models, a folder for each. Those there are kept.", metavar="DIR")
    ],
    data: Data = None,
    models: Models = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ... (a GPU trains in bfloat16).", metavar="DEVICE")] = "cpu",
    quiet: options.Quiet = False,
) -> None:
    """Train the models: GPT-2 Small and Medium for MNIST and SST-2, from scratch, seed 0.

    Exit code: 0 all are there and accurate enough, 10 one is below its accuracy floor, 2 bad input.
    """
    from zonogpt_apps.bench.train import train as run  # transformers' models are slow to import

    chosen = parse_models(models)
    with progress_bar(quiet) as bar:
        task = bar.add_task("reading", total=len(chosen))

        def show(model: ModelId, record: Training | None, known: bool) -> None:
            bar.update(task, advance=0 if record is None else 1, description=f"training {model}")
            if record is not None and not quiet:
                radius = record.interval_radius
                interval = "" if radius is None else f", interval radius {radius[0]:.0e} to {radius[1]:.1e}"
                bar.console.print(
                    f"{model}: accuracy {record.accuracy:.4f}, worst class {min(record.class_accuracy):.4f},"
                    f" {record.parameters / 1e6:.1f}M parameters, {record.loss}{interval},"
                    f" {'kept' if known else f'{record.seconds:.0f} s'}",
                    highlight=False, soft_wrap=True,
                )  # fmt: skip

        records = run(chosen, data, out, device, show)
    failing = [f"{record.model}: {record.fails}" for record in records if record.fails]
    print(f"{len(records)} models in {out}, {len(failing)} below their accuracy floor")
    for line in failing:
        print(line)
    if failing:
        raise typer.Exit(10)


@bench.command(epilog="Example:  zonogpt bench make --trained trained --out instances --models mnist-small-2")
def make(
    trained: Trained,
    out: Annotated[Path, typer.Option(help="Directory for the instances. Those of other models stay.", metavar="DIR")],
    data: Data = None,
    models: Models = None,
    radii: Annotated[str, typer.Option(help="Increasing, as 1e-5,1e-3.", metavar="R,R,...")] = ",".join(
        f"{r:g}" for r in RADII
    ),
    images: Annotated[int, typer.Option(help="MNIST images per model and radius.", metavar="N")] = IMAGES,
    sentences: Annotated[int, typer.Option(help="SST-2 sentences per model and radius.", metavar="N")] = SENTENCES,
    quiet: options.Quiet = False,
) -> None:
    """Choose the inputs and write the instances as plain files: 2,880 of them with the defaults."""
    from zonogpt_apps.bench.make import make as run

    chosen = parse_models(models)
    with progress_bar(quiet) as bar:
        task = bar.add_task("reading", total=len(chosen))
        made = run(
            chosen, data, trained, out, numbers(radii, "--radii"), images, sentences,
            lambda model, count: bar.update(task, advance=1, description=f"{model}: {count} instances"),
        )  # fmt: skip
    print(f"{len(made.instances)} instances of {len(chosen)} models in {out}")


@bench.command(
    "run", epilog="Example:  zonogpt bench run --instances instances --trained trained --out rows --methods E,A"
)
def run_(
    instances: Instances,
    trained: Trained,
    out: Annotated[Path, typer.Option(help="Directory for the rows. A run resumes there.", metavar="DIR")],
    methods: Annotated[
        str, typer.Option(help=f"One or several, as E,A, of {', '.join(METHOD_NAMES)}.", metavar="METHODS")
    ] = "E",
    models: Models = None,
    inputs: Annotated[
        int | None, typer.Option(help="Only the first N inputs of each model. Default: all.", metavar="N")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds per propagation.", metavar="SECONDS")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...", metavar="DEVICE")] = "cpu",
    dtype: options.Dtype = None,
    arithmetic: options.Arithmetic = "real",
    budget: options.Budget = None,
    attack: Annotated[bool, typer.Option(help="Search for counterexamples where the proof fails.")] = False,
    commit: Annotated[
        str | None, typer.Option(help="The source's commit, for the rows. Default: asks git.", metavar="COMMIT")
    ] = None,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    quiet: options.Quiet = False,
) -> None:
    """Try to prove every instance by every method. Several runs may share one directory.

    Exit code: 0 finished, 2 bad input, 130 stopped by Ctrl-C.
    """
    from zonogpt_apps.bench.run import run
    from zonogpt_apps.cli.watching import BenchWatcher

    with progress_bar(quiet, counts=False) as bar:
        watcher = BenchWatcher(bar)
        with stoppable(watcher, out):
            outcome = run(
                instances, trained, methods.split(","), out, None if models is None else parse_models(models), inputs,
                timeout, device, dtype, size(budget), attack, commit, engine, workers, watcher, arithmetic,
            )  # fmt: skip
    proved = {method: sum(row.status == "verified" for row in outcome.rows if row.method == method)
              for method in methods.split(",")}  # fmt: skip
    each = len(outcome.rows) // len(proved)
    print(f"proved of {each}: " + ", ".join(f"{method} {count}" for method, count in proved.items()))
    if not quiet:
        print(f"{watcher.new} new rows and {len(outcome.rows) - watcher.new} that were there, in {out}")
    for model in outcome.busy:
        print(f"{model} is being worked on by another run; run again to see its rows")


@bench.command(epilog="Example:  zonogpt bench report --rows rows --instances instances --out report")
def report(
    rows: Annotated[Path, typer.Option(help="Directory of the rows.", metavar="DIR")],
    instances: Instances,
    out: Annotated[Path, typer.Option(help="Directory for report.html, report.md and figures.", metavar="DIR")],
    quiet: options.Quiet = False,
) -> None:
    """Make tables and figures of the rows: one page to read, report.html, and the same as Markdown."""
    from zonogpt_apps.bench.report.build import build_report  # matplotlib is slow to import

    built = build_report(rows, instances, out)
    print(built.html)
