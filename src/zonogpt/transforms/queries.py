"""The queries of an attention block, as an index into its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Queries:
    """The moving tokens at `index` (increasing). The moving tokens come after `prefix` tokens that do not move.

    Contiguous queries are read as a view, so that all tokens, or the last one, cost no copy.
    """

    prefix: int
    index: tuple[int, ...]

    @staticmethod
    def every(n_moving: int, prefix: int = 0) -> Queries:
        return Queries(prefix, tuple(range(n_moving)))

    @staticmethod
    def last(n_moving: int, prefix: int = 0) -> Queries:
        return Queries(prefix, (n_moving - 1,))

    def __len__(self) -> int:
        return len(self.index)

    def of_moving(self, x: Tensor, dim: int) -> Tensor:
        """The queries' entries of an array over the moving tokens."""
        return _taken(x, self.index, dim)

    def of_all(self, x: Tensor, dim: int) -> Tensor:
        """The queries' entries of an array over all tokens, the prefix first."""
        return _taken(x, self.among_all, dim)

    def add_to_moving(self, x: Tensor, part: Tensor, dim: int) -> None:
        """Adds `part`, over the queries, to an array over the moving tokens, in place."""
        if _together(self.index):
            x.narrow(dim, self.index[0], len(self)).add_(part)
        else:
            x.index_add_(dim, torch.tensor(self.index, device=x.device), part)

    @property
    def among_all(self) -> tuple[int, ...]:
        return tuple(self.prefix + i for i in self.index)

    def own(self, n_tokens: int, device: torch.device) -> Tensor:
        """(I, S) booleans: the key is the query's own token."""
        at = torch.tensor(self.among_all, device=device)
        return at[:, None] == torch.arange(n_tokens, device=device)


def _taken(x: Tensor, index: Sequence[int], dim: int) -> Tensor:
    if _together(index):
        return x.narrow(dim, index[0], len(index))
    return x.index_select(dim, torch.tensor(index, device=x.device))


def _together(index: Sequence[int]) -> bool:
    return index[-1] - index[0] == len(index) - 1
