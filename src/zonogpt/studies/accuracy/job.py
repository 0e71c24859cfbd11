"""The work of a run over a data set: examples in, rows out. What it is for is said in certify()."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zonogpt.datasets import Dataset
from zonogpt.errors import UnsoundError
from zonogpt.search.descent import attack
from zonogpt.spec.spec import Spec
from zonogpt.studies.accuracy.rows import Row, Settings
from zonogpt.studies.examples import Example, Examples
from zonogpt.studies.rows.record import digest
from zonogpt.studies.rows.store import RowStore
from zonogpt.support.tensors import fingerprint
from zonogpt.verification.result import Result

Prove = Callable[[Sequence[Spec]], list[Result]]


@dataclass(frozen=True)
class Job:
    examples: Examples
    radii: tuple[float, ...]  # increasing
    settings: Settings
    search: bool  # attack as well?

    @property
    def dataset(self) -> Dataset:
        return self.examples.dataset

    def rows(self, indices: Sequence[int], prove: Prove, store: RowStore[Row] | None) -> Iterator[Row]:
        """All rows of a few examples, from the largest radius down; each is stored before it is yielded."""
        examples = [self.examples.classified(index) for index in indices]
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
            specs = [self.examples.spec(example, radius) for example in todo]
            for example, spec, result in zip(todo, specs, prove(specs) if specs else [], strict=True):
                row = self._judged(example, spec, result)
                if row.status == "verified":
                    proofs[example.index] = row
                if store is not None:
                    store.append(row)
                yield row

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
        margin, radius = float(result.margins.min()), spec.require_ball().radius
        if not self.search:
            return self._row(example, radius, result.status, result.reason, margin=margin, seconds=result.seconds)
        started = time.perf_counter()
        found = attack(self.examples.net, spec, seed=self.settings.seed)
        if found.broken and result.status == "verified":
            raise UnsoundError(
                f"{self.dataset.name(example.index)} is certified at radius {radius:g} with margin {margin:.6g},"
                f" but an input of the ball has margin {found.lowest:.6g}. This is a bug in zonogpt; please report it."
            )
        return self._row(
            example,
            radius,
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
            guarantee=self.settings.guarantee,
            arithmetic="real",
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )

    def _key(self, example: Example, radius: float) -> str:
        content = fingerprint(example.raw)
        return digest((self.settings.digest, example.index, content, example.label, example.positions, radius.hex()))
