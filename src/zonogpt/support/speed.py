"""The speed at which a device multiplies, for rough predictions of how long a run will take."""

from __future__ import annotations

import time

import torch

SIDE, TIMES = 512, 3


def multiply_adds_per_second(device: torch.device) -> float:
    """The speed of products of square matrices in float64, measured now in some hundredths of a second on a CPU."""
    a = torch.full((SIDE, SIDE), 0.5, dtype=torch.float64, device=device)
    (a @ a).sum().item()  # the first call sets things up
    started = time.perf_counter()
    for _ in range(TIMES):
        (a @ a).sum().item()  # `item` waits for a GPU
    return TIMES * SIDE**3 / (time.perf_counter() - started)
