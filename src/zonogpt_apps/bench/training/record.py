"""The record of a checkpoint's training: training.json beside the weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from zonogpt.errors import ModelError
from zonogpt.model.checkpoint import WEIGHTS
from zonogpt.support.files import read_json, write_whole
from zonogpt_apps.bench.grid import MNIST, ModelId
from zonogpt_apps.bench.training.schedule import Schedule

RECORD = "training.json"
FLOORS = {"mnist": (0.985, 0.0), "sst": (0.78, 0.70)}  # accuracy, and of every class

CROSS_ENTROPY, INTERVAL = "cross-entropy", "interval bounds"


@dataclass(frozen=True)
class Training:
    task: str
    size: str
    blocks: int
    loss: str  # CROSS_ENTROPY or INTERVAL
    remark: str  # why the loss is not the one that was wanted, if it is not
    interval_radius: tuple[float, float] | None  # of the interval loss, at the beginning and at the end
    schedule: Schedule
    accuracy: float  # on MNIST's test images, on SST-2's validation sentences
    class_accuracy: tuple[float, ...]
    parameters: int  # counted as in the paper: all that the task uses
    examples: int
    seconds: float
    device: str
    torch: str
    transformers: str
    weights_sha256: str

    @property
    def model(self) -> ModelId:
        return ModelId(self.task, self.size, self.blocks)

    @property
    def fails(self) -> str:
        """In words, which accuracy is below its floor; empty if none is."""
        floor, each = FLOORS[self.task]
        if self.accuracy < floor:
            return f"accuracy {self.accuracy:.4f} is below {floor:g}"
        worst = min(self.class_accuracy)
        return f"accuracy {worst:.4f} of a class is below {each:g}" if worst < each else ""

    def write(self, folder: Path) -> None:
        write_whole(folder / RECORD, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @staticmethod
    def read(folder: Path) -> Training:
        """The record in a folder; ModelError if there is none, or if it is about other weights."""
        try:
            fields = read_json(folder / RECORD)
            fields["schedule"] = Schedule(**fields["schedule"])
            if fields["interval_radius"] is not None:
                fields["interval_radius"] = tuple(fields["interval_radius"])
            record = Training(**(fields | {"class_accuracy": tuple(fields["class_accuracy"])}))
        except FileNotFoundError as error:
            raise ModelError(f"{folder} has no {RECORD}; make it with zonogpt bench train") from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelError(f"{folder / RECORD} is not the record of a training: {error!r}") from error
        if weights_hash(folder) != record.weights_sha256:
            raise ModelError(f"{folder}: the weights are not those of its {RECORD}; train it again")
        return record


def weights_hash(folder: Path) -> str:
    """sha256 of model.safetensors, as sha256sum prints it."""
    try:
        with (folder / WEIGHTS).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{folder} has no readable {WEIGHTS}: {error}") from error


def class_accuracies(answers: list[int], labels: list[int]) -> tuple[float, ...]:
    out = []
    for label in sorted(set(labels)):
        mine = [answer for answer, truth in zip(answers, labels, strict=True) if truth == label]
        out.append(sum(answer == label for answer in mine) / len(mine))
    return tuple(out)


def counted_parameters(model: ModelId, counts: dict[str, int]) -> int:
    """All parameters but GPT2Model's token table in a model of images, which is never used."""
    unused = counts.get("transformer.wte.weight", 0) if model.task == MNIST else 0
    return sum(counts.values()) - unused
