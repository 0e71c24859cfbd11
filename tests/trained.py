"""Six small models of different shapes, trained in a second or two each on a task made on the spot.

Trained weights matter: they have sharp attention and large margins, which random ones do not.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2ForSequenceClassification

import zonogpt
from builders import config, generator

# name: (patch, width, layers, heads) for images of 8 x 8, (vocabulary, width, layers, heads) for texts of 6 tokens
IMAGE_SHAPES = {
    "rows": ((1, 8), 16, 1, 2),
    "rows deep": ((1, 8), 16, 3, 4),
    "bands": ((2, 8), 24, 2, 3),
    "tiles": ((4, 4), 32, 2, 1),
}
TEXT_SHAPES = {"text": (12, 16, 2, 4), "text wide": (9, 32, 1, 2)}
NAMES = [*IMAGE_SHAPES, *TEXT_SHAPES]


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Four classes: a bright bar in the upper, lower, left or right half, under noise."""
    g = generator(seed)
    y = torch.randint(4, (count,), generator=g)
    at = torch.randint(4, (count,), generator=g)
    x = 0.4 * torch.rand(count, 8, 8, generator=g)
    for i in range(count):
        k = int(at[i]) + (4 if int(y[i]) % 2 else 0)
        if int(y[i]) < 2:
            x[i, k] += 0.6
        else:
            x[i, :, k] += 0.6
    return x.clamp(0, 1), y


def sentences(count: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sentences of two classes: are more of the six ids small than large?"""
    ids = torch.randint(1, vocabulary, (count, 6), generator=generator(seed))
    return ids, ((ids <= vocabulary // 2).sum(1) > 3).long()


@functools.cache
def trained(name: str) -> zonogpt.Model:
    torch.manual_seed(0)
    if name in IMAGE_SHAPES:
        patch, width, layers, heads = IMAGE_SHAPES[name]
        tokens = 64 // (patch[0] * patch[1])
        cfg = config(n_embd=width, n_layer=layers, n_head=heads, n_positions=tokens, vocab_size=1, num_labels=4)
        cfg.image_size, cfg.patch_size = (8, 8), patch
        net = zonogpt.GPT2ForImageClassification(cfg)
        x, y = pictures(2048, 1)
        forward = lambda batch: net(x[batch]).logits  # noqa: E731
    else:
        vocabulary, width, layers, heads = TEXT_SHAPES[name]
        cfg = config(n_embd=width, n_layer=layers, n_head=heads, vocab_size=vocabulary, num_labels=2, pad_token_id=0)
        net = GPT2ForSequenceClassification(cfg)
        x, y = sentences(2048, vocabulary, 1)
        forward = lambda batch: net(input_ids=x[batch]).logits  # noqa: E731
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    net.eval()  # no dropout: bit for bit the same every time
    g = generator(2)
    for _ in range(200):
        batch = torch.randint(2048, (64,), generator=g)
        loss = F.cross_entropy(forward(batch), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return zonogpt.load(net)


def instances(name: str, radius: float, count: int, norm: float = float("inf")) -> list[zonogpt.Spec]:
    """Specs for the first inputs of a fresh sample; texts move one or two of their tokens."""
    model = trained(name)
    if name in IMAGE_SHAPES:
        return [zonogpt.image_ball(model, x, radius, norm=norm) for x in pictures(count, 7)[0]]
    ids = sentences(count, TEXT_SHAPES[name][0], 7)[0]
    places = ([2], [0, 4], [5], [1])
    return [zonogpt.embedding_ball(model, row, places[i % 4], radius, norm=norm) for i, row in enumerate(ids)]
