"""Tokens before the first that moves, as the queries of one attention block see them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.model.nodes import Attention


@dataclass(frozen=True)
class Prefix:
    """LayerNorm's output at p tokens that do not move, and how far rounding may move their keys and values."""

    n: Tensor  # (B, p, d)
    K: Tensor  # (B, H, p, e)
    V: Tensor  # (B, H, p, e)
    size: Tensor  # (B, p, d): bounds LayerNorm's output
    executed: Tensor  # (B, p, d): what an execution of LayerNorm may be off by

    @property
    def n_tokens(self) -> int:
        return self.n.shape[-2]

    def before(self, x: Tensor) -> Tensor:
        """LayerNorm's output at these tokens, followed by x (B, n, d)."""
        return torch.cat([self.n, x], dim=-2)

    def select(self, index: Tensor) -> Prefix:
        """The tokens at `index` (B, k) of one row of p tokens, for each of B inputs."""
        K, V = (x[0][:, index].transpose(0, 1) for x in (self.K, self.V))
        n, size, executed = (x[0][index] for x in (self.n, self.size, self.executed))
        return Prefix(n, K, V, size, executed)

    def part(self, row: int, count: int) -> Prefix:
        """The first `count` tokens of one input, as a batch of one; a copy, so that the others' memory can be freed."""
        here = slice(row, row + 1)
        n, size, executed = (x[here, :count].clone() for x in (self.n, self.size, self.executed))
        K, V = (x[here, :, :count].clone() for x in (self.K, self.V))
        return Prefix(n, K, V, size, executed)

    @staticmethod
    def joined(rows: list[Prefix]) -> Prefix:
        """The tokens of several batches of one, in one row."""
        n, size, executed = (torch.cat([getattr(row, name) for row in rows], 1) for name in ("n", "size", "executed"))
        K, V = (torch.cat([getattr(row, name) for row in rows], 2) for name in "KV")
        return Prefix(n, K, V, size, executed)

    @staticmethod
    def none(like: Tensor, attention: Attention) -> Prefix:
        """An empty prefix for tokens `like` (..., n, d)."""
        nothing = like[..., :0, :]
        heads, e = attention.n_heads, attention.inner // attention.n_heads
        empty = like.new_zeros(*like.shape[:-2], heads, 0, e)
        return Prefix(nothing, empty, empty, nothing, nothing)
