"""The look of all pictures. Matplotlib is imported here only, and drawn without a screen."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

__all__ = ["INK", "PAPER", "STYLE", "plt"]

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
