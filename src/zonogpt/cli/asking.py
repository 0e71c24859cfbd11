"""What a command was asked: its options as plain values, which the answers read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zonogpt.cli.options import check_method, norm_of, size
from zonogpt.errors import OptionError


@dataclass(frozen=True)
class Inputs:
    """What moves. One of `data`, `image`, `text`, `ids` is given. `positions` or `words` say what moves in texts."""

    data: Path | None = None
    image: str | None = None
    text: str | None = None
    ids: str | None = None
    positions: str | None = None
    words: str | None = None
    each: bool = False
    split: str = "test"
    count: int | None = None
    skip: int = 0
    norm: str = "inf"
    seed: int = 0  # of random positions

    def __post_init__(self) -> None:
        """Reports mistakes before torch is loaded."""
        norm_of(self.norm)
        if self.positions is not None and self.words is not None:
            raise OptionError("give --positions or --words, not both")
        if self.words is not None and not all(self.words.split(",")):
            raise OptionError(f"--words takes words separated by commas, as good,film; got {self.words!r}")


@dataclass(frozen=True)
class Claimed:
    """What must stay."""

    label: str | None = None
    interval: str | None = None
    target: str | None = None
    top_k: int | None = None
    keep_sign: bool = False
    rows: Path | None = None


@dataclass(frozen=True)
class Run:
    """How it is run."""

    method: str = "E"
    seed: int = 0
    timeout: float | None = None
    device: str | None = None
    dtype: str | None = None
    arithmetic: str = "real"
    budget: str | None = None

    def __post_init__(self) -> None:
        """Reports mistakes before torch is loaded."""
        size(self.budget)
        check_method(self.method)

    @property
    def options(self) -> dict[str, Any]:
        """The options, except the method, under the names that the library gives them."""
        return {
            "seed": self.seed,
            "timeout": self.timeout,
            "device": self.device,
            "dtype": self.dtype,
            "arithmetic": self.arithmetic,
            "budget_bytes": size(self.budget),
        }


@dataclass(frozen=True)
class Files:
    """What is written, besides the answer itself."""

    out: Path | None = None
    json: Path | None = None
    quiet: bool = False


def norm(inputs: Inputs) -> float:
    return norm_of(inputs.norm)
