"""Judges that can replay a counterexample: the network that the IR was read from, run by code other than ours."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor


class Original(Protocol):
    @property
    def name(self) -> str:
        """The name of the judge, for people."""

    @property
    def agreed(self) -> set[str]:
        """Comparisons with the IR that came out equal. Only model/agreement.py reads and adds to them. They are kept
        here because they hold as long as the original does, for every run and radius."""

    def on_image(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """The outputs (outputs,) at an image (height, width), computed in `dtype`, given in float64."""

    def on_embeddings(self, ids: Tensor, positions: tuple[int, ...], raw: Tensor, dtype: torch.dtype) -> Tensor:
        """The same at a text (S,) with these token embeddings (positions, d) in place of its own."""

    def on_disk(self, scratch: Path) -> Path:
        """A directory that holds the network: the one it was loaded from, or `scratch`, where it is saved."""
