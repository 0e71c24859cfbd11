"""The names of outputs and tokens: labels by config.id2label, tokens by what they spell."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from zonogpt.errors import SpecError
from zonogpt.model.identity import ModelFiles
from zonogpt.model.ir import Model, check_model, token_embedding
from zonogpt.model.tokenizer import Text, Tokenizer

MADE_UP = re.compile(r"LABEL_\d+")  # transformers' names for labels without one
NUMBER = re.compile(r"[+-]?\d+", re.ASCII)


def labels_of(id2label: object) -> tuple[str, ...] | None:
    """A config's names of the labels 0, 1, ...; None if transformers made them up. Numbers were checked before."""
    if not isinstance(id2label, dict):
        return None
    names = {int(number): str(name) for number, name in id2label.items()}
    if all(MADE_UP.fullmatch(name) for name in names.values()):
        return None
    return tuple(names[k] for k in range(len(names)))


def text(model: Model, content: str) -> Text:
    """`content` as the model's own tokenizer reads it; `text(...).at("good", "film")` says where these words are.

    It takes the place of token ids: `embedding_ball(model, text, text.at("good"), radius)`.
    """
    check_model(model)
    token_embedding(model)  # refuses models of images
    return tokenizer_of(model).read(content)


def require_own(model: Model, given: Text) -> None:
    """SpecError unless this model's tokenizer gives the text these ids: another model's would spell another text."""
    if tokenizer_of(model).read(given.content).ids != given.ids:
        raise SpecError(f"the text {given.content!r} was read for another model; read it with zonogpt.text(model, ...)")


def tokenizer_of(model: Model) -> Tokenizer:
    """The model's tokenizer; SpecError if it has none."""
    if model.tokenizer is not None:
        return model.tokenizer
    if model.folder is None:
        raise SpecError(
            f"{model.name} came without a tokenizer; give zonogpt.load(model, tokenizer=tokenizer), or token ids"
        )
    return _beside(model.folder, model.name, model.files)


@lru_cache(maxsize=8)
def _beside(folder: Path, owner: str, files: ModelFiles | None) -> Tokenizer:
    """The tokenizer that was in the folder when the model was loaded; `files` tells it from older and newer ones."""
    found = Tokenizer.beside(folder, owner)
    if files is not None:
        files.require_unchanged()
    return found


def token_names(model: Model, ids: Sequence[int]) -> tuple[str, ...] | None:
    """What these tokens spell; None if the model has no tokenizer that can be used."""
    try:
        return tokenizer_of(model).spell(ids)
    except SpecError:
        return None


def output_name(model: Model, number: int) -> str | None:
    """The name of an output; None if it has none."""
    if model.predicts_tokens:
        found = token_names(model, [number])
        return None if found is None else found[0]
    return None if model.labels is None else model.labels[number]


def output_called(model: Model, number: int) -> str:
    """ "1 ('POSITIVE')", or "1" where there is no name."""
    name = output_name(model, number)
    return str(number) if name is None else f"{number} ({name!r})"


def output_number(model: Model, label: object) -> int:
    """The output that a number or a name stands for; SpecError if it is none, or if it could be two."""
    if not isinstance(label, str):
        if isinstance(label, bool):
            raise SpecError(f"a label is a number or a name; got {label!r}")
        try:
            return operator.index(label)  # type: ignore[arg-type]
        except TypeError as error:
            raise SpecError(f"a label is a number or a name; got {label!r}") from error
    if model.predicts_tokens:
        return int(label) if NUMBER.fullmatch(label) else tokenizer_of(model).one(label)
    names = model.labels or ()
    label = label if label in names else label.strip()
    named = [k for k, name in enumerate(names) if name == label]
    if NUMBER.fullmatch(label) and named in ([], [int(label)]):
        return int(label)
    if NUMBER.fullmatch(label):
        raise SpecError(
            f"label {label!r} could be output {label} or the one of that name, {named[0]}; in Python an integer is"
            " always the number"
        )
    if len(named) != 1:
        known = ", ".join(map(repr, names)) if names else f"the numbers 0..{model.n_outputs - 1}"
        many = f"{len(named)} labels are called" if named else "no label is called"
        raise SpecError(f"{many} {label!r}; there are {known}")
    return named[0]
