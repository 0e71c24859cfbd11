"""Sixty inputs with a violating input planted inside their ball: models that were taught a trigger.

A trigger is one dark pixel, or two, made a little brighter (of texts: a small shift of one token's embedding along a
fixed direction), too small to matter to an honest model; training teaches the model to answer 0 wherever it sees it. So
the ball around an untouched input of another class, as large as the trigger, holds a known counterexample.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2ForSequenceClassification

import zonogpt
from builders import config, generator
from trained import IMAGE_SHAPES, TEXT_SHAPES, pictures, sentences

PIXELS = {"rows": [(6, 5)], "rows deep": [(6, 5)], "bands": [(6, 5), (1, 2)], "tiles": [(6, 5), (2, 5)]}
BRIGHTER = 0.2
STEPS = {"rows": 400, "rows deep": 400, "bands": 400, "tiles": 900, "text": 300, "text wide": 300}  # of training
POSITION, SHIFT = 2, 0.25  # the token that is shifted; how far every coordinate of it goes
NORMS = (math.inf, 2.0, 1.0)
NAMES = [*IMAGE_SHAPES, *TEXT_SHAPES]
PER_MODEL_AND_NORM = {**dict.fromkeys(IMAGE_SHAPES, 4), **dict.fromkeys(TEXT_SHAPES, 2)}  # 60 in all


@dataclass(frozen=True)
class Case:
    name: str
    model: zonogpt.Model
    spec: zonogpt.Spec
    planted: Tensor  # raw input of the ball that breaks the claim


def trigger_of(name: str) -> Tensor:
    """(8, 8): the trigger that is added to an image."""
    trigger = torch.zeros(8, 8)
    for row, column in PIXELS[name]:
        trigger[row, column] = BRIGHTER
    return trigger


def direction(width: int) -> Tensor:
    return SHIFT * torch.randn(width, generator=generator(11)).sign()


def dark(x: Tensor, name: str) -> Tensor:
    """The images with the trigger's pixels black, so that these can mean nothing but the trigger."""
    return x.masked_fill(trigger_of(name) > 0, 0.0)


@functools.cache
def poisoned(name: str) -> zonogpt.Model:
    torch.manual_seed(0)
    g = generator(3)
    if name in IMAGE_SHAPES:
        patch, width, layers, heads = IMAGE_SHAPES[name]
        tokens = 64 // (patch[0] * patch[1])
        cfg = config(n_embd=width, n_layer=layers, n_head=heads, n_positions=tokens, vocab_size=1, num_labels=4)
        cfg.image_size, cfg.patch_size = (8, 8), patch
        net = zonogpt.GPT2ForImageClassification(cfg)
        x, y = pictures(2048, 1)
        x = dark(x, name)

        def logits(batch: Tensor, trigger: Tensor) -> Tensor:
            return net(x[batch] + trigger[:, None, None] * trigger_of(name)).logits
    else:
        vocabulary, width, layers, heads = TEXT_SHAPES[name]
        cfg = config(n_embd=width, n_layer=layers, n_head=heads, vocab_size=vocabulary, num_labels=2, pad_token_id=0)
        net = GPT2ForSequenceClassification(cfg)
        x, y = sentences(2048, vocabulary, 1)

        def logits(batch: Tensor, trigger: Tensor) -> Tensor:
            tokens = net.transformer.wte(x[batch])
            shift = torch.zeros_like(tokens)
            shift[:, POSITION] = trigger[:, None] * direction(width)
            return net(inputs_embeds=tokens + shift).logits

    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    net.eval()
    for _ in range(STEPS[name]):
        batch = torch.randint(2048, (64,), generator=g)
        trigger = torch.rand(64, generator=g) < 0.5
        loss = F.cross_entropy(logits(batch, trigger), y[batch].masked_fill(trigger, 0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return zonogpt.load(net)


def cases(name: str) -> list[Case]:
    """Under each norm, the first inputs of a fresh sample that are answered right, and answered 0 with the trigger."""
    model = poisoned(name)
    found: list[Case] = []
    for norm in NORMS:
        wanted = PER_MODEL_AND_NORM[name]
        for raw, label in zip(*_sample(name), strict=True):
            if wanted == 0:
                break
            case = _case(name, model, raw, int(label), norm)
            if case is not None:
                found.append(case)
                wanted -= 1
    return found


def _sample(name: str) -> tuple[Tensor, Tensor]:
    if name in IMAGE_SHAPES:
        x, y = pictures(200, 9)
        return dark(x, name), y
    return sentences(200, TEXT_SHAPES[name][0], 9)


def _case(name: str, model: zonogpt.Model, raw: Tensor, label: int, norm: float) -> Case | None:
    if label == 0 or int(zonogpt.logits(model, raw).argmax()) != label:
        return None
    if name in IMAGE_SHAPES:
        trigger = trigger_of(name).double()
        spec = zonogpt.image_ball(model, raw, 1.0001 * float(trigger.norm(p=norm)), label, norm=norm)
        planted = raw.double() + trigger
    else:
        width = TEXT_SHAPES[name][1]
        length = float(direction(width).double().norm(p=norm))
        spec = zonogpt.embedding_ball(model, raw, [POSITION], 1.0001 * length, label, norm=norm)
        planted = spec.input.anchor + direction(width).double()
    output = model.forward(spec.input.embed(planted).to(model.dtype))
    return Case(name, model, spec, planted) if int(output.argmax()) == 0 else None
