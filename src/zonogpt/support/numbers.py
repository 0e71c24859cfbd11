"""Numbers and norms as people read them, without saying more than is true."""

from __future__ import annotations


def exact(x: float) -> str:
    """Six digits where they are the number itself, otherwise all of them: 0.001, but 0.0009999999."""
    text = f"{x:g}"
    return text if float(text) == x else repr(float(x))


def norm_name(norm: str) -> str:
    """ "l∞" for "inf", "l2" for "2": as settings write norms, and as people read them."""
    return f"l{norm}".replace("inf", "∞")
