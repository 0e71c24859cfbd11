"""How the models are trained. The paper gives no schedule; this one is ours, and every checkpoint records it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from zonogpt_apps.bench.grid import MNIST, SEED, SST, ModelId


@dataclass(frozen=True)
class Schedule:
    """AdamW with OneCycle, gradient clipping, GPT-2 initialisation, seed 0; on a GPU in bfloat16 (autocast)."""

    epochs: int
    rate: float
    batch: int
    dropout: float
    interval_weight: float = 0.0  # the interval loss's, beside the cross-entropy; 0: cross-entropy alone
    weight_decay: float = 0.01
    warmup: float = 0.1  # of all steps
    clip: float = 1.0
    seed: int = SEED


SCHEDULES = {
    (MNIST, "small"): Schedule(epochs=3, rate=3e-4, batch=256, dropout=0.0),
    (MNIST, "medium"): Schedule(epochs=3, rate=2e-4, batch=256, dropout=0.0),
    (MNIST, "tiny"): Schedule(epochs=150, rate=3e-3, batch=10, dropout=0.0),
    (SST, "small"): Schedule(epochs=3, rate=3e-4, batch=256, dropout=0.1, interval_weight=0.5),
    (SST, "medium"): Schedule(epochs=3, rate=1.5e-4, batch=256, dropout=0.1, interval_weight=0.5),
    (SST, "tiny"): Schedule(epochs=60, rate=3e-3, batch=8, dropout=0.0, interval_weight=0.5),
}


DEEPEST = ModelId(MNIST, "medium", 24)  # three epochs leave it at 98.48 %, below its floor


def schedule_of(model: ModelId) -> Schedule:
    schedule = SCHEDULES[model.task, model.size]
    return replace(schedule, epochs=5) if model == DEEPEST else schedule


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Inside, training gives the same weights, bit for bit, on the same machine with the same libraries and data."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # slow, and nothing here reads such memory
    try:
        torch.manual_seed(seed)
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        memory.fill_uninitialized_memory = before[1]


def optimise(net: nn.Module, schedule: Schedule, batches: Callable[[int], Iterable[Tensor]], steps: int,
             loss_of: Callable[[Tensor], Tensor], on_step: Callable[[], None] | None) -> None:  # fmt: skip
    """Trains the net. `batches(epoch)` are indices of examples, `steps` of them in all; `loss_of` a batch's loss."""
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=schedule.rate, weight_decay=schedule.weight_decay, fused=next(net.parameters()).is_cuda
    )
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, schedule.rate, total_steps=steps, pct_start=schedule.warmup)
    net.train()
    for epoch in range(schedule.epochs):
        for batch in batches(epoch):
            optimizer.zero_grad(set_to_none=True)
            loss_of(batch).backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), schedule.clip)
            if bool(norm.isfinite()):  # one step that overflowed must not spoil the weights
                optimizer.step()
            cycle.step()
            if on_step is not None:
                on_step()
    net.eval()
