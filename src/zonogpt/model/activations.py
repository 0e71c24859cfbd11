"""The scalar functions between dense maps, by name. transforms/activations.py has what each method knows of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Activation:
    name: str
    value: Callable[[Tensor], Tensor] = field(compare=False, repr=False)

    def __call__(self, t: Tensor) -> Tensor:  # entry by entry
        return self.value(t)


def _gelu_tanh(t: Tensor) -> Tensor:
    return F.gelu(t, approximate="tanh")


GELU_TANH = Activation("tanh-GELU", _gelu_tanh)
GELU_ERF = Activation("erf-GELU", F.gelu)
RELU = Activation("ReLU", F.relu)
SILU = Activation("SiLU", F.silu)
TANH = Activation("tanh", torch.tanh)
