"""GPT-2 on SST-2, trained from scratch on GPT-2 tokens with interval bounds in the loss; the last token is read.

The interval loss asks that the label survives when one token embedding of every sentence, drawn anew each time, moves
in a box. At GPT-2's initialisation interval bounds grow about a thousand million times per layer, so at first they
say nothing at any radius of the benchmark. Training begins with the largest radius at which they do, and raises it as
the model learns to keep the bounds small. If they say nothing even at the smallest radius that float32 can carry, the
loss has diverged, and only the cross-entropy remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zonogpt.model.hf import build
from zonogpt.model.ir import Model, token_embedding
from zonogpt_apps.bench.grid import ModelId, config
from zonogpt_apps.bench.training.data import Sentences
from zonogpt_apps.bench.training.intervals import Ball, worst_margins
from zonogpt_apps.bench.training.schedule import Schedule, optimise

LARGEST_RADIUS, SMALLEST_RADIUS = 1e-3, 1e-30
SLACK = 0.5  # by which the interval loss may exceed the cross-entropy before the radius shrinks
UP, DOWN = 1.04, 1 / 1.1
MOST_LOSS = 20.0  # of a batch's interval loss; above it, or at NaN, only the batch's cross-entropy counts
SORTED_TOGETHER = 50  # batches whose sentences are sorted by length, so that little is padded


@dataclass
class Radius:
    """The radius of the interval loss, which is moved after every step."""

    value: float
    first: float

    def follow(self, interval: float, plain: float) -> None:
        self.value = min(LARGEST_RADIUS, self.value * (UP if interval <= plain + SLACK else DOWN))


def train_on_sentences(
    model: ModelId,
    sentences: Sentences,
    tokenizer: Any,
    schedule: Schedule,
    device: torch.device,
    on_step: Callable[[], None] | None = None,
) -> tuple[nn.Module, Radius | None]:
    """The model, and the final radius of the interval loss; None if that loss has diverged or was not wanted."""
    from transformers import GPT2ForSequenceClassification  # slow

    shape = config(model, len(tokenizer))
    shape.resid_pdrop = shape.embd_pdrop = shape.attn_pdrop = schedule.dropout
    shape._attn_implementation = "eager"
    net = GPT2ForSequenceClassification(shape).to(device)
    padded, lengths = pad(sentences.ids, shape.pad_token_id)
    labels = torch.tensor(sentences.labels)
    order = torch.Generator().manual_seed(schedule.seed)
    size = min(schedule.batch, len(labels))

    def batches(epoch: int) -> Iterable[Tensor]:
        return by_length(lengths, size, order)

    # The IR reads the same parameters, so it sees what the optimiser changes.
    live = build("GPT2ForSequenceClassification", shape, dict(net.named_parameters()), "training")
    first = next(iter(by_length(lengths, size, torch.Generator().manual_seed(schedule.seed))))
    batch = Batch.of(first, padded, lengths, labels, device)
    radius = start(live, batch) if schedule.interval_weight else None

    def loss_of(indices: Tensor) -> Tensor:
        batch = Batch.of(indices, padded, lengths, labels, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            if radius is None:
                outputs = net(batch.ids, attention_mask=batch.mask, use_cache=False).logits
                return F.cross_entropy(outputs.float(), batch.labels)
            outputs, margins = bounds(live, batch, radius.value, order)
        plain, interval = F.cross_entropy(outputs.float(), batch.labels), interval_loss(margins, batch.labels)
        radius.follow(interval.item(), plain.item())
        # A batch whose interval loss explodes at this radius would drown the others, or overflow.
        return plain + schedule.interval_weight * interval if interval.item() <= MOST_LOSS else plain

    steps = schedule.epochs * -(-len(labels) // size)
    optimise(net, schedule, batches, steps, loss_of, on_step)
    return net, radius


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # (B, S), padded at the end
    last: Tensor  # (B,)
    labels: Tensor  # (B,)

    @property
    def mask(self) -> Tensor:
        """(B, S) booleans: the token is not padding. It changes nothing but keeps transformers from warning."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) <= self.last[:, None]

    @staticmethod
    def of(indices: Tensor, padded: Tensor, lengths: Tensor, labels: Tensor, device: torch.device) -> Batch:
        longest = int(lengths[indices].max())
        return Batch(
            padded[indices, :longest].to(device), (lengths[indices] - 1).to(device), labels[indices].to(device)
        )


def pad(ids: list[list[int]], padding: int) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(one) for one in ids])
    out = torch.full((len(ids), int(lengths.max())), padding)
    for row, one in zip(out, ids, strict=True):
        row[: len(one)] = torch.tensor(one)
    return out, lengths


def by_length(lengths: Tensor, size: int, order: torch.Generator) -> list[Tensor]:
    """Every example once, in random batches of similar length."""
    shuffled = torch.randperm(len(lengths), generator=order)
    batches = [
        batch
        for group in shuffled.split(size * SORTED_TOGETHER)
        for batch in group[lengths[group].argsort(stable=True)].split(size)
    ]
    return [batches[int(i)] for i in torch.randperm(len(batches), generator=order)]


def bounds(live: Model, batch: Batch, radius: float, order: torch.Generator) -> tuple[Tensor, Tensor]:
    """Outputs and worst margins when one token of every sentence moves by `radius` in each coordinate."""
    embedding = token_embedding(live)
    centre = F.embedding(batch.ids, embedding.tokens) + embedding.positions[: batch.ids.shape[1]]
    draw = torch.rand(len(batch.last), generator=order).to(centre.device)
    moving = (draw * (batch.last + 1)).long().clamp(max=batch.last)
    hit = F.one_hot(moving, batch.ids.shape[1])[..., None].to(centre)
    return worst_margins(live, Ball(centre, radius * hit.expand_as(centre)), batch.last, batch.labels)


def interval_loss(margins: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the worst outputs: the true class is 0, every other at most minus its margin."""
    worst = -margins.float()
    return F.cross_entropy(worst.scatter(1, labels[:, None], 0.0), labels)


def start(live: Model, batch: Batch) -> Radius | None:
    """The largest power of ten at which the interval loss says something about this batch; None if there is none."""
    value = LARGEST_RADIUS
    while value >= SMALLEST_RADIUS:
        with torch.no_grad():
            outputs, margins = bounds(live, batch, value, torch.Generator().manual_seed(0))
            plain, interval = F.cross_entropy(outputs.float(), batch.labels), interval_loss(margins, batch.labels)
        if interval <= plain + SLACK:
            return Radius(value, value)
        value /= 10
    return None


def classify_sentences(net: nn.Module, sentences: Sentences, padding: int) -> Tensor:
    """(n,): the model's answers, on the CPU."""
    device = next(net.parameters()).device
    padded, lengths = pad(sentences.ids, padding)
    indices, labels = torch.arange(len(lengths)), torch.tensor(sentences.labels)
    parts = [Batch.of(part, padded, lengths, labels, device) for part in indices.split(256)]
    with torch.no_grad():
        answers = [net(part.ids, attention_mask=part.mask, use_cache=False).logits.argmax(-1) for part in parts]
    return torch.cat(answers).cpu()
