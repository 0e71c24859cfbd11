"""certified_radius(): how far one input may move, from both sides: the largest radius proved, the smallest broken."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from zonogpt.errors import OptionError, UnsoundError
from zonogpt.model.ir import Model, check_model
from zonogpt.model.replay import HuggingFaceModel, original
from zonogpt.search.falsify import Finding, falsify
from zonogpt.spec.spec import Spec, check_spec
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.studies.radii.search import OnTrial, Outcome, SpecAt, largest_proved, smallest_broken
from zonogpt.support.memory import resident_bytes
from zonogpt.support.tensors import moved
from zonogpt.verification.options import as_dtype, check_limits, check_method, check_seed, resolve_device
from zonogpt.verification.result import Result
from zonogpt.verification.run import verify_many

TOLERANCE = 0.02


class _Radii(NamedTuple):
    certified: float
    attacked: float


class CertifiedRadius(_Radii):
    """The pair (certified, attacked), and whether its searches came to their end.

    `certified` is the largest radius that was proved. 0.0: none was; the lowest failed, unless the search was stopped.
    `attacked` is the smallest radius with a replayed counterexample. inf: none was found, up to the highest radius or
    up to where the search was stopped. `stopped` says which search ended early and why; empty: neither did. What was
    found until then holds.
    """

    stopped: str

    def __new__(cls, certified: float, attacked: float, stopped: str = "") -> Self:
        radii = super().__new__(cls, certified, attacked)
        radii.stopped = stopped
        return radii

    def __repr__(self) -> str:
        return f"CertifiedRadius(certified={self.certified!r}, attacked={self.attacked!r}, stopped={self.stopped!r})"


def certified_radius(
    model: Model,
    spec_at: Callable[[float], Spec],
    low: float,
    high: float,
    method: str = "E",
    tolerance: float = TOLERANCE,
    attack: bool = True,
    seed: int = 0,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    on_trial: OnTrial | None = None,
) -> CertifiedRadius:
    """Bisects between `low` and `high`, by ratio, down to 1 + tolerance; `spec_at` makes the spec of a radius.

    Both searches know nothing of each other: UnsoundError if they ever contradict. `timeout` is for each of them; one
    that runs out of it, or of memory, is `stopped`, and what it has found until then is returned. `on_trial` is told of
    every radius that was tried.
    """
    check_model(model)
    if not callable(spec_at):
        raise OptionError(f"spec_at must be a function from a radius to its spec; got {type(spec_at).__name__}")
    check_method(method)
    ladder = Ladder.build(low, high, tolerance)
    prober = Prober.build(model, seed, timeout, device, dtype, budget_bytes)
    told = on_trial or (lambda trial: None)
    proved = prober.proved(method, ladder, spec_at, told)
    broken = prober.broken(ladder, spec_at, told) if attack else Outcome(math.inf, ())
    require_order(proved.radius, broken.radius, method)
    early = [f"{name}: {search.stopped}" for name, search in (("proofs", proved), ("attack", broken)) if search.stopped]
    return CertifiedRadius(proved.radius, broken.radius, ", ".join(early))


def require_order(certified: float, attacked: float, method: str) -> None:
    if attacked <= certified:
        raise UnsoundError(
            f"method {method} certifies radius {certified:g}, but an input within {attacked:g} breaks the claim."
            " This is a bug in zonogpt; please report it."
        )


@dataclass(frozen=True)
class Prober:
    """What both searches need, made once for many inputs of one model."""

    net: Model  # in float64, where the work is done
    original: HuggingFaceModel | None
    seed: int
    timeout: float | None
    dtype: torch.dtype
    budget_bytes: int | None

    @staticmethod
    def build(
        model: Model,
        seed: int,
        timeout: float | None,
        device: str | torch.device | None,
        dtype: str | torch.dtype | None,
        budget_bytes: int | None,
    ) -> Prober:
        check_seed(seed)
        check_limits(timeout, budget_bytes)
        net = moved(model, resolve_device(device, model), torch.float64)
        return Prober(net, original(model), seed, timeout, as_dtype(dtype), budget_bytes)

    def proved(self, method: str, ladder: Ladder, spec_at: SpecAt, on_trial: OnTrial) -> Outcome:
        def prove(spec: Spec, deadline: float) -> Result:
            left = None if math.isinf(deadline) else max(1e-9, deadline - time.perf_counter())
            before = resident_bytes(self.net.device)
            result = verify_many(
                self.net, [spec], method, timeout=left, dtype=self.dtype, budget_bytes=self.budget_bytes
            )[0]
            return dataclasses.replace(result, peak_bytes=max(0, result.peak_bytes - before))

        return largest_proved(ladder, self._here(spec_at), prove, self._deadline(), on_trial)

    def broken(self, ladder: Ladder, spec_at: SpecAt, on_trial: OnTrial) -> Outcome:
        def search(spec: Spec, deadline: float) -> Finding:
            return falsify(self.net, spec, self.original, seed=self.seed, deadline=deadline)

        return smallest_broken(ladder, self._here(spec_at), search, self._deadline(), on_trial)

    def _here(self, spec_at: SpecAt) -> SpecAt:
        def here(radius: float) -> Spec:
            spec = spec_at(radius)
            check_spec(spec)
            return moved(spec, self.net.device, torch.float64)

        return here

    def _deadline(self) -> float:
        return math.inf if self.timeout is None else time.perf_counter() + self.timeout
