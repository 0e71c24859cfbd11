"""What a verdict is about: the network in real arithmetic, or any execution of it in float32, and its weights."""

from __future__ import annotations

from typing import Literal, get_args

from zonogpt.errors import OptionError

Arithmetic = Literal["real", "float32"]

MEANING = {
    "real": "the network in exact arithmetic, with these weights",
    "float32": "any execution of the Hugging Face model in IEEE float32, in any order of summation",
}

HALF = ("float16", "bfloat16")


def meaning(arithmetic: Arithmetic, weights: str, stored: str) -> str:
    """What a verdict is about, in words. `weights` and `stored` are types as in Model ("float16+float32")."""
    said = [MEANING[arithmetic]]
    if weights != stored:
        said.append(f"its weights were rounded from {stored} to {weights}, as config.json has transformers hold them")
    half = [name for name in HALF if name in weights.split("+")]
    if half:
        said.append(f"its {half[0]} weights are widened exactly; a run in {half[0]} rounds more and is not covered")
    return "; ".join(said)


def check_arithmetic(arithmetic: str) -> Arithmetic:
    for known in get_args(Arithmetic):
        if arithmetic == known:
            return known
    raise OptionError(f"arithmetic {arithmetic!r} is not known; use {' or '.join(get_args(Arithmetic))}")
