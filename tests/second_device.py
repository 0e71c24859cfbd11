"""A second device where there is none: tensors on the CPU that carry another device's name and refuse to meet others.

Within `second_device()` torch takes "hpu" wherever it takes a device, and an operation on a tensor there and one on the
CPU raises the RuntimeError that a GPU would raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from zonogpt.model import structure

HERE, THERE = torch.device("cpu"), torch.device("hpu")  # torch knows the name, but no test machine has one


class Elsewhere(Tensor):
    """A tensor on the second device."""


@contextmanager
def second_device() -> Iterator[torch.device]:
    structure.MODES.add(_Devices)  # this mode computes what the CPU does
    try:
        with _Devices():
            yield THERE
    finally:
        structure.MODES.remove(_Devices)


class _Devices(TorchFunctionMode):
    """Intercepts every call with its arguments, computes on the CPU, and marks the result's device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        tensors = list(_tensors((args, kwargs)))
        there = any(isinstance(t, Elsewhere) for t in tensors)
        if func == Tensor.device.__get__ and there:  # type: ignore[attr-defined]
            return THERE
        name = func.__name__
        if there and name in ("numpy", "__array__"):
            raise TypeError("can't convert a tensor on hpu to numpy; use Tensor.cpu() first")
        if there and name not in ("to", "copy_", "type_as", "cpu"):
            _require_one_place(name, args, tensors)
        place = _asked_for(name, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*_map(_device_here, args), **_map(_device_here, kwargs))
            return _map(lambda x: _put(x, place or (THERE if there else HERE)), out)


def _require_one_place(name: str, args: Any, tensors: list[Tensor]) -> None:
    if name in ("__getitem__", "__setitem__") and isinstance(args[0], Elsewhere):
        tensors = list(_tensors(args[2:]))  # indices may be on the CPU
    single = name not in ("cat", "stack")  # elsewhere a CPU tensor of one number is a number
    if any(not isinstance(t, Elsewhere) and (t.dim() > 0 or not single) for t in tensors):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cpu and hpu")


def _asked_for(name: str, args: Any, kwargs: Any) -> torch.device | None:
    """The device that a call names, by a device or by a tensor that is there already."""
    if name == "cpu":
        return HERE
    named = [x for x in (kwargs.get("device"), *(args[1:] if name == "to" else ())) if x is not None]
    for x in named:
        if isinstance(x, Tensor):
            return THERE if isinstance(x, Elsewhere) else HERE
        if isinstance(x, str | torch.device):
            return torch.device(x)
    return None


def _device_here(x: Any) -> Any:
    return HERE if isinstance(x, str | torch.device) and str(x) == "hpu" else x


def _put(x: Any, place: torch.device) -> Any:
    if not isinstance(x, Tensor) or isinstance(x, Elsewhere) == (place == THERE):
        return x
    return x.as_subclass(Elsewhere if place == THERE else Tensor)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _map(change: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(change, item) for key, item in value.items()}
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return type(value)([_map(change, item) for item in value])  # torch's named tuples take a list as well
    return change(value)
