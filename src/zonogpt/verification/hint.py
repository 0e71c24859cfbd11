"""A hint for an input that could not be proved: a smaller radius that can be."""

from __future__ import annotations

import dataclasses
import math
import time

from zonogpt.spec.spec import Spec
from zonogpt.verification.result import Result
from zonogpt.verification.session import Verification

HALVINGS = 10  # at most so many trials in search of a radius that is certified


def with_hint(run: Verification, spec: Spec, result: Result, seconds: float) -> Result:
    """The result. If it is an "unknown" of method E, spends up to `seconds` more on a smaller radius that is certified.

    Other results, and those that ran out of memory or are not about a ball, are returned as they are.
    """
    hopeless = result.status != "unknown" or result.stopped == "memory"
    if run.options.method != "E" or hopeless or not spec.radius:  # a box has no radius
        return result
    started = time.perf_counter()
    tell = run.on_block
    if tell is not None:
        run = dataclasses.replace(run, on_block=lambda progress: tell(dataclasses.replace(progress, task="hint")))
    smaller = smaller_radius(run, spec, seconds)
    advice = f"; radius {smaller:g} is certified" if smaller else ""
    return dataclasses.replace(
        result,
        certified_radius=smaller,
        reason=result.reason + advice,
        hint_seconds=time.perf_counter() - started,
    )


def smaller_radius(run: Verification, spec: Spec, seconds: float) -> float | None:
    """A radius below the spec's that the run certifies, found by halving and one step back up; None if none is found.

    Radii have three digits, so that what is printed is what was proved.
    """
    deadline = time.perf_counter() + seconds
    found, radius = None, three_digits(spec.require_ball().radius / 2)
    for _ in range(HALVINGS):
        left = deadline - time.perf_counter()
        if left <= 0:
            break
        options = dataclasses.replace(run.options, attack=False, timeout=None if math.isinf(left) else left)
        result = dataclasses.replace(run, options=options).result(spec.shrunk(radius))
        if result.status == "verified":
            if found is not None:
                return radius
            found, radius = radius, three_digits(radius * math.sqrt(2))
        elif found is not None:
            break
        else:
            radius = three_digits(radius / 2)
    return found


def three_digits(x: float) -> float:
    return float(f"{x:.3g}")
