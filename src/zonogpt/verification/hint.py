"""A hint for an input that could not be proved: a smaller radius that can."""

from __future__ import annotations

import dataclasses
import math
import time

from zonogpt.spec.spec import Spec
from zonogpt.verification.result import Result
from zonogpt.verification.session import Verification

HALVINGS = 10  # of the radius, in search of one that holds


def with_hint(run: Verification, spec: Spec, result: Result, seconds: float) -> Result:
    """An "unknown" of method E with a smaller certified radius, found in so many more seconds; others as they are."""
    hopeless = result.status != "unknown" or result.stopped == "memory"
    if run.options.method != "E" or hopeless or not spec.radius:  # a box has none
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
    """A radius below the spec's that the run certifies: by halving, then one step back up; None if none was found.

    Radii of three digits: what is printed is what was proved.
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
