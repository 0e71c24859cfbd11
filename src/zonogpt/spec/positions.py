"""Which tokens of a text move: the last, all, some at random, the ones at given places, or those of given words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zonogpt.errors import OptionError
from zonogpt.model.tokenizer import Text

LISTED = re.compile(r"\d{1,9}(,\d{1,9})*", re.ASCII)


@dataclass(frozen=True)
class Positions:
    """The tokens that move: together, unless each is to be an input of its own.

    Tokens that a tokenizer added to a text never count as the last, as part of all, or as random ones. They may be
    listed by number.
    """

    kind: str  # "last", "all", "random", "listed" or "words"
    count: int = 0  # how many random ones
    listed: tuple[int, ...] = ()
    words: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> Positions:
        """ "last", "all", "random:2", "1,4" or "words:good,film"."""
        if not isinstance(text, str):
            raise OptionError(f'positions are a word or a list in one string, as "last" or "1,4"; got {text!r}')
        if text in ("last", "all"):
            return Positions(text)
        if match := re.fullmatch(r"random:([1-9]\d{0,8})", text, re.ASCII):
            return Positions("random", count=int(match[1]))
        if LISTED.fullmatch(text):
            return Positions("listed", listed=tuple(int(part) for part in text.split(",")))
        if text.startswith("words:"):
            return Positions("words", words=tuple(text.removeprefix("words:").split(",")))
        raise OptionError(
            f"positions are last, all, random:2 (any number) or a list as 1,4; got {text!r}. Words are named by --words"
        )

    def of(self, text: object, n_read: int, seed: int = 0, index: int = 0) -> list[int]:
        """The positions in text number `index`, of which `n_read` tokens are read. Random ones are drawn with a seed
        that depends on `seed` and `index` only."""
        if self.kind == "listed":
            return list(self.listed)
        if self.kind == "words":
            if not isinstance(text, Text):
                raise OptionError(
                    f"words are looked for in a text, and these are token ids; got {', '.join(self.words)}"
                )
            return list(text.at(*self.words))
        added = text.special if isinstance(text, Text) else (False,) * n_read
        own = [k for k in range(n_read) if not added[k]]
        if not own:
            raise OptionError("every token of this text was added by the tokenizer; none is left that moves")
        if self.kind == "last":
            return own[-1:]
        if self.kind == "all" or self.count >= len(own):
            return own
        generator = torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)
        return sorted(own[k] for k in torch.randperm(len(own), generator=generator)[: self.count].tolist())


def named(positions: str | None, words: Sequence[str] | None) -> str | None:
    """The string for `Positions.parse`, from positions or from words; None if neither is given."""
    if positions is not None and words is not None:
        raise OptionError("give positions or words, not both")
    if words is None:
        return positions
    return "words:" + ",".join(words)
