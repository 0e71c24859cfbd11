"""GPT-2 as an image classifier once more, in operators that auto_LiRPA can trace."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import zonogpt

HIDDEN = -1e4  # added to the scores of later tokens: their exponentials are 0 in every float type
AGREEMENT = 1e-5  # of the outputs with Hugging Face's, relative to the largest


class PlainBlock(nn.Module):
    def __init__(self, block: nn.Module, heads: int, tokens: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = block.ln_1, block.ln_2
        q, k, v = (_linear(w, b) for w, b in zip(*(t.chunk(3, -1) for t in _weights(block.attn.c_attn)), strict=True))
        self.q, self.k, self.v, self.out = q, k, v, _linear(*_weights(block.attn.c_proj))
        self.first, self.second = _linear(*_weights(block.mlp.c_fc)), _linear(*_weights(block.mlp.c_proj))
        self.heads, self.tokens, self.width = heads, tokens, q.in_features
        self.register_buffer("mask", torch.full((tokens, tokens), HIDDEN).triu(1))

    def forward(self, x: Tensor) -> Tensor:  # (1, S, d) -> (1, S, d)
        n = self.ln_1(x)
        q, k, v = (self.split(layer(n)) for layer in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.width // self.heads) + self.mask
        mixed = torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).reshape(-1, self.tokens, self.width)
        x = x + self.out(mixed)
        return x + self.second(gelu(self.first(self.ln_2(x))))

    def split(self, x: Tensor) -> Tensor:  # (1, S, d) -> (1, H, S, e)
        return x.reshape(-1, self.tokens, self.heads, self.width // self.heads).transpose(1, 2)


class PlainNetwork(nn.Module):
    """The patches of an image, (1, S, pixels), to outputs."""

    def __init__(self, net: zonogpt.GPT2ForImageClassification) -> None:
        super().__init__()
        config = net.config
        self.patch_height, self.patch_width = net.patch_height, net.patch_width
        tokens = (net.height // net.patch_height) * (net.width // net.patch_width)
        self.projection, self.classifier, self.ln = net.projection, net.classifier, net.transformer.ln_f
        self.register_buffer("positions", net.transformer.wpe.weight[:tokens].detach().clone())
        self.blocks = nn.ModuleList(PlainBlock(block, config.n_head, tokens) for block in net.transformer.h)

    def forward(self, patches: Tensor) -> Tensor:
        x = self.projection(patches) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.ln(x).mean(1))

    def patches(self, images: Tensor) -> Tensor:  # (..., height, width) -> (..., S, pixels)
        grid = images.unflatten(-1, (-1, self.patch_width)).unflatten(-3, (-1, self.patch_height))
        return grid.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def gelu(t: Tensor) -> Tensor:
    """The tanh form: auto_LiRPA's own GELU is the erf form, another function."""
    return 0.5 * t * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * (t * t * t))))


def plain_network(net: zonogpt.GPT2ForImageClassification, images: Tensor) -> PlainNetwork:
    """In float64. ValueError unless its outputs for these images are those of Hugging Face."""
    net = copy.deepcopy(net).double()
    plain = PlainNetwork(net).eval()
    for parameter in plain.parameters():
        parameter.requires_grad_(False)
    with torch.no_grad():
        expected, found = net(images.double()).logits, plain(plain.patches(images.double()))
    off = float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    if off > AGREEMENT:
        raise ValueError(f"the plain network is off by {off:.1e} from Hugging Face's")
    return plain


def _weights(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Of Hugging Face's Conv1D, which is (in, out)."""
    return layer.weight.detach(), layer.bias.detach()


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape, dtype=weight.dtype)
    layer.weight, layer.bias = nn.Parameter(weight.T.contiguous()), nn.Parameter(bias.clone())
    return layer
