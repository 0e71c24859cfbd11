"""What a verdict is about: the network in real arithmetic, or any execution of it in float32."""

from __future__ import annotations

from typing import Literal, get_args

from zonogpt.errors import OptionError

Arithmetic = Literal["real", "float32"]

MEANING = {
    "real": "the network in exact arithmetic, with these weights",
    "float32": "any execution of the Hugging Face model in IEEE float32, in any order of summation",
}


def check_arithmetic(arithmetic: str) -> Arithmetic:
    for known in get_args(Arithmetic):
        if arithmetic == known:
            return known
    raise OptionError(f"arithmetic {arithmetic!r} is not known; use {' or '.join(get_args(Arithmetic))}")
