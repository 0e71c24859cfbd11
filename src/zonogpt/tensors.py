"""Dataclasses of tensors: one way to move them to a device or dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def map_tensors(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """The same (frozen) dataclass with `change` applied to every floating-point tensor, however deep."""
    return _map(value, change)


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(_map(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _map(getattr(value, f.name), change) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **fields)
    return value


def moved(value: T, device: torch.device, dtype: torch.dtype) -> T:
    """`value` with its floating-point tensors on `device` in `dtype`."""
    return map_tensors(value, lambda t: t.to(device=device, dtype=dtype))
