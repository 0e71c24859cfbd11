"""verify(): a model and a spec in, a verdict out. verify_many(): several specs of one model."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import torch

from zonogpt.methods.method import OnBlock
from zonogpt.model.arithmetic import check_arithmetic
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec
from zonogpt.verification.options import Options, as_device, as_dtype, check_list
from zonogpt.verification.result import Result
from zonogpt.verification.session import Session, Verification

HALVINGS = 10  # of the radius, in search of one that holds

OnResult = Callable[[int, Result], None]


def verify(
    model: Model,
    spec: Spec,
    method: str = "E",
    attack: bool = False,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    seed: int = 0,
    hint: bool = True,
    on_block: OnBlock | None = None,
    arithmetic: str = "real",
) -> Result:
    """Tries to prove the spec's claim for every input of its set, or, with `attack`, to find one that breaks it.

    "verified" is returned only when every certified margin is positive; "falsified" only with an input of the set on
    which the Hugging Face model itself breaks the claim, in float32 and in float64, and by more than float64 rounds
    (an estimate: zonogpt.model.sensitivity). The unperturbed input is always
    looked at; with `attack` a gradient search of the set comes first (`seed` is its own). Otherwise "unknown", or
    "timeout" after `timeout` seconds (looked at between blocks).

    `arithmetic` says what a verdict is about: "real", the network in exact arithmetic with these weights, or "float32",
    any execution of it in IEEE float32. What the bounds round themselves is part of them in either case (docs/math.md,
    section 13; of deepz, crown and covenn it is estimated, and they know "real" only: `guarantee` of the result says
    which). `dtype` is that of generators
    and tangents: float64 by default, float32 needs less memory and proves less. All else is in float64.
    `budget_bytes`: for the paper's methods the generator pool (default 512 MiB counted in float32), for the others the
    memory of a run (default: what is free; chunks are made smaller to keep it). A run that would need more memory than
    there is ends as "unknown", its `stopped` is "memory". With `hint`, an "unknown" of method E comes with a smaller
    radius that is certified.
    """
    started = time.perf_counter()
    options = Options(
        method=method, attack=attack, timeout=timeout, device=as_device(device), dtype=as_dtype(dtype),
        budget_bytes=budget_bytes, arithmetic=check_arithmetic(arithmetic), seed=seed, hint=hint,
    )  # fmt: skip
    run = Session.open(model, options).prepare([spec], options, on_block)
    result = run.result(spec)
    hopeless = result.status != "unknown" or result.stopped == "memory"
    if not options.hint or method != "E" or hopeless or not spec.radius:  # a box has none
        return result
    left = math.inf if timeout is None else timeout - (time.perf_counter() - started)
    smaller = smaller_radius(run, spec, left)
    advice = f"; radius {smaller:g} is certified" if smaller else ""
    return dataclasses.replace(result, certified_radius=smaller, reason=result.reason + advice)


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


def verify_many(
    model: Model,
    specs: Sequence[Spec],
    method: str = "E",
    attack: bool = False,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    seed: int = 0,
    on_block: OnBlock | None = None,
    on_result: OnResult | None = None,
    arithmetic: str = "real",
) -> list[Result]:
    """`verify` for several specs of one model, in batches where the method can: the same results in less time.

    Bounds do not depend on what else is in a batch, but sums are added up in another order there. Margins are those of
    `verify` to 1e-12 of their size on a CPU and 1e-10 on a GPU (which pads sequences); with dtype float32 to 1e-6.
    Only margins that are nearer to zero than that can change a verdict.

    `seconds` of a result is its share of the batch, and `timeout` is per spec. `on_result(index, result)` is called as
    soon as a result is there.
    """
    check_list(specs, "specs")
    options = Options(
        method=method, attack=attack, timeout=timeout, device=as_device(device), dtype=as_dtype(dtype),
        budget_bytes=budget_bytes, arithmetic=check_arithmetic(arithmetic), seed=seed,
    )  # fmt: skip
    results: dict[int, Result] = {}
    for index, result in Session.open(model, options).prepare(specs, options, on_block).results(specs):
        results[index] = result
        if on_result is not None:
            on_result(index, result)
    return [results[index] for index in range(len(specs))]
