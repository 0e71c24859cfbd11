"""Packages that only an extra installs."""

from __future__ import annotations

from importlib.util import find_spec

from zonogpt.errors import OptionError


def require(package: str, extra: str) -> None:
    """OptionError unless the package is installed; to be called before any long work. Imports nothing."""
    if find_spec(package) is None:
        raise OptionError(f"{package} is not installed; pip install 'zonogpt[{extra}]'")


def require_plots() -> None:
    """OptionError unless pictures can be drawn."""
    require("matplotlib", "plots")
