"""Dataclasses of tensors: one way to move them to a device or dtype."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
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


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor of a dataclass, tuple or list, however deep; one that appears twice comes twice."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def moved(value: T, device: torch.device, dtype: torch.dtype) -> T:
    """`value` with its floating-point tensors on `device` in `dtype`; they allow gradients unless these are off."""
    return map_tensors(value, lambda t: _differentiable(t.to(device=device, dtype=dtype)))


def _differentiable(t: Tensor) -> Tensor:
    """t, or a copy if it was made in inference mode and that has ended: inference tensors take no part in gradients."""
    return t.clone() if t.is_inference() and not torch.is_inference_mode_enabled() else t


class ByValue:
    """A dataclass of tensors that equals another of its class if all fields that are compared are equal, bit for bit.

    Declare it with eq=False: the comparison that dataclasses generate takes the truth value of a tensor.
    """

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or fingerprint(self) == fingerprint(other)

    def __hash__(self) -> int:
        return hash(fingerprint(self))


def fingerprint(value: object) -> str:
    """A hash of a dataclass of tensors and plain values: equal where all of them are, bit for bit."""
    hasher = hashlib.sha256()
    _feed(value, hasher.update)
    return hasher.hexdigest()[:24]


def _feed(value: object, update: Callable[[bytes], None]) -> None:
    if isinstance(value, Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode())
        update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, tuple):
        update(f"tuple{len(value)}".encode())
        for item in value:
            _feed(item, update)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        update(type(value).__name__.encode())
        for field in dataclasses.fields(value):
            if field.compare:
                _feed(getattr(value, field.name), update)
    else:
        update(f"{value!r};".encode())
