"""How a model is verified: all options in one value, which is checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from zonogpt.errors import OptionError
from zonogpt.methods import METHODS, guarantee
from zonogpt.methods.ledger import Guarantee
from zonogpt.methods.method import Numerics
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model
from zonogpt.support.tensors import tensors_in

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Options:
    """How to verify; what to verify is in the spec. OptionError if it is made with values that make no sense."""

    method: str = "E"
    attack: bool = False  # search for a counterexample first
    timeout: float | None = None  # seconds per spec
    device: torch.device | None = None  # None: where the model is
    dtype: torch.dtype = torch.float64  # of generators and tangents
    budget_bytes: int | None = None
    arithmetic: Arithmetic = "real"
    seed: int = 0  # of the attack
    hint: bool = False  # if unknown: look for a smaller radius that is certified

    def __post_init__(self) -> None:
        for name in ("attack", "hint"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is True or False; got {getattr(self, name)!r}")
        check_method(self.method)
        check_seed(self.seed)
        check_limits(self.timeout, self.budget_bytes)
        if self.arithmetic != "real" and self.guarantee == "estimated":
            raise OptionError(
                f"method {self.method} estimates rounding: it can say nothing about executions in {self.arithmetic}"
            )

    @property
    def numerics(self) -> Numerics:
        return Numerics(self.dtype, self.arithmetic, self.budget_bytes)

    def of(self, method: str) -> Options:
        """The same options for another method."""
        return replace(self, method=method)

    @property
    def guarantee(self) -> Guarantee:
        """How a proof by this method accounts for its own rounding."""
        return guarantee(self.method)

    @property
    def plain(self) -> dict[str, Any]:
        """Every option as a plain value, for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"dtype": self.dtype_name, "device": None if self.device is None else str(self.device)}

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def check_method(name: object) -> None:
    if not isinstance(name, str) or name not in METHODS:
        raise OptionError(f"method {name!r} is unknown; there are {', '.join(METHODS)}")


def check_seed(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise OptionError(f"the seed must lie in 0..{2**32 - 1}; got {seed!r}")


def check_list(value: object, what: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(f"{what} must be a list; got {type(value).__name__} {repr(value)[:40]}")


def as_dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return torch.float64
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise OptionError(f"dtype {name!r} is not supported; use {' or '.join(DTYPES)}")
    return DTYPES[name]


def as_device(device: str | torch.device | None) -> torch.device | None:
    """The named device. Whether it can be used is checked where the work is done, by `usable`."""
    if device is None:
        return None
    try:
        return torch.device(device)
    except Exception as error:  # its type depends on what is wrong with the name
        raise _unusable(device, error) from error


def usable(device: torch.device | None, model: Model) -> torch.device:
    """The device, by default the model's; OptionError if nothing can be computed on a device that is given."""
    if device is None:
        return model.device
    try:
        torch.zeros(1, device=device, dtype=torch.float64).item()  # something must really be computed there
    except Exception as error:  # only torch runs here, and what it raises depends on the backend that is missing
        raise _unusable(device, error) from error
    return device


def resolve_device(device: str | torch.device | None, model: Model) -> torch.device:
    return usable(as_device(device), model)


def _unusable(device: object, error: Exception) -> OptionError:
    reason = (str(error) or type(error).__name__).splitlines()[0][:120]
    return OptionError(f"device {str(device)!r} cannot be used here: {reason}")


def check_limits(timeout: float | None, budget_bytes: int | None) -> None:
    if timeout is not None and (
        isinstance(timeout, bool) or not (isinstance(timeout, int | float) and 0 < timeout <= 1e12)
    ):
        raise OptionError(f"the timeout must be a positive number of seconds; got {timeout!r}")
    if budget_bytes is not None and (type(budget_bytes) is not int or budget_bytes < 1):
        raise OptionError(f"the budget must be a positive number of bytes; got {budget_bytes!r}")


def check_executable(model: Model, arithmetic: Arithmetic) -> None:
    """OptionError if executions in float32 are asked for and would have other weights or another epsilon."""
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
