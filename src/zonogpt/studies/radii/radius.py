"""certified_radius(): how far one input may move, from both sides: the largest radius proved, the smallest broken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Self

import torch

from zonogpt.errors import OptionError, UnsoundError
from zonogpt.model.arithmetic import check_arithmetic
from zonogpt.model.ir import Model, check_model
from zonogpt.spec.spec import Spec
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.studies.radii.prober import Prober
from zonogpt.studies.radii.search import OnTrial, Outcome
from zonogpt.verification.options import Options, as_device, as_dtype
from zonogpt.verification.session import Session

TOLERANCE = 0.02


class _Radii(NamedTuple):
    certified: float
    attacked: float


class CertifiedRadius(_Radii):
    """The pair (certified, attacked), and whether its searches ran to their end.

    `certified` is the largest radius that was proved. If it is 0.0, none was: the lowest failed, unless the search was
    stopped. `attacked` is the smallest radius with a replayed counterexample. If it is inf, none was found, up to the
    highest radius or until the search was stopped. `stopped` says which search ended early and why; if it is empty,
    neither did. What was found before still holds.
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
    *,
    tolerance: float = TOLERANCE,
    attack: bool = True,
    seed: int = 0,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    on_trial: OnTrial | None = None,
    arithmetic: str = "real",
) -> CertifiedRadius:
    """Bisects between `low` and `high`, by ratio, down to 1 + tolerance; `spec_at` makes the spec of a radius.

    The two searches are independent: UnsoundError if they ever contradict each other. `timeout` is for each of them. A
    search that runs out of time or memory is `stopped`, and what it has found by then is returned. `on_trial` is told
    of every radius that was tried. `arithmetic` says what the proofs are about, as in `verify`.
    """
    check_model(model)
    if not callable(spec_at):
        raise OptionError(f"spec_at must be a function from a radius to its spec; got {type(spec_at).__name__}")
    options = Options(
        method=method, attack=attack, timeout=timeout, device=as_device(device), dtype=as_dtype(dtype),
        budget_bytes=budget_bytes, arithmetic=check_arithmetic(arithmetic), seed=seed,
    )  # fmt: skip
    ladder = Ladder.build(low, high, tolerance)
    prober = Prober(Session.open(model, options), options, ladder, on_trial or (lambda trial: None))
    proved = prober.proved(spec_at)
    broken = prober.broken(spec_at) if attack else Outcome(math.inf, ())
    require_order(proved.radius, broken.radius, method)
    early = [f"{name}: {search.stopped}" for name, search in (("proofs", proved), ("attack", broken)) if search.stopped]
    return CertifiedRadius(proved.radius, broken.radius, ", ".join(early))


def require_order(certified: float, attacked: float, method: str) -> None:
    if attacked <= certified:
        raise UnsoundError(
            f"method {method} certifies radius {certified:g}, but an input within {attacked:g} breaks the claim."
            " This is a bug in zonogpt; please report it."
        )
