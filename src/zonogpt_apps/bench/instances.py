"""The instances of the benchmark: an input, a ball around it, and one claim about every input of the ball.

A directory of plain files that another tool can read:

    instances.jsonl          one line per instance, the fields of `Instance`
    inputs/mnist-2890.png    8-bit grey; the model reads pixel / 255
    inputs/sst-17.json       the sentence, its token ids without special tokens, and what each of them spells
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zonogpt.datasets.pictures import open_picture
from zonogpt.errors import OptionError, SpecError
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec, embedding_ball, image_ball
from zonogpt.studies.rows.record import digest
from zonogpt.support.files import make_folder, parse_json, read_bytes, read_json, read_text, write_whole
from zonogpt_apps.bench.grid import MNIST, N_CLASSES, ModelId

FILE, INPUTS = "instances.jsonl", "inputs"
INPUT = re.compile(r"(\w[\w.-]*/)*\w[\w.-]*", re.ASCII)  # a path below the directory, never out of it


@dataclass(frozen=True)
class Subject:
    """The subject of an instance and of its rows: a model, an input, which part of it moves, and how far."""

    task: str
    size: str
    blocks: int
    instance: str  # unique within model and radius
    radius: float
    input: str  # its file, in the instances' directory
    positions: tuple[int, ...] | None  # token embeddings that move, from 0; None: all pixels, clipped to [0, 1]
    relative_radius: float  # the largest l_2 change over the l_2 norm of what moves
    accuracy: float  # of the model
    training: str  # the loss that the model was trained with
    model_hash: str  # sha256 of model.safetensors
    input_hash: str  # sha256 of the pixels' bytes, or of the token ids as 5,17,3

    @property
    def model(self) -> ModelId:
        return ModelId(self.task, self.size, self.blocks)

    @property
    def subject(self) -> dict[str, Any]:
        """The fields above by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Subject)}


@dataclass(frozen=True)
class Instance(Subject):
    """The claim: output `label` stays above output `rival` for every input of the l_inf ball."""

    label: int
    rival: int

    @property
    def claim(self) -> str:
        return f"{self.label} > {self.rival}"

    @cached_property
    def hash(self) -> str:
        """The digest in the keys of rows. So its parts must keep their order, in which the claim follows the radius."""
        names = list(self.subject)
        at = names.index("radius") + 1
        return digest([getattr(self, name) for name in (*names[:at], "label", "rival", *names[at:])])

    @property
    def set_hash(self) -> str:
        """The digest of the input set and label. Instances that share it differ in the rival only: one propagation."""
        return digest([self.model_hash, self.input_hash, self.positions, self.radius.hex(), self.label])

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Instance:
        """The instance; ValueError, TypeError or KeyError if the text is not one."""
        instance = Instance(**with_tuple(parse_json(text)))
        kinds = {"task": str, "size": str, "blocks": int, "instance": str, "radius": float, "label": int, "rival": int}
        wrong = [name for name, kind in kinds.items() if type(getattr(instance, name)) is not kind]
        classes = range(N_CLASSES.get(instance.task, 0))
        if wrong or instance.label not in classes or instance.rival not in classes or instance.label == instance.rival:
            raise ValueError(f"instance {instance.instance!r} makes no sense ({', '.join(wrong) or instance.claim})")
        if not INPUT.fullmatch(instance.input):
            raise ValueError(f"{instance.input!r} is no file in the instances' directory")
        ModelId.parse(str(instance.model))
        return instance


@dataclass(frozen=True)
class Benchmark:
    """Instances in a directory, in the order of the models, and their inputs."""

    folder: Path
    instances: tuple[Instance, ...]

    @staticmethod
    def read(folder: Path) -> Benchmark:
        try:
            lines = read_text(folder / FILE).splitlines()
            instances = tuple(Instance.from_json(line) for line in lines)
        except (OSError, ValueError, TypeError, KeyError, OptionError) as error:
            raise SpecError(f"{folder / FILE} is no list of instances: {error}") from error
        places = [(str(instance.model), instance.instance, instance.radius) for instance in instances]
        if len(set(places)) < len(places):
            raise SpecError(f"{folder / FILE} lists an instance twice")
        return Benchmark(folder, instances)

    @property
    def models(self) -> tuple[ModelId, ...]:
        return tuple(sorted({instance.model for instance in self.instances}, key=lambda model: model.place))

    def of(self, model: ModelId) -> list[Instance]:
        return [instance for instance in self.instances if instance.model == model]

    def read_input(self, instance: Instance) -> tuple[Tensor, str]:
        """The image as bytes, or token ids, and the text; SpecError unless they have the instance's hash."""
        file = self.folder / instance.input
        try:
            if instance.task == MNIST:
                with open_picture(file, ("PNG",)) as picture:
                    raw, text = (
                        torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(picture.size[::-1]),
                        "",
                    )
            else:
                content = read_json(file)
                raw, text = torch.tensor(content["ids"]), content["text"]
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise SpecError(f"{file} cannot be read: {error}") from error
        if input_hash(raw) != instance.input_hash:
            raise SpecError(f"{file} is not the input that {FILE} names; make the instances again")
        return raw, text

    def read_file(self, instance: Instance) -> bytes:
        """The bytes of the input's file."""
        try:
            return read_bytes(self.folder / instance.input)
        except (OSError, ValueError) as error:
            raise SpecError(f"{self.folder / instance.input} cannot be read: {error}") from error

    def spec(self, model: Model, instance: Instance) -> Spec:
        """The input set of an instance with the claims against all rivals."""
        raw, _ = self.read_input(instance)
        if instance.positions is None:
            return image_ball(model, raw.float() / 255, instance.radius, instance.label)
        return embedding_ball(model, raw.tolist(), instance.positions, instance.radius, instance.label)


def with_tuple(fields: dict[str, Any]) -> dict[str, Any]:
    """A subject's fields from JSON, with positions as a tuple: JSON knows lists only."""
    return fields | {"positions": None if fields["positions"] is None else tuple(fields["positions"])}


def input_hash(raw: Tensor) -> str:
    content = raw.numpy().tobytes() if raw.dtype == torch.uint8 else ",".join(map(str, raw.tolist())).encode()
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Input:
    raw: Tensor  # bytes (28, 28), or token ids
    text: str
    tokens: tuple[str, ...]


def write_instances(folder: Path, instances: Sequence[Instance], inputs: dict[str, Input]) -> None:
    """Writes the inputs, given by file name, and then the list: where it exists, everything does."""
    make_folder(folder / INPUTS)
    for name, content in inputs.items():
        if content.raw.dtype == torch.uint8:
            from PIL import Image  # only pictures need it

            stream = io.BytesIO()
            Image.fromarray(content.raw.numpy(), "L").save(stream, "png")
            write_whole(folder / name, stream.getvalue())
        else:
            said = {"text": content.text, "ids": content.raw.tolist(), "tokens": content.tokens}
            write_whole(folder / name, json.dumps(said) + "\n")
    write_whole(folder / FILE, "".join(instance.to_json() + "\n" for instance in instances))
