"""The look of all pictures. Matplotlib is imported here only, and drawn without a screen."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib

from zonogpt.support.files import write_whole

matplotlib.use("Agg")

import matplotlib.pyplot as plt

__all__ = ["INK", "METHOD_COLOURS", "PAPER", "STYLE", "method_colour", "plt", "save"]

INK, PAPER = "#22303c", "#fbfaf7"
STYLE = {
    "font.size": 10,
    "axes.edgecolor": "#9aa5ad",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}

METHOD_COLOURS = {
    "E": "#5b2a86",
    "A": "#0b6e4f",
    "F": "#3d8bd4",
    "D": "#e08e0b",
    "M": "#c0392b",
    "crown": "#1f9aa8",
    "deepz": "#8a6d3b",
    "covenn": "#d67fb0",
    "ibp": "#9aa5ad",
    "attack": "#111111",
}


def method_colour(method: str) -> str:
    """Grey for those that have none of their own."""
    return METHOD_COLOURS.get(method, "#7a8b99")


def save(figure: Any, file: Path) -> None:
    """Writes the figure in the format that the file's name says, whole or not at all, and closes it."""
    content = io.BytesIO()
    figure.savefig(content, format=file.suffix.removeprefix(".").lower(), dpi=130)
    plt.close(figure)
    write_whole(file, content.getvalue())
