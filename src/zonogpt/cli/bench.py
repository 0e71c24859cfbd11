"""zonogpt bench train, make, run, report: the paper's benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zonogpt.cli import options
from zonogpt.cli.progress import progress_bar

bench = typer.Typer(
    help="The paper's benchmark: 16 models, 2,880 instances. First train, then make, run, report.",
    no_args_is_help=True,
)

Models = Annotated[
    str | None, typer.Option(help="As mnist-small-2,sst-medium-24, or mnist, or sst. Default: all sixteen.")
]
Data = Annotated[
    Path | None, typer.Option(help="Directory with mnist, sst2 and gpt2. Default: from Hugging Face's hub.")
]
Trained = Annotated[Path, typer.Option("--trained", help="Directory of the trained models.")]
Instances = Annotated[Path, typer.Option("--instances", help="Directory of the instances.")]


@bench.command()
def train(
    out: Annotated[Path, typer.Option(help="Directory for the models, one folder each; those there are kept.")],
    data: Data = None,
    models: Models = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...; bfloat16 on a GPU.")] = "cpu",
    quiet: options.Quiet = False,
) -> None:
    """Trains the models: GPT-2 Small and Medium for MNIST and SST-2, from scratch, seed 0.

    Exit code: 0 when all are there and accurate enough, 10 when one is below its floor, 2 bad input.
    """
    from zonogpt.bench.grid import ModelId, parse_models  # torch and transformers are slow to import
    from zonogpt.bench.train import train as run
    from zonogpt.bench.training.record import Training

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
