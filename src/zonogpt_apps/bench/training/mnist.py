"""GPT-2 on MNIST: image rows as 28 tokens, a learned projection, mean pool, cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from zonogpt.model.vision import GPT2ForImageClassification
from zonogpt_apps.bench.grid import ModelId, config
from zonogpt_apps.bench.training.data import Images
from zonogpt_apps.bench.training.schedule import Schedule, optimise


def train_on_images(
    model: ModelId, images: Images, schedule: Schedule, device: torch.device, on_step: Callable[[], None] | None = None
) -> GPT2ForImageClassification:
    shape = config(model, 1)
    shape.resid_pdrop = shape.embd_pdrop = shape.attn_pdrop = schedule.dropout
    shape._attn_implementation = "eager"  # the other kinds are not reproducible, and for 28 tokens no faster
    net = GPT2ForImageClassification(shape).to(device)
    pixels, labels = images.pixels.to(device).float() / 255, images.labels.to(device)
    order = torch.Generator().manual_seed(schedule.seed)
    size = min(schedule.batch, len(labels))
    per_epoch = len(labels) // size

    def batches(epoch: int) -> Iterable[Tensor]:
        return torch.randperm(len(labels), generator=order)[: per_epoch * size].view(-1, size).to(device)

    def loss_of(batch: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            outputs = net(pixels[batch]).logits
        return F.cross_entropy(outputs.float(), labels[batch])

    optimise(net, schedule, batches, schedule.epochs * per_epoch, loss_of, on_step)
    return net


def classify_images(net: GPT2ForImageClassification, images: Images) -> Tensor:
    """(n,): the model's answers, on the CPU."""
    device = next(net.parameters()).device
    with torch.no_grad():
        parts = [net(part.to(device).float() / 255).logits.argmax(-1).cpu() for part in images.pixels.split(1000)]
    return torch.cat(parts)
