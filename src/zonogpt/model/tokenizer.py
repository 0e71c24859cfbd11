"""Texts as token ids, by the model's own tokenizer: what each token spells, and where a word is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zonogpt.errors import SpecError

VOCABULARIES = ("tokenizer.json", "vocab.json")


@dataclass(frozen=True)
class Text(Sequence[int]):
    """A text as a model reads it. It can be given wherever token ids can, and stands for its own.

    content: the text.
    ids, tokens: the token ids, and what each of them spells.
    special: which of them the tokenizer added; these never move by default.
    spans: the characters of the text that each token stands for.
    """

    content: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    special: tuple[bool, ...] = field(repr=False)
    spans: tuple[tuple[int, int], ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: Any) -> Any:
        return self.ids[at]

    def at(self, *words: str) -> tuple[int, ...]:
        """The positions of all tokens that spell these words, wherever they occur, in increasing order.

        For a word of several tokens, or one that occurs twice, these are all of its tokens: it moves as a whole.
        """
        found: set[int] = set()
        for word in words:
            # Overlapping occurrences count too; a word that ends in a letter or digit ends there.
            left, right = (r"(?<!\w)" if word[:1].isalnum() else "", r"(?!\w)" if word[-1:].isalnum() else "")
            found_at = re.finditer(rf"{left}(?={re.escape(word)}{right})", self.content) if word else ()
            places = [(match.start(), match.start() + len(word)) for match in found_at]
            if not places:
                raise SpecError(
                    f"the word {word!r} does not occur in the text {self.content!r}; words are whole, and case counts"
                )
            # A token's span may begin at the space before the word.
            found |= {i for i, (a, b) in enumerate(self.spans) for start, end in places if a < end and b > start}
        return tuple(sorted(found))


class Tokenizer:
    """A fast tokenizer of transformers, which may be broken: SpecError where it does not work."""

    def __init__(self, tokenizer: Any, owner: str) -> None:
        self._tokenizer, self._owner = tokenizer, owner

    @staticmethod
    def beside(folder: Path, owner: str) -> Tokenizer:
        """The tokenizer in a model's folder; SpecError if there is none, or none that can be read."""
        from transformers import AutoTokenizer, GPT2Config  # heavy, and only texts need it

        from zonogpt.model.checkpoint import read_config

        # transformers makes up an empty tokenizer where the files are missing, and every text becomes "unknown"
        if not any((folder / name).is_file() for name in VOCABULARIES):
            raise SpecError(f"{owner} has no tokenizer ({' or '.join(VOCABULARIES)}); give token ids instead")
        try:
            # No python file of the folder is run. Of config.json only the tokenizer's class counts here.
            kind = read_config(folder).get("tokenizer_class") if (folder / "config.json").is_file() else None
            tokenizer = AutoTokenizer.from_pretrained(
                folder, config=GPT2Config(tokenizer_class=kind), trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # a broken tokenizer file makes transformers raise anything
            raise SpecError(f"the tokenizer of {owner} cannot be used; give token ids instead ({error!r})") from error
        return Tokenizer(tokenizer, owner)

    def read(self, content: str) -> Text:
        """The text as transformers' pipelines read it, special tokens included."""
        if not isinstance(content, str):
            raise SpecError(f"a text is one string; got {type(content).__name__}")
        if not content:
            raise SpecError("the text is empty")
        try:
            encoded = self._tokenizer(content, return_offsets_mapping=True, return_special_tokens_mask=True)
        except Exception as error:
            raise SpecError(f"the tokenizer of {self._owner} cannot be used; give token ids ({error!r})") from error
        ids, spans = tuple(encoded["input_ids"]), tuple(map(tuple, encoded["offset_mapping"]))
        special, unknown = tuple(map(bool, encoded["special_tokens_mask"])), self._tokenizer.unk_token_id
        own = [number for number, added in zip(ids, special, strict=True) if not added]
        if not ids or (unknown in own and self._tokenizer.decode([unknown]) not in content):
            raise SpecError(f"the tokenizer of {self._owner} cannot spell {content!r}; give token ids instead")
        return Text(content, ids, self.spell(ids), special, spans)

    def spell(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each of these tokens; the replacement character for a piece of a character."""
        return tuple(str(self._tokenizer.decode([number])) for number in ids)

    def one(self, content: str) -> int:
        """The only token that spells this; SpecError if it takes several."""
        ids = self._tokenizer(content, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise SpecError(f"{content!r} is not one token but {len(ids)}: {', '.join(map(repr, self.spell(ids)))}")
        (said,) = self.spell(ids)
        if said != content:  # the unknown token, or a word that the tokenizer changes
            raise SpecError(f"{content!r} is no token: the tokenizer makes {said!r} of it")
        return int(ids[0])
