"""verify(): a model and a spec in, a verdict out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from zonogpt.errors import OptionError, SpecError
from zonogpt.memory import peak_bytes, reset_peak
from zonogpt.methods import METHODS
from zonogpt.methods.method import NonFiniteBlockError, OnBlock, Progress
from zonogpt.model.ir import Model
from zonogpt.result import Ledger, Result, Status
from zonogpt.spec.spec import Spec
from zonogpt.tensors import moved

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class _OutOfTimeError(Exception):
    pass


def verify(
    model: Model,
    spec: Spec,
    method: str = "A",
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    on_block: OnBlock | None = None,
) -> Result:
    """Tries to prove the spec's claim for every input of its set.

    "verified" is returned only when every certified margin is positive; "falsified" only with an input of the set on
    which the model itself, run in float64, breaks the claim (so far: the unperturbed input); otherwise "unknown", or
    "timeout" after `timeout` seconds (looked at between blocks).

    The bounds hold for real arithmetic. `dtype` defaults to float64, whose rounding is far below any margin of
    interest; float32 is faster and needs half the memory, and its rounding is only estimated (`rounding_allowance`).
    `budget_bytes` is the generator pool; by default the paper's, 512 MiB counted in float32.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise OptionError(f"method {method!r} is unknown; there are {', '.join(METHODS)}")
    run_dtype, run_device = resolve_dtype(dtype), resolve_device(device, model)
    check_limits(timeout, budget_bytes)
    check_match(model, spec)
    started = time.perf_counter()
    reset_peak(run_device)
    deadline = math.inf if timeout is None else started + timeout

    def watch(progress: Progress) -> None:
        if time.perf_counter() > deadline:
            raise _OutOfTimeError(f"out of time before block {progress.block} of {progress.blocks}")
        if on_block is not None:
            on_block(progress)

    status: Status
    margins, ledger = torch.full((spec.claim.n_rows,), -math.inf, dtype=torch.float64), Ledger()
    counterexample = None
    with torch.no_grad(), _full_precision(run_device):
        try:
            at_home, exact = moved(spec, model.device, torch.float64), _converted(model, model.device, torch.float64)
            if breaks_claim(exact, at_home, at_home.input.anchor):
                counterexample = spec.input.anchor.cpu()
                status, reason = "falsified", "the unperturbed input already breaks the claim"
            else:
                work, work_spec = _converted(model, run_device, run_dtype), moved(spec, run_device, torch.float64)
                bounds = METHODS[method].bound(work, work_spec, budget_bytes, watch)
                margins, ledger = bounds.margins.to("cpu", torch.float64), bounds.ledger
                margins = margins - rounding_allowance(exact, at_home, run_dtype)
                status, reason = judge(margins)
                if run_dtype != torch.float64:
                    reason += " (computed in float32, whose rounding is estimated, not bounded)"
        except _OutOfTimeError as error:
            status, reason = "timeout", str(error)
        except NonFiniteBlockError as error:
            status, reason = "unknown", str(error)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            status, reason = "unknown", "out of memory; `inspect` predicts the need, a smaller budget lowers it"
    return Result(
        status=status,
        margins=margins,
        reason=reason,
        method=method,
        radius=spec.radius,
        label=spec.label,
        seconds=time.perf_counter() - started,
        peak_bytes=peak_bytes(run_device),
        dtype=str(run_dtype).removeprefix("torch."),
        device=str(run_device),
        counterexample=counterexample,
        ledger=ledger,
    )


def out_of_memory(error: Exception) -> bool:
    """torch reports a failed allocation on the CPU as a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)


def judge(margins: Tensor) -> tuple[Status, str]:
    """Verified only if every margin is a positive number; NaN is not."""
    worst = int(margins.argmin())
    if bool((margins > 0).all()):
        return "verified", f"every margin is certified positive; the smallest is {margins[worst]:.4g}"
    failed = int((~(margins > 0)).sum())
    return (
        "unknown",
        f"{failed} of {len(margins)} margins are not certified; the lowest bound is {margins[worst]:.4g}",
    )


def _converted(model: Model, device: torch.device, dtype: torch.dtype) -> Model:
    """The model with blocks and head on `device` in `dtype`; the spec holds what is needed of the embedding."""
    return dataclasses.replace(model, blocks=moved(model.blocks, device, dtype), head=moved(model.head, device, dtype))


def breaks_claim(exact: Model, spec: Spec, raw: Tensor) -> bool:
    """Whether the model itself, given in float64, has a margin that is not positive on this raw input."""
    output = exact.forward(spec.input.embed(raw))
    return not bool((spec.claim.margins(output) > 0).all()) and bool(output.isfinite().all())


def rounding_allowance(exact: Model, spec: Spec, dtype: torch.dtype) -> float:
    """What is taken off every margin for rounding: an estimate, not a bound. `exact` is the model in float64.

    Eight times what `dtype` does to the outputs at the unperturbed input, seen against float64, plus 64 of its units.
    """
    x = spec.input.embed(spec.input.anchor)
    output = exact.forward(x)
    rounded = _converted(exact, exact.device, dtype).forward(x.to(dtype)).double()
    seen = float((output - rounded).abs().max())
    allowance = 8 * seen + 64 * torch.finfo(dtype).eps * float(output.abs().max())
    return allowance if math.isfinite(allowance) else math.inf  # NaN: nothing is certified


def check_match(model: Model, spec: Spec) -> None:
    """A spec holds embedded inputs, so it is about one embedding: with other weights it would be another set."""
    if spec.n_outputs != model.n_outputs or not spec.input.belongs_to(model):
        raise SpecError("the spec was built for another model; build it again with the model you verify")


def resolve_dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return torch.float64
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise OptionError(f"dtype {name!r} is not supported; use {' or '.join(DTYPES)}")
    return DTYPES[name]


def resolve_device(device: str | torch.device | None, model: Model) -> torch.device:
    if device is None:
        return model.device
    try:
        resolved = torch.device(device)
        torch.zeros(1, device=resolved).item()  # something must really be computed there
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:120]
        raise OptionError(f"device {str(device)!r} cannot be used here: {reason}") from error
    return resolved


def check_limits(timeout: float | None, budget_bytes: int | None) -> None:
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= 1e12):
        raise OptionError(f"the timeout must be a positive number of seconds; got {timeout!r}")
    if budget_bytes is not None and (not isinstance(budget_bytes, int) or budget_bytes < 1):
        raise OptionError(f"the budget must be a positive number of bytes; got {budget_bytes!r}")


@contextlib.contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """TF32 and autocast off while bounds are computed: a ten-bit mantissa is no basis for a proof."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
