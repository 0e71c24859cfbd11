"""MNIST files as tensors, and small or large GPT-2 classifiers trained on them: image rows as tokens, mean pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config

import zonogpt
from zonogpt.datasets.idx import find, read_idx

BATCH = 256


@dataclass(frozen=True)
class Shape:
    rows: int  # of the image, per token
    width: int
    layers: int
    heads: int
    rate: float
    epochs: int


def read(folder: Path, prefix: str, device: torch.device) -> tuple[Tensor, Tensor]:
    images = torch.tensor(read_idx(find(folder, f"{prefix}-images-idx3-ubyte"), 3)).to(device).float() / 255
    return images, torch.tensor(read_idx(find(folder, f"{prefix}-labels-idx1-ubyte"), 1)).to(device).long()


def train(shape: Shape, images: Tensor, labels: Tensor, bfloat16: bool) -> zonogpt.GPT2ForImageClassification:
    """GPT-2 initialisation, cross-entropy, AdamW with OneCycle (10 % warm-up), batch 256, gradient clip 1, seed 0."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=shape.width, n_layer=shape.layers, n_head=shape.heads, n_positions=28 // shape.rows, vocab_size=1,
        num_labels=10, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    config.image_size, config.patch_size = (28, 28), (shape.rows, 28)
    model = zonogpt.GPT2ForImageClassification(config).to(images.device).train()
    per_epoch = len(images) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.rate, weight_decay=0.01)
    total = shape.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, shape.rate, total_steps=total, pct_start=0.1)
    g = torch.Generator().manual_seed(0)
    for _ in range(shape.epochs):
        order = torch.randperm(len(images), generator=g).to(images.device)
        for batch in order[: per_epoch * BATCH].view(-1, BATCH):
            with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
                logits = model(images[batch]).logits
            loss = F.cross_entropy(logits.float(), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


def classify(model: zonogpt.GPT2ForImageClassification, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part).logits.argmax(-1) for part in images.split(1000)])


def first_correct(guess: Tensor, labels: Tensor, count: int) -> list[int]:
    """Indices of the first images classified correctly in a permutation with seed 0."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).tolist()
    return [i for i in order if guess[i] == labels[i]][:count]
