"""The choices that a certificate writes down: weights of covers, and which of two enclosures is used.

Every choice is sound. The checker reads the choices instead of making them again: where two are nearly as good, it
might take the other one, and its bounds would exceed those in the certificate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from zonogpt.domains.rounding import room

Note = Callable[[Tensor], object]


def unnoted(choice: Tensor) -> None:
    """For callers that need no certificate."""


class Choices(dict[str, Tensor]):
    """The choices of one step by name. Empty unless a certificate is written (`with_room`): they take memory."""

    def at(self, name: str) -> Note:
        return functools.partial(self.__setitem__, name) if room() else unnoted

    def more(self, name: str, choice: Tensor) -> None:
        """Appends columns to the choice `name`: a backward pass takes a few rows of the claim at a time."""
        if room():
            self[name] = torch.cat([self[name], choice], -1) if name in self else choice
