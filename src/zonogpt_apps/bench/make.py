"""bench make: the choice of the inputs, as in the paper's appendix, with seed 0 throughout.

MNIST, per model and radius: four correctly classified test images (the first of a permutation with seed 0), one claim
per rival class. SST, per model and radius: 18 correctly classified validation sentences, nine of each class. Each has
one claim in which one token embedding moves, and one in which three do (the one among them), at positions drawn with
seed 0. Balanced classes are our choice. The draw does not depend on the radius, so the same inputs serve all five.
Sentences are not padded; they have 48 tokens at most and three at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zonogpt.errors import ModelError, OptionError, SpecError
from zonogpt.model.hf import load
from zonogpt.model.ir import Model, logits, token_embedding
from zonogpt.spec.positions import Positions
from zonogpt.support.tensors import moved
from zonogpt_apps.bench.grid import (
    IMAGES,
    MNIST,
    MOVED,
    N_CLASSES,
    RADII,
    SEED,
    SENTENCES,
    ModelId,
    check_radii,
    check_shape,
)
from zonogpt_apps.bench.instances import FILE, INPUTS, Benchmark, Input, Instance, input_hash, write_instances
from zonogpt_apps.bench.training.data import read_images, read_sentences, read_tokenizer
from zonogpt_apps.bench.training.record import Training

OnMade = Callable[[ModelId, int], None]


@dataclass(frozen=True)
class Candidate:
    index: int  # in the data set, without the sentences that are longer than the models' positions
    raw: Tensor  # bytes (28, 28), or token ids
    label: int
    text: str
    tokens: tuple[str, ...] = ()  # the text in pieces, one per id; for people

    def for_model(self) -> Tensor | list[int]:
        return self.raw.float() / 255 if self.raw.dtype == torch.uint8 else self.raw.tolist()


def make(
    models: Sequence[ModelId],
    data: Path | None,
    trained: Path,
    out: Path,
    radii: Sequence[float] = RADII,
    images: int = IMAGES,
    sentences: int = SENTENCES,
    on_model: OnMade | None = None,
) -> Benchmark:
    """Writes the instances of these models, which are in `trained`/NAME, to `out`. Those of other models stay there."""
    if images < 1 or sentences < 1:
        raise OptionError(f"at least one image and one sentence are needed; got {images} and {sentences}")
    check_radii(radii)
    instances: list[Instance] = []
    inputs: dict[str, Input] = {}
    for model in models:
        folder = trained / str(model)
        net = load(folder)
        record = Training.read(folder)  # after loading: it checks the hash of what was loaded
        if record.model != model:
            raise ModelError(f"{folder} holds {record.model}")
        check_shape(net, model)
        net = moved(net, net.device, torch.float64)
        count = images if model.task == MNIST else sentences
        mine: list[Instance] = []
        for candidate in chosen(net, candidates(model, data), count, balanced=model.task != MNIST):
            file = f"{INPUTS}/{model.task}-{candidate.index}.{'png' if model.task == MNIST else 'json'}"
            inputs[file] = Input(candidate.raw, candidate.text, candidate.tokens)
            mine += _instances(record, net, candidate, file, radii)
        instances += sorted(mine, key=lambda instance: instance.radius)  # stable: inputs stay as they were drawn
        if on_model is not None:
            on_model(model, len(mine))
    others = Benchmark.read(out).instances if (out / FILE).exists() else ()
    instances += [instance for instance in others if instance.model not in models]
    instances.sort(key=lambda instance: instance.model.place)
    write_instances(out, instances, inputs)
    return Benchmark(out, tuple(instances))


def candidates(model: ModelId, data: Path | None) -> Iterator[Candidate]:
    """The data set in a random order, the same for all models."""
    if model.task == MNIST:
        images = read_images(data, "test")
        for i in _permutation(len(images.labels)):
            yield Candidate(i, images.pixels[i], int(images.labels[i]), "")
        return
    tokenizer = read_tokenizer(data)
    found = read_sentences(data, "validation", tokenizer)
    for i in _permutation(len(found.labels)):
        if len(found.ids[i]) >= max(MOVED):
            tokens = tuple(tokenizer.decode([token]) for token in found.ids[i])
            yield Candidate(i, torch.tensor(found.ids[i]), found.labels[i], found.texts[i], tokens)


def _permutation(n: int) -> list[int]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED)).tolist()


def chosen(net: Model, given: Iterator[Candidate], count: int, balanced: bool) -> list[Candidate]:
    """The first `count` that the model classifies correctly; with `balanced`, as many of each class."""
    most = -(-count // net.n_outputs) if balanced else count
    kept: list[Candidate] = []
    for candidate in given:
        if sum(other.label == candidate.label for other in kept) == most:
            continue
        with torch.no_grad():
            output = logits(net, candidate.for_model())
        others = torch.cat([output[: candidate.label], output[candidate.label + 1 :]])
        if bool(output[candidate.label] > others.max()):
            kept.append(candidate)
        if len(kept) == count:
            return kept
    raise SpecError(f"{net.name} classifies only {len(kept)} of the {count} inputs correctly that are asked for")


def _instances(
    record: Training, net: Model, candidate: Candidate, file: str, radii: Sequence[float]
) -> Iterator[Instance]:
    for radius in radii:
        for name, positions, rival in _claims(record.task, candidate):
            yield Instance(
                task=record.task,
                size=record.size,
                blocks=record.blocks,
                instance=name,
                radius=radius,
                label=candidate.label,
                rival=rival,
                input=file,
                positions=positions,
                relative_radius=_relative(net, candidate, positions, radius),
                accuracy=record.accuracy,
                training=record.loss,
                model_hash=record.weights_sha256,
                input_hash=input_hash(candidate.raw),
            )


def _claims(task: str, candidate: Candidate) -> Iterator[tuple[str, tuple[int, ...] | None, int]]:
    """(name, positions, rival) of an input's claims."""
    others = [k for k in range(N_CLASSES[task]) if k != candidate.label]
    if task == MNIST:
        for rival in others:
            yield f"{candidate.index}-{rival}", None, rival
        return
    for count in MOVED:
        at = Positions("random", count=count).of(candidate.raw, len(candidate.raw), SEED, candidate.index)
        yield f"{candidate.index}-{count}", tuple(at), others[0]


def _relative(net: Model, candidate: Candidate, positions: tuple[int, ...] | None, radius: float) -> float:
    """The l_2 length of the ball's corner over that of what moves: the image, or the token embeddings."""
    if positions is None:
        content = candidate.raw.double() / 255
    else:
        content = token_embedding(net).tokens[candidate.raw[list(positions)]]
    return float(f"{radius * math.sqrt(content.numel()) / float(content.norm()):.4g}")
