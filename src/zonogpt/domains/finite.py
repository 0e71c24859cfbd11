"""NaN and infinity are reported where they arise; they never pass as bounds."""

from __future__ import annotations

import torch
from torch import Tensor


class NonFiniteBoundError(ArithmeticError):
    """A bound overflowed or became NaN in `step`; verify turns this into `unknown` and names the block too."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


def require_finite(step: str, *tensors: Tensor) -> None:
    for tensor in tensors:
        # The largest absolute value, which NaN and inf win: isfinite would make a second copy of the generators.
        if tensor.numel() and not bool(torch.linalg.vector_norm(tensor, ord=torch.inf).isfinite()):
            raise NonFiniteBoundError(step)
