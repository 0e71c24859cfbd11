"""Rows and instances of the benchmark, made by hand."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from zonogpt_apps.bench.grid import RADII, ModelId
from zonogpt_apps.bench.instances import Input, Instance, input_hash, write_instances
from zonogpt_apps.bench.rows import BenchRow

MODEL = ModelId("mnist", "small", 2)
WEIGHTS = "a" * 64
IMAGE = torch.arange(28 * 28, dtype=torch.int64).remainder(256).to(torch.uint8).view(28, 28)
NASTY = "good </script><b>film</b> & more"
IDS = torch.tensor([5, 6, 7, 8])  # a token for each word of NASTY


def row(**changes) -> BenchRow:
    """A proof by E of the image's claim, with these fields changed; `model` sets three of them."""
    model = changes.pop("model", MODEL)
    fields = dict(
        settings="s", task=model.task, size=model.size, blocks=model.blocks, instance="1-0", claim="7 > 0",
        radius=1e-5, method="E", status="verified", margin=1.0, seconds=2.0, accuracy=0.98, model_hash=WEIGHTS,
        input_hash=input_hash(IMAGE), device="cpu", commit="c0ffee", relative_radius=1e-4, training="cross-entropy",
        input="inputs/mnist-1.png", positions=None, dtype="float64", peak_bytes=1, attack_margin=None,
        reason="every margin is certified positive", ledger=None, guarantee="bounded", arithmetic="real",
        finished="2026-01-02T03:04:05.000+00:00",
    )  # fmt: skip
    fields |= changes
    name = "/".join(str(fields[part]) for part in ("task", "size", "blocks", "method", "instance", "radius"))
    return BenchRow(key=name, **fields)


def whole_model(model: ModelId = MODEL, method: str = "E", proved_up_to: float = 1e-4, **changes) -> list[BenchRow]:
    """All 180 rows of a model: 36 instances at five radii."""
    return [
        row(model=model, method=method, instance=f"{k}-0", radius=radius,
            status="verified" if radius <= proved_up_to else "unknown", **changes)
        for radius in RADII
        for k in range(36)
    ]  # fmt: skip


def text_row(**changes) -> BenchRow:
    """A row about the sentence NASTY, whose second token moves."""
    text = dict(
        model=ModelId("sst", "small", 2), instance="9-1", claim="1 > 0", input="inputs/sst-9.json", positions=(1,),
        input_hash=input_hash(IDS), training="interval bounds",
    )  # fmt: skip
    return row(**(text | changes))


def write_rows(folder: Path, rows: Iterable[BenchRow], name: str = "rows.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(one.to_json() + "\n" for one in rows))
    return folder


def instance_of(one: BenchRow) -> Instance:
    label, rival = map(int, one.claim.split(" > "))
    return Instance(label=label, rival=rival, **one.subject)


def write_benchmark(folder: Path, rows: Sequence[BenchRow]) -> Path:
    """Writes the instances that these rows are about, with their inputs."""
    instances = list({(str(one.model), one.instance, one.radius): instance_of(one) for one in rows}.values())
    raw = {
        name: Input(IMAGE, "", ()) if name.endswith("png") else Input(IDS, NASTY, ())
        for name in {one.input for one in rows}
    }
    write_instances(folder, instances, raw)
    return folder
