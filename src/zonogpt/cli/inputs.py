"""From files and strings to what the spec builders take."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.model import checkpoint

GREYSCALE = ("1", "L", "LA", "P", "RGB", "RGBA")


def read_image(file: Path) -> Tensor:
    """A .npy of floats in [0, 1], or an 8-bit picture turned to grey and divided by 255: (height, width)."""
    if not file.is_file():
        raise SpecError(f"no image file {file}")
    if file.suffix == ".npy":
        try:
            return torch.from_numpy(np.load(file, allow_pickle=False))
        except (ValueError, OSError, EOFError, TypeError) as error:
            raise SpecError(f"{file} is not a readable .npy array of numbers: {error}") from error
    try:
        with Image.open(file) as picture:
            if picture.mode not in GREYSCALE:
                raise SpecError(
                    f"{file} has pixel mode {picture.mode}; 8-bit grey or colour is read, or a .npy of floats"
                )
            return torch.from_numpy(np.asarray(picture.convert("L"), dtype=np.float32) / 255)
    except (UnidentifiedImageError, OSError) as error:
        raise SpecError(f"{file} is not a readable picture: {error}") from error


def encode(model: str, text: str, words: list[str]) -> tuple[list[int], list[int]]:
    """Token ids of `text` by the tokenizer beside the model, and the positions of the tokens that spell `words`."""
    from transformers import AutoTokenizer  # heavy, and only texts need it

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.find(model))
        encoded = tokenizer(text, return_offsets_mapping=True)
    except (OSError, ValueError, NotImplementedError) as error:
        raise SpecError(f"{model} has no tokenizer that can be loaded; give --ids instead ({error})") from error
    ids, spans = list(encoded["input_ids"]), encoded["offset_mapping"]
    if text and not ids:
        raise SpecError(f"the tokenizer of {model} turns the text into no tokens; give --ids instead")
    positions = []
    for word in words:
        found = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text)] if word else []
        if not found:
            raise SpecError(f"the word {word!r} does not occur in the text")
        # Every occurrence moves; a token's span may begin at the space before the word.
        positions += [i for i, (a, b) in enumerate(spans) for start, end in found if a < end and b > start]
    return ids, sorted(set(positions))
