"""Two searches on a ladder of radii: the largest that is proved, and the smallest that is broken."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from zonogpt.search.falsify import Counterexample, Finding
from zonogpt.spec.spec import Spec
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.verification.result import Result

SpecAt = Callable[[float], Spec]
Prove = Callable[[Spec, float], Result]  # the float is the deadline
Search = Callable[[Spec, float], Finding]


@dataclass(frozen=True)
class Trial:
    radius: float
    status: str  # of the Result; for a search "broken" or "kept"
    margin: float  # smallest certified, or lowest seen
    seconds: float
    peak_bytes: int = 0


OnTrial = Callable[[Trial], None]


@dataclass(frozen=True)
class Outcome:
    radius: float  # the largest proved, 0 if none; or the smallest broken, inf if none
    trials: tuple[Trial, ...]
    stopped: str = ""  # why the search ended early: "timeout" or "memory"; empty: it did not
    counterexample: Counterexample | None = None


def largest_proved(ladder: Ladder, spec_at: SpecAt, prove: Prove, deadline: float, on_trial: OnTrial) -> Outcome:
    """The largest radius that the search proves.

    A proof settles all smaller radii, as their sets lie inside. A failure only makes it likely that larger radii fail
    too: the radius that is returned has been proved, but a larger one might be provable.
    """
    good, bad = -1, len(ladder.steps)
    trials: list[Trial] = []
    stopped = ""
    while not stopped and (at := ladder.between(good, bad)) is not None:
        if time.perf_counter() > deadline:
            stopped = "timeout"
            break
        result = prove(spec_at(ladder.steps[at]), deadline)
        trials.append(
            Trial(ladder.steps[at], result.status, float(result.margins.min()), result.seconds, result.peak_bytes)
        )
        on_trial(trials[-1])
        if result.stopped in ("timeout", "memory"):
            stopped = result.stopped
        elif result.status == "verified":
            good = at
        else:
            bad = at
    return Outcome(ladder.steps[good] if good >= 0 else 0.0, tuple(trials), stopped)


def smallest_broken(ladder: Ladder, spec_at: SpecAt, search: Search, deadline: float, on_trial: OnTrial) -> Outcome:
    """The smallest radius that the search breaks.

    A counterexample counts from its own distance on, as it may lie inside the ball that was searched.
    """
    good, bad = -1, len(ladder.steps)
    trials: list[Trial] = []
    best: Counterexample | None = None
    stopped = ""
    while (at := ladder.between(good, bad)) is not None:
        if time.perf_counter() > deadline:
            stopped = "timeout"
            break
        started = time.perf_counter()
        spec = spec_at(ladder.steps[at])
        found = search(spec, deadline)
        broken = found.counterexample is not None
        seconds = time.perf_counter() - started
        trials.append(Trial(ladder.steps[at], "broken" if broken else "kept", found.lowest, seconds))
        on_trial(trials[-1])
        if found.counterexample is None:
            good = at
        else:
            best = found.counterexample
            bad = min(at, bisect.bisect_left(ladder.steps, distance(spec, best)))
            good = min(good, bad - 1)
    return Outcome(ladder.steps[bad] if bad < len(ladder.steps) else math.inf, tuple(trials), stopped, best)


def distance(spec: Spec, found: Counterexample) -> float:
    """How far the counterexample is from the anchor, in the spec's norm, rounded up."""
    moves = (found.input - spec.input.anchor.cpu()).flatten()
    length = float(torch.linalg.vector_norm(moves, ord=spec.require_ball().norm))
    return math.nextafter(length * (1 + 1e-12), math.inf)
