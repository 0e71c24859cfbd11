"""Options that several functions share: read and checked here, before any work."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zonogpt.errors import OptionError
from zonogpt.methods import METHODS
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model
from zonogpt.support.tensors import tensors_in

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def check_method(name: object) -> None:
    if not isinstance(name, str) or name not in METHODS:
        raise OptionError(f"method {name!r} is unknown; there are {', '.join(METHODS)}")


def check_seed(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise OptionError(f"the seed must lie in 0..{2**32 - 1}; got {seed!r}")


def check_list(value: object, what: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(f"{what} must be a list; got {type(value).__name__} {repr(value)[:40]}")


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
        torch.zeros(1, device=resolved, dtype=torch.float64).item()  # something must really be computed there
    except Exception as error:  # only torch runs here, and what it raises depends on the backend that is missing
        reason = (str(error) or type(error).__name__).splitlines()[0][:120]
        raise OptionError(f"device {str(device)!r} cannot be used here: {reason}") from error
    return resolved


def check_limits(timeout: float | None, budget_bytes: int | None) -> None:
    if timeout is not None and (
        isinstance(timeout, bool) or not (isinstance(timeout, int | float) and 0 < timeout <= 1e12)
    ):
        raise OptionError(f"the timeout must be a positive number of seconds; got {timeout!r}")
    if budget_bytes is not None and (type(budget_bytes) is not int or budget_bytes < 1):
        raise OptionError(f"the budget must be a positive number of bytes; got {budget_bytes!r}")


def check_executable(model: Model, arithmetic: Arithmetic) -> None:
    """OptionError where executions in float32 are asked for that would have other weights, or another epsilon."""
    if arithmetic == "real":
        return
    for tensor in tensors_in((model.embedding, model.blocks, model.head)):
        if not torch.equal(tensor, tensor.float().to(tensor.dtype)):
            raise OptionError(
                "arithmetic 'float32' is about running the model in float32, but its weights are float64 numbers that"
                " float32 rounds. Save it in float32 (model.float()) and verify that, or use arithmetic 'real'"
            )
    least, most = torch.finfo(torch.float32).tiny, 1e30
    for norm in model.norms:
        if not least <= norm.tau <= most:
            raise OptionError(
                f"arithmetic 'float32' needs a layer_norm_epsilon that float32 can hold and add, from {least:.3g} to"
                f" {most:g}; this model has {norm.tau:g}"
            )
