"""Small random blocks, zonotopes and Hugging Face models for the tests."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

import zonogpt
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.model.ir import Model, TokenEmbedding
from zonogpt.model.nodes import Attention, Block, Head, Mlp, Node, Norm


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def layer_norm(g: torch.Generator, d: int, tau: float = 1e-5) -> Norm:
    return Norm(1 + 0.3 * randn(g, d), 0.3 * randn(g, d), tau)


def attention_block(
    seed: int,
    d: int = 6,
    n_heads: int = 2,
    causal: bool = True,
    scale: float = 0.6,
    inner: int | None = None,
    biases: bool = True,
) -> Block[Attention]:
    """A random block; `inner` is the width of all heads together, by default d. Without biases, no beta either."""
    g, inner = generator(seed), d if inner is None else inner
    norm = layer_norm(g, d)
    w_q, w_k, w_v = (scale * randn(g, d, 3 * inner)).chunk(3, dim=1)
    b_q, b_k, b_v = (scale * randn(g, 3 * inner)).chunk(3)
    w_o, b_o = scale * randn(g, inner, d), randn(g, d)
    mask = "causal" if causal else "bidirectional"
    block = Block(norm, Attention(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, n_heads, mask))
    return block if biases else changed(without_beta(block), b_q=None, b_k=None, b_v=None, b_o=None)


def mlp_block(seed: int, d: int = 6, hidden: int = 12, scale: float = 0.8, biases: bool = True) -> Block[Mlp]:
    g = generator(seed)
    norm = layer_norm(g, d)
    mlp = Mlp(scale * randn(g, d, hidden), randn(g, hidden), scale * randn(g, hidden, d), randn(g, d))
    return Block(norm, mlp) if biases else changed(without_beta(Block(norm, mlp)), b_1=None, b_2=None)


def by_hand(tokens: Tensor, blocks: tuple[Node, ...], head: Head) -> Model:
    """A language model of these nodes, with embeddings `tokens` (vocabulary, d); no checkpoint could hold it."""
    embedding = TokenEmbedding(tokens, torch.zeros_like(tokens))
    return Model(embedding, blocks, head, "GPT2LMHeadModel", "by hand")


def without_beta(block: Block) -> Block:
    return replace(block, norm=replace(block.norm, beta=None))


def changed(block: Block, **changes: object) -> Block:
    """The block with other fields in its branch."""
    return replace(block, branch=replace(block.branch, **changes))


def zonotope(seed: int, S: int = 4, d: int = 6, m: int = 5, q: int = 3, radius: float = 0.02) -> StructuredZonotope:
    """A random set with b = 0 whose coordinate radius is about `radius`."""
    g = generator(seed)
    c = randn(g, S, d)
    G, L = randn(g, m, S, d), randn(g, S, q, d)
    size = (G.abs().sum(0) + L.abs().sum(1)).mean()
    return StructuredZonotope(c, G * radius / size, L * radius / size, torch.zeros(S, d, dtype=torch.float64))


def config(**changes: object) -> GPT2Config:
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 8, "vocab_size": 17, "num_labels": 3,
             "bos_token_id": None, "eos_token_id": None}  # fmt: skip
    return GPT2Config(**(sizes | changes))


def image_config(**changes: object) -> GPT2Config:
    result = config(**({"vocab_size": 1} | changes))
    result.image_size, result.patch_size = (6, 4), (2, 2)
    return result


def image_model(seed: int = 0, cfg: GPT2Config | None = None) -> zonogpt.GPT2ForImageClassification:
    return shaken(zonogpt.GPT2ForImageClassification, cfg or image_config(), seed)


def text_classifier(seed: int = 0, cfg: GPT2Config | None = None) -> GPT2ForSequenceClassification:
    return shaken(GPT2ForSequenceClassification, cfg or config(pad_token_id=0), seed)


def language_model(seed: int = 0, cfg: GPT2Config | None = None) -> GPT2LMHeadModel:
    return shaken(GPT2LMHeadModel, cfg or config(), seed)


def shaken(architecture, cfg: GPT2Config, seed: int, size: float = 0.3):  # type: ignore[no-untyped-def]
    """A new model with every parameter moved at random, so that no bias is zero and no LayerNorm trivial."""
    torch.manual_seed(seed)  # transformers initialises from the global generator
    model = architecture(cfg)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape)
    return model.eval()
