"""An estimate of how far rounding may move a network's outputs: the network is run with far coarser rounding.

Every weight and the result of every operation is moved by SHAKE of its size, up or down at random: 8,192 times what
float64 rounds there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from zonogpt.model.ir import Model
from zonogpt.support.tensors import map_tensors

SHAKE = 2.0**-40
RUNS = 3


class Shaken(TorchFunctionMode):
    """Inside, the result of every operation on floating-point tensors is moved."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        # GELU adds 1 to a tanh near -1: its error is relative to its input, however small the result.
        return result + self.noise(args[0] if func is F.gelu else result)

    def noise(self, x: Tensor) -> Tensor:
        signs = torch.randint(0, 2, x.shape, generator=self.generator).to(x) * 2 - 1
        return (SHAKE * signs * x).nan_to_num(0.0, 0.0, 0.0)  # none for -inf, which masks a score


def sensitivity(model: Model, evaluate: Callable[[Model], Tensor]) -> Tensor:
    """The most that `evaluate(model)` moves, entry by entry, over a few such runs. `model` in float64."""
    plain = evaluate(model)
    largest = torch.zeros_like(plain)
    for seed in range(RUNS):
        with Shaken(seed):
            blocks, head = map_tensors((model.blocks, model.head), torch.clone)
            moved = evaluate(replace(model, blocks=blocks, head=head))
        largest = torch.maximum(largest, (moved - plain).abs())
    return largest
