"""Both searches for one input of a model: up to which radius it is proved, and from which on it is broken."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass

from zonogpt.search.falsify import Finding
from zonogpt.spec.spec import Spec
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.studies.radii.search import OnTrial, Outcome, SpecAt, largest_proved, smallest_broken
from zonogpt.support.memory import resident_bytes
from zonogpt.verification.options import Options
from zonogpt.verification.result import Result
from zonogpt.verification.session import Session, check_match


@dataclass(frozen=True)
class Prober:
    session: Session
    options: Options  # the timeout is for each search
    ladder: Ladder
    on_trial: OnTrial

    def of(self, method: str) -> Prober:
        return dataclasses.replace(self, options=self.options.of(method))

    def proved(self, spec_at: SpecAt) -> Outcome:
        return largest_proved(self.ladder, self._checked(spec_at), self._prove, self._deadline(), self.on_trial)

    def broken(self, spec_at: SpecAt) -> Outcome:
        return smallest_broken(self.ladder, self._checked(spec_at), self._search, self._deadline(), self.on_trial)

    def _prove(self, spec: Spec, deadline: float) -> Result:
        left = None if math.isinf(deadline) else max(1e-9, deadline - time.perf_counter())
        options = dataclasses.replace(self.options, attack=False, timeout=left)
        before = resident_bytes(self.session.device)
        result = self.session.prepare([spec], options).result(spec)
        return dataclasses.replace(result, peak_bytes=max(0, result.peak_bytes - before))

    def _search(self, spec: Spec, deadline: float) -> Finding:
        return self.session.search(spec, self.options, deadline)

    def _checked(self, spec_at: SpecAt) -> SpecAt:
        def checked(radius: float) -> Spec:
            spec = spec_at(radius)
            check_match(self.session.model, spec)
            spec.require_ball()
            return spec

        return checked

    def _deadline(self) -> float:
        return math.inf if self.options.timeout is None else time.perf_counter() + self.options.timeout
