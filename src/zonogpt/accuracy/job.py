"""The work of a run over a data set: examples in, rows out. What it is for is said in certify()."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.accuracy.rows import Row, Settings, UnsoundError, digest
from zonogpt.accuracy.store import RowStore
from zonogpt.datasets import Dataset
from zonogpt.datasets.texts import Positions
from zonogpt.errors import SpecError, ZonoGptError
from zonogpt.model.ir import ImageEmbedding, Model, as_ids, as_image
from zonogpt.result import Result
from zonogpt.search.attack import attack
from zonogpt.spec.claims import margin_claim
from zonogpt.spec.spec import Spec, check_positions, embedding_ball, image_ball
from zonogpt.tensors import fingerprint

Prove = Callable[[Sequence[Spec]], list[Result]]


@dataclass(frozen=True)
class Example:
    index: int
    label: int | None
    raw: Tensor  # the image, or token ids
    positions: list[int] | None  # None for images
    predicted: int | None = None  # None: the model has one output
    correct: bool = False


@dataclass(frozen=True)
class Job:
    net: Model  # in float64
    dataset: Dataset
    radii: tuple[float, ...]  # increasing
    positions: Positions
    settings: Settings
    search: bool  # attack as well?

    def check_label(self, index: int) -> None:
        label = self.dataset.label(index)
        if label is not None:
            with self._naming(index):
                margin_claim(label, self.net.n_outputs)

    def check_input(self, index: int) -> None:
        self._read(index)

    def rows(self, indices: Sequence[int], prove: Prove, store: RowStore | None) -> Iterator[Row]:
        """All rows of a few examples, from the largest radius down; each is stored before it is yielded."""
        examples = [self._classified(self._read(index)) for index in indices]
        proofs: dict[int, Row] = {}  # by example: the proof at the largest radius
        for radius in reversed(self.radii):
            todo = []
            for example in examples:
                known = store.finished.get(self._key(example, radius)) if store else None
                row = known or self._without_a_run(example, radius, proofs.get(example.index))
                if row is None:
                    todo.append(example)
                    continue
                if row.status == "verified":
                    proofs.setdefault(example.index, row)
                if store is not None and known is None:
                    store.append(row)
                yield row
            specs = [self._spec(example, radius) for example in todo]
            for example, spec, result in zip(todo, specs, prove(specs) if specs else [], strict=True):
                row = self._judged(example, spec, result)
                if row.status == "verified":
                    proofs[example.index] = row
                if store is not None:
                    store.append(row)
                yield row

    def _read(self, index: int) -> Example:
        """SpecError, with the example's name, if it is not one for this model."""
        with self._naming(index):
            raw, label = self.dataset.read(index), self.dataset.label(index)
            if isinstance(self.net.embedding, ImageEmbedding):
                return Example(index, label, as_image(self.net, raw), None)
            ids = as_ids(self.net, raw)
            n_read = len(self.net.readable_ids(ids))
            positions = self.positions.of(n_read, self.settings.seed, index)
            return Example(index, label, ids, list(check_positions(positions, len(ids), n_read)))

    def _classified(self, example: Example) -> Example:
        with self._naming(example.index):
            spec = self._spec(example, self.radii[0])
        with torch.no_grad():
            output = self.net.forward(spec.input.embed(spec.input.anchor))
        predicted = int(output.argmax()) if self.net.n_outputs > 1 else None
        correct = bool((spec.claim.margins(output) > 0).all())  # ties and NaN are not
        return Example(example.index, example.label, example.raw, example.positions, predicted, correct)

    def _spec(self, example: Example, radius: float) -> Spec:
        norm = float(self.settings.norm)
        if example.positions is None:
            return image_ball(self.net, example.raw, radius, example.label, norm)
        return embedding_ball(self.net, example.raw, example.positions, radius, example.label, norm)

    def _without_a_run(self, example: Example, radius: float, proof: Row | None) -> Row | None:
        """The row of an example that is wrong anyway, or proved at a larger radius; None for all others."""
        if not example.correct:
            return self._row(example, radius, "misclassified", "the unperturbed input is not given its label")
        if proof is None:
            return None
        broken = False if self.search else None  # the proof says that no attack can succeed
        reason = f"implied by the proof at radius {proof.radius:g}"
        return self._row(example, radius, "verified", reason, implied=True, broken=broken)

    def _judged(self, example: Example, spec: Spec, result: Result) -> Row:
        """The row of a run, after an attack that knows nothing of its result."""
        margin = float(result.margins.min())
        if not self.search:
            return self._row(example, spec.radius, result.status, result.reason, margin=margin, seconds=result.seconds)
        started = time.perf_counter()
        found = attack(self.net, spec, seed=self.settings.seed)
        if found.broken and result.status == "verified":
            raise UnsoundError(
                f"{self.dataset.name(example.index)} is certified at radius {spec.radius:g} with margin {margin:.6g},"
                f" but an input of the ball has margin {found.lowest:.6g}. This is a bug in zonogpt; please report it."
            )
        return self._row(
            example,
            spec.radius,
            result.status,
            result.reason,
            margin=margin,
            seconds=result.seconds,
            broken=found.broken,
            attack_margin=found.lowest,
            attack_seconds=time.perf_counter() - started,
        )

    def _row(
        self,
        example: Example,
        radius: float,
        status: str,
        reason: str,
        implied: bool = False,
        margin: float | None = None,
        seconds: float | None = None,
        broken: bool | None = None,
        attack_margin: float | None = None,
        attack_seconds: float | None = None,
    ) -> Row:
        return Row(
            key=self._key(example, radius),
            settings=self.settings.digest,
            index=example.index,
            name=self.dataset.name(example.index),
            label=example.label,
            predicted=example.predicted,
            correct=example.correct,
            positions=example.positions,
            radius=radius,
            status=status,
            implied=implied,
            margin=margin,
            seconds=seconds,
            broken=broken,
            attack_margin=attack_margin,
            attack_seconds=attack_seconds,
            reason=reason,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )

    def _key(self, example: Example, radius: float) -> str:
        content = fingerprint(example.raw)
        return digest((self.settings.digest, example.index, content, example.label, example.positions, radius.hex()))

    @contextmanager
    def _naming(self, index: int) -> Iterator[None]:
        """Says of which example an error is."""
        try:
            yield
        except ZonoGptError as error:
            raise SpecError(f"{self.dataset.name(index)}: {error}") from error
