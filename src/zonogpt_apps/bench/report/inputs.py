"""The inputs as people see them: a picture, or a sentence with the tokens that move."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from zonogpt.support.files import parse_json
from zonogpt_apps.bench.grid import MNIST
from zonogpt_apps.bench.report.reading import Loaded
from zonogpt_apps.bench.rows import BenchRow


@dataclass(frozen=True)
class Input:
    picture: str = ""  # as data: URI
    text: str = ""
    tokens: tuple[str, ...] | None = None  # None: where the text's tokens begin and end is not known
    n_tokens: int = 0


@dataclass(frozen=True)
class Piece:
    text: str
    moved: bool


def read_inputs(loaded: Loaded) -> dict[str, Input]:
    """The rows' inputs by file name. Inputs that the instances do not have are left out."""
    found: dict[str, Input] = {}
    for row in loaded.rows:
        instance = loaded.instances.get((str(row.model), row.instance, row.radius))
        if instance is None or row.input in found:
            continue
        raw, text = loaded.benchmark.read_input(instance)
        content = loaded.benchmark.read_file(instance)
        if instance.task == MNIST:
            found[row.input] = Input(picture="data:image/png;base64," + base64.b64encode(content).decode())
        else:
            found[row.input] = Input(
                "", text, tokens_of(text, len(raw), parse_json(content.decode()).get("tokens")), len(raw)
            )
    return found


def tokens_of(text: str, count: int, given: Sequence[str] | None = None) -> tuple[str, ...] | None:
    """A text's tokens, if the file gives them. If not: every word begins a token of GPT-2's, so with as many words as
    tokens each word is one. None if neither is so."""
    if given is not None and len(given) == count and "".join(given).strip() == text.strip():
        return tuple(given)
    words = text.split()
    return tuple(f" {word}" if k else word for k, word in enumerate(words)) if len(words) == count else None


def pieces(shown: Input, positions: Sequence[int] | None) -> tuple[Piece, ...]:
    """The sentence cut into pieces that move and pieces that do not; in one piece if its tokens are not known."""
    if shown.tokens is None or positions is None:
        return (Piece(shown.text, False),) if shown.text else ()
    out = []
    for k, token in enumerate(shown.tokens):
        word = token.lstrip()  # the space before a word belongs to its token, but marked spaces look odd
        out += [Piece(token[: len(token) - len(word)], False), Piece(word, k in positions)]
    return tuple(piece for piece in out if piece.text)


def what_moves(row: BenchRow, shown: Input) -> str:
    """In words, which pixels or tokens move; tokens are counted from 1."""
    if row.positions is None:
        return "all pixels move"
    at = [str(position + 1) for position in row.positions]
    names = at[0] if len(at) == 1 else ", ".join(at[:-1]) + " and " + at[-1]
    of = f" of {shown.n_tokens}" if shown.n_tokens else ""
    return f"token {names}{of} moves" if len(at) == 1 else f"tokens {names}{of} move"
