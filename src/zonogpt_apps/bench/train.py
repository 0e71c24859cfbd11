"""bench train: the models of the benchmark, from data to checkpoints that Hugging Face reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from zonogpt.errors import ModelError, WriteError
from zonogpt.model.quiet import quiet_transformers
from zonogpt.support.files import make_folder
from zonogpt_apps.bench.grid import MNIST, ModelId
from zonogpt_apps.bench.training.data import read_images, read_sentences, read_tokenizer
from zonogpt_apps.bench.training.mnist import classify_images, train_on_images
from zonogpt_apps.bench.training.record import (
    CROSS_ENTROPY,
    INTERVAL,
    RECORD,
    Training,
    class_accuracies,
    counted_parameters,
    weights_hash,
)
from zonogpt_apps.bench.training.schedule import Schedule, reproducible, schedule_of
from zonogpt_apps.bench.training.sst import SMALLEST_RADIUS, classify_sentences, train_on_sentences

OnModel = Callable[[ModelId, Training | None, bool], None]  # begins (None) or is done; and whether it was there


def train(
    models: Sequence[ModelId],
    data: Path | None,
    out: Path,
    device: str | torch.device = "cpu",
    on_model: OnModel | None = None,
) -> list[Training]:
    """Trains each model into `out`/NAME, in save_pretrained form with its record; what is there already is kept.

    `data` as in training/data.py; None fetches from the hub.
    """
    records = []
    for model in models:
        folder = out / str(model)
        known = _existing(folder, model)
        if on_model is not None and known is None:
            on_model(model, None, False)
        record = known or train_one(model, data, folder, torch.device(device))
        if on_model is not None:
            on_model(model, record, known is not None)
        records.append(record)
    return records


def _existing(folder: Path, model: ModelId) -> Training | None:
    """The record of a finished model, or None. Records are written last: a folder without one is begun anew."""
    if not (folder / RECORD).exists():
        return None
    record = Training.read(folder)
    if record.model != model:
        raise ModelError(f"{folder} holds {record.model}")
    return record


def train_one(model: ModelId, data: Path | None, folder: Path, device: torch.device) -> Training:
    started, schedule = time.perf_counter(), schedule_of(model)
    with reproducible(schedule.seed):
        work = _on_images if model.task == MNIST else _on_sentences
        net, tokenizer, answers, labels, about = work(model, data, schedule, device)
    make_folder(folder)
    try:
        with quiet_transformers():
            net.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise WriteError(f"cannot write to {folder}: {error}") from error
    record = Training(
        task=model.task,
        size=model.size,
        blocks=model.blocks,
        schedule=about.pop("schedule", schedule),
        accuracy=sum(a == b for a, b in zip(answers, labels, strict=True)) / len(labels),
        class_accuracy=class_accuracies(answers, labels),
        parameters=counted_parameters(model, {name: p.numel() for name, p in net.named_parameters()}),
        seconds=round(time.perf_counter() - started, 2),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        torch=torch.__version__,
        transformers=transformers.__version__,
        weights_sha256=weights_hash(folder),
        **about,
    )
    record.write(folder)  # last: a folder with a record is complete
    return record


def _on_images(model: ModelId, data: Path | None, schedule: Schedule, device: torch.device) -> tuple[Any, ...]:
    training, testing = read_images(data, "train"), read_images(data, "test")
    net = train_on_images(model, training, schedule, device)
    about = {"loss": CROSS_ENTROPY, "remark": "", "interval_radius": None, "examples": len(training.labels)}
    return net, None, classify_images(net, testing).tolist(), testing.labels.tolist(), about


def _on_sentences(model: ModelId, data: Path | None, schedule: Schedule, device: torch.device) -> tuple[Any, ...]:
    tokenizer = read_tokenizer(data)
    training, testing = (read_sentences(data, split, tokenizer) for split in ("train", "validation"))
    net, radius = train_on_sentences(model, training, tokenizer, schedule, device)
    padding = len(tokenizer) - 1
    about: dict[str, Any] = {"loss": INTERVAL, "remark": "", "examples": len(training.labels)}
    about["interval_radius"] = None if radius is None else (radius.first, radius.value)
    if radius is None:
        about["loss"], about["schedule"] = CROSS_ENTROPY, replace(schedule, interval_weight=0.0)
        about["remark"] = (
            "fallback: at initialisation the interval loss says nothing at any radius down to"
            f" {SMALLEST_RADIUS:g}, so it was left out"
        )
    answers = classify_sentences(net, testing, padding).tolist()
    return net, tokenizer, answers, testing.labels, about
