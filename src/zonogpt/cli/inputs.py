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

READABLE_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")
VOCABULARIES = ("tokenizer.json", "vocab.json")


def read_image(file: Path) -> Tensor:
    """A .npy of floats in [0, 1], or an 8-bit picture turned to grey and divided by 255: (height, width)."""
    if not file.is_file():
        what = "a directory" if file.is_dir() else "not there"
        raise SpecError(f"the image {str(file)!r} is {what}; give a picture or a .npy file")
    if file.suffix.lower() == ".npy":
        try:
            array = np.load(file, allow_pickle=False)
            return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
        except (ValueError, OSError, EOFError, TypeError) as error:
            raise SpecError(f"{file} is not a readable .npy array of numbers: {error}") from error
    try:
        with Image.open(file) as picture:
            if picture.mode not in READABLE_MODES:
                raise SpecError(f"{file} has pixel mode {picture.mode}; give 8-bit grey or colour, or a .npy of floats")
            return torch.from_numpy(np.asarray(picture.convert("L"), dtype=np.float32) / 255)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError) as error:
        raise SpecError(f"{file} is not a readable picture: {error}") from error


def encode(model: str, text: str, words: list[str]) -> tuple[list[int], list[int]]:
    """Token ids of `text` by the tokenizer beside the model, and the positions of the tokens that spell `words`."""
    from transformers import AutoTokenizer  # heavy, and only texts need it

    folder = checkpoint.find(model)
    # transformers makes up an empty tokenizer where the files are missing, and every text becomes "unknown"
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise SpecError(f"{model} has no tokenizer ({' or '.join(VOCABULARIES)}); give --ids instead")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        encoded = tokenizer(text, return_offsets_mapping=True)
    except Exception as error:  # whatever a broken tokenizer file makes transformers raise
        raise SpecError(f"the tokenizer of {model} cannot be used; give --ids instead ({error!r})") from error
    ids, spans = list(encoded["input_ids"]), encoded["offset_mapping"]
    unknown = tokenizer.unk_token_id
    if not ids or (unknown in ids and tokenizer.decode([unknown]) not in text):
        raise SpecError(f"the tokenizer of {model} cannot spell {text!r}; give --ids instead")
    positions = []
    for word in words:
        found = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text)] if word else []
        if not found:
            raise SpecError(f"the word {word!r} does not occur in the text")
        # Every occurrence moves; a token's span may begin at the space before the word.
        positions += [i for i, (a, b) in enumerate(spans) for start, end in found if a < end and b > start]
    return ids, sorted(set(positions))
