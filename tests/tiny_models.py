"""Three populations of tiny models and specs: ordinary texts, images, and texts that are made to be awkward."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, PreTrainedModel

import zonogpt

SpecOf = Callable[[zonogpt.Model], zonogpt.Spec]
NORMS = (math.inf, 2.0, 1.0)
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}


def ordinary(seed: int, width: int, norm: float, times: float = 1.0) -> tuple[PreTrainedModel, SpecOf]:
    """A model with weights as GPT-2 initialises them, `times` as large."""
    torch.manual_seed(seed)
    heads = {2: 1, 8: 2, 16: 4}[width]
    net = GPT2ForSequenceClassification(
        GPT2Config(vocab_size=20, n_positions=8, n_embd=width, n_layer=2, n_head=heads, num_labels=3, **NO_TOKENS)
    ).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "ln_" not in name:
                weight *= times
    rng = random.Random(seed)
    length = rng.choice([2, 4, 6])
    ids, at = [rng.randrange(20) for _ in range(length)], [rng.randrange(length)]
    return net, lambda model: zonogpt.embedding_ball(model, ids, at, 2e-5 * times, norm=norm)


def image(seed: int) -> tuple[PreTrainedModel, SpecOf]:
    rng = random.Random(1000 + seed)
    torch.manual_seed(seed)
    heads = rng.choice([1, 2, 3])
    width = max(2, heads * rng.choice([1, 2, 4]))
    patch = rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    rows, columns = rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    config = GPT2Config(
        n_embd=width, n_layer=rng.choice([1, 2, 3]), n_head=heads, n_positions=rows * columns, vocab_size=1,
        num_labels=rng.choice([2, 3, 5]), n_inner=rng.choice([None, 3, 7]),
        layer_norm_epsilon=rng.choice([1e-5, 1e-3, 1e-8]), **NO_TOKENS,
    )  # fmt: skip
    config.image_size, config.patch_size = [rows * patch[0], columns * patch[1]], list(patch)
    net = zonogpt.GPT2ForImageClassification(config).eval()
    _shake(net, rng.choice([0.02, 0.2, 0.5, 1.0]))
    picture = torch.rand(*config.image_size)
    if rng.random() < 0.3:
        picture = picture.round()
    radius, norm = rng.choice([0.0, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]), rng.choice(NORMS)
    return net, lambda model: zonogpt.image_ball(model, picture, radius, norm=norm)


def awkward(seed: int) -> tuple[PreTrainedModel, SpecOf]:
    """Up to three oddities: weights that are 0, tied, huge or tiny, constant tokens; epsilons from 1e-30 to 1e6."""
    rng = random.Random(5000 + seed)
    torch.manual_seed(seed)
    heads = rng.choice([1, 1, 2, 4])
    width, words = max(2, heads * rng.choice([1, 2, 3, 4])), rng.choice([3, 8, 20])
    kind = rng.choice([GPT2ForSequenceClassification, GPT2ForSequenceClassification, GPT2LMHeadModel])
    net = kind(
        GPT2Config(
            vocab_size=words, n_positions=8, n_embd=width, n_layer=rng.choice([1, 1, 2, 3]), n_head=heads,
            n_inner=rng.choice([None, 1, 5]), layer_norm_epsilon=rng.choice([1e-5, 1e-5, 1e-12, 1e-30, 1e-3, 1.0, 1e6]),
            pad_token_id=rng.choice([None, words - 1]), num_labels=rng.choice([2, 3]), **NO_TOKENS,
        )
    ).eval()  # fmt: skip
    scale = rng.choice([0.02, 0.2, 0.5, 1.0, 3.0])
    _shake(net, scale)
    with torch.no_grad():
        for _ in range(rng.choice([0, 1, 2, 3])):
            rng.choice(ODDITIES)(dict(net.named_parameters()), rng, width)
    length = rng.choice([1, 1, 2, 3, 5, 8])
    ids = [rng.randrange(words - 1) for _ in range(length)]
    if rng.random() < 0.2:
        ids = [ids[0]] * length
    at = rng.sample(range(length), rng.choice([1, 1, length]))
    radius, norm = rng.choice([0.0, 1e-12, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3]) * max(scale, 0.05), rng.choice(NORMS)
    near = rng.random() < 0.3 and kind is GPT2ForSequenceClassification

    def spec(model: zonogpt.Model) -> zonogpt.Spec:
        ball = zonogpt.embedding_ball(model, ids, at, radius, norm=norm)
        if not near:
            return ball
        value = zonogpt.logits(model, ids).double()  # one output, a little above a number of its size
        return ball.with_claim([[1.0] + [0.0] * (len(value) - 1)], [1e-3 * max(1.0, float(value[0].abs())) - value[0]])

    return net, spec


def _shake(net: PreTrainedModel, scale: float) -> None:
    with torch.no_grad():
        for name, weight in net.named_parameters():
            gain = "ln_" in name and name.endswith("weight")
            weight.copy_(1 + 0.3 * torch.randn_like(weight) if gain else scale * torch.randn_like(weight))


Weights = dict[str, torch.nn.Parameter]
Oddity = Callable[[Weights, random.Random, int], object]


def _gain(weights: Weights, rng: random.Random) -> torch.Tensor:
    return weights[rng.choice([name for name in weights if "ln_" in name and name.endswith("weight")])]


def _inner(weights: Weights, rng: random.Random) -> torch.Tensor:
    return weights[rng.choice([n for n in weights if ("attn" in n or "mlp" in n) and n.endswith("weight")])]


def _tokens(weights: Weights) -> torch.Tensor:
    return weights["transformer.wte.weight"]


def _rank_one(weights: Weights, rng: random.Random, width: int) -> None:
    weight = _inner(weights, rng)
    weight.copy_(torch.outer(torch.randn(weight.shape[0]), torch.randn(weight.shape[1])))


ODDITIES: list[Oddity] = [
    lambda weights, rng, d: _gain(weights, rng).zero_(),
    lambda weights, rng, d: _gain(weights, rng)[: max(1, d // 2)].zero_(),
    lambda weights, rng, d: _gain(weights, rng).mul_(-1),
    lambda weights, rng, d: _gain(weights, rng).mul_(1e-20),
    lambda weights, rng, d: _gain(weights, rng).mul_(1e5),
    lambda weights, rng, d: _inner(weights, rng).zero_(),
    lambda weights, rng, d: _inner(weights, rng).mul_(1e-20),
    lambda weights, rng, d: _inner(weights, rng).mul_(1e10),
    lambda weights, rng, d: _inner(weights, rng).fill_(0.5),
    _rank_one,
    lambda weights, rng, d: _tokens(weights).zero_(),
    lambda weights, rng, d: _tokens(weights).copy_(_tokens(weights)[:1].clone().expand_as(_tokens(weights))),
    lambda weights, rng, d: _tokens(weights).copy_(_tokens(weights).mean(1, keepdim=True).expand_as(_tokens(weights))),
    lambda weights, rng, d: weights["transformer.wpe.weight"].fill_(1.0),
    lambda weights, rng, d: weights["transformer.h.0.attn.c_attn.weight"][:, : 2 * d].zero_(),
    lambda weights, rng, d: weights["transformer.h.0.attn.c_attn.weight"][:, 2 * d :].zero_(),
]


def saved(made: tuple[PreTrainedModel, SpecOf], folder: Path) -> tuple[zonogpt.Model, zonogpt.Spec]:
    net, spec = made
    net.save_pretrained(folder)
    model = zonogpt.load(folder)
    return model, spec(model)
