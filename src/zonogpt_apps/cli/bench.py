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
    no_args_is_help=True,
)

Models = Annotated[
    str | None,
    typer.Option(help="As mnist-small-2,sst-medium-24, or mnist, or sst. Default: all."),
]
Data = Annotated[
    Path | None, typer.Option(help="Directory with mnist, sst2 and gpt2. Default: from Hugging Face's hub.")
]
Trained = Annotated[Path, typer.Option(help="Directory of the trained models.")]
Instances = Annotated[Path, typer.Option(help="Directory of the instances.")]


@bench.command()
def train(
    out: Annotated[Path, typer.Option(help="Directory for the models, one folder each; those there are kept.")],
    data: Data = None,
    models: Models = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ... (a GPU trains in bfloat16).")] = "cpu",
    quiet: options.Quiet = False,
) -> None:
    """Trains the models: GPT-2 Small and Medium for MNIST and SST-2, from scratch, seed 0.

    Exit code: 0 when all are there and accurate enough, 10 when one is below its floor, 2 bad input.
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


@bench.command()
def make(
    trained: Trained,
    out: Annotated[Path, typer.Option(help="Directory for the instances; those of other models stay.")],
    data: Data = None,
    models: Models = None,
    radii: Annotated[str, typer.Option(help="Increasing, as 1e-5,1e-3.")] = ",".join(f"{r:g}" for r in RADII),
    images: Annotated[int, typer.Option(help="MNIST images per model and radius.")] = IMAGES,
    sentences: Annotated[int, typer.Option(help="SST-2 sentences per model and radius.")] = SENTENCES,
    quiet: options.Quiet = False,
) -> None:
    """Chooses the inputs and writes the instances as plain files: 2,880 of them with the defaults."""
    from zonogpt_apps.bench.make import make as run

    chosen = parse_models(models)
    with progress_bar(quiet) as bar:
        task = bar.add_task("reading", total=len(chosen))
        made = run(
            chosen, data, trained, out, numbers(radii, "--radii"), images, sentences,
            lambda model, count: bar.update(task, advance=1, description=f"{model}: {count} instances"),
        )  # fmt: skip
    print(f"{len(made.instances)} instances of {len(chosen)} models in {out}")


@bench.command("run")
def run_(
    instances: Instances,
    trained: Trained,
    out: Annotated[Path, typer.Option(help="Directory for the rows; resumes where it left off.")],
    methods: Annotated[str, typer.Option(help=f"Several as E,A; of {', '.join(METHOD_NAMES)}.")] = "E",
    models: Models = None,
    inputs: Annotated[int | None, typer.Option(help="The first so many of each model. Default: all.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds per propagation.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    dtype: options.Dtype = None,
    arithmetic: options.Arithmetic = "real",
    budget: options.Budget = None,
    attack: Annotated[bool, typer.Option(help="Search for counterexamples of what was not proved.")] = False,
    commit: Annotated[str | None, typer.Option(help="Of the source, for the rows. Default: as git says.")] = None,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    quiet: options.Quiet = False,
) -> None:
    """Tries to prove every instance with every method. Several runs may share one directory.

    Exit code: 0 when it ran through, 2 bad input, 130 stopped by Ctrl-C.
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


@bench.command()
def report(
    rows: Annotated[Path, typer.Option(help="Directory of the rows.")],
    instances: Instances,
    out: Annotated[Path, typer.Option(help="Directory for report.html, report.md and figures.")],
    quiet: options.Quiet = False,
) -> None:
    """Tables and figures from rows: one page to read, report.html, and the same as Markdown."""
    from zonogpt_apps.bench.report.build import build_report  # matplotlib is slow to import

    built = build_report(rows, instances, out)
    print(built.html)
