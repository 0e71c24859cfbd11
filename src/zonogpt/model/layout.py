"""How an image is cut into tokens, read from a config."""

from __future__ import annotations

from typing import Any

from zonogpt.errors import ModelError


def image_layout(config: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """(image_size, patch_size) of a config, checked: both present, and whole patches that fit the positions."""
    try:
        (height, width), (ph, pw) = config.image_size, config.patch_size
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(
            "an image classifier's config needs image_size and patch_size, each (height, width): for instance"
            " config.image_size, config.patch_size = (28, 28), (4, 28)"
        ) from error
    whole = all(isinstance(size, int) and size >= 1 for size in (height, width, ph, pw))
    if not whole or height % ph or width % pw:
        raise ModelError(f"patches of {(ph, pw)} do not tile an image of {(height, width)}")
    n_tokens = (height // ph) * (width // pw)
    if n_tokens > config.n_positions:
        raise ModelError(f"{n_tokens} patches, but the config has n_positions = {config.n_positions}")
    return (height, width), (ph, pw)
