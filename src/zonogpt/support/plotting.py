"""The look of all pictures. Matplotlib is imported here only, and without pyplot: nobody's backend is changed, and no
window opens."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zonogpt.support.files import write_whole
from zonogpt.support.numbers import norm_name
from zonogpt.support.optional import require_plots

require_plots()

from matplotlib import rc_context  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402
from matplotlib.ticker import NullFormatter  # noqa: E402

__all__ = ["INK", "METHOD_COLOURS", "METHOD_MARKERS", "PAPER", "STYLE", "Picture", "Rectangle", "count_table",
           "log_ticks", "method_colour", "method_marker", "note", "radius_label", "rc_context", "save",
           "short", "subplots"]  # fmt: skip

INK, PAPER = "#22303c", "#fbfaf7"
STYLE = {
    "font.size": 10,
    "axes.edgecolor": "#9aa5ad",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}

# Chosen by search: any two differ by at least 20 (CIE 1976) with normal, red-blind, green-blind and blue-blind eyes,
# and each has a contrast of at least 3 to the paper. Markers tell the methods apart as well.
METHOD_COLOURS = {
    "E": "#5b2a86",
    "A": "#0c572f",
    "F": "#0541cf",
    "D": "#7a530e",
    "M": "#d57469",
    "crown": "#569ca4",
    "deepz": "#958d04",
    "covenn": "#ec3bd5",
    "ibp": "#575e66",
    "attack": "#111111",
}
METHOD_MARKERS = {
    "E": "o", "A": "s", "F": "^", "D": "D", "M": "v", "crown": "P", "deepz": "X", "covenn": "p", "ibp": "d",
    "attack": "*",
}  # fmt: skip


class Picture(Figure):
    """A figure that a notebook shows by itself."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=110)
        return content.getvalue()


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **grid: Any) -> tuple[Picture, Any]:
    """A picture that lays itself out, and its axes."""
    picture = Picture(figsize=figsize, layout="constrained")
    return picture, picture.subplots(rows, columns, **grid)


def method_colour(method: str) -> str:
    """The colour of a method; a literal variant has that of its method, and an unknown method is grey."""
    return METHOD_COLOURS.get(method.removesuffix("-literal"), "#7a8b99")


def method_marker(method: str) -> str:
    return METHOD_MARKERS.get(method.removesuffix("-literal"), "h")


def radius_label(norm: str) -> str:
    """The label of a radius axis; the norm is left out where it is not known."""
    return f"radius ({norm_name(norm)})" if norm else "radius"


def short(number: float) -> str:
    """A number as people write radii: three digits at most, and below a tenth as 1e-4."""
    if number == 0 or 0.1 <= abs(number) < 1e4:
        return f"{number:.3g}"
    mantissa, _, exponent = f"{number:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def log_ticks(axis: Any, low: float, high: float) -> None:
    """A logarithmic axis from low to high with at least two numbers on it, and small ticks between."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            break
    axis.set_ticks(ticks, [short(tick) for tick in ticks])
    minor = [step * 10.0**decade for decade in decades for step in range(2, 10)]
    axis.set_ticks([tick for tick in minor if low <= tick <= high], minor=True)
    axis.set_minor_formatter(NullFormatter())


def note(ax: Any, text: str, at: tuple[float, float], offset: tuple[float, float], **look: Any) -> None:
    """Text beside a point, at a distance in points."""
    ax.annotate(text, at, offset, "data", "offset points", **look)


def count_table(
    ax: Any, names: Sequence[str], columns: Sequence[str], counts: Sequence[Sequence[int]], of: int
) -> None:
    """Counts as numbers, the first row on top: unlike lines, equal counts never hide each other. More is darker."""
    for y, (name, row) in enumerate(zip(names, counts, strict=True)):
        for x, count in enumerate(row):
            part = count / of if of else 0.0
            box = Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, color=method_colour(name), alpha=0.28 * part, lw=0)
            ax.add_patch(box)
            ax.annotate(str(count), (x, y), ha="center", va="center", color=INK, alpha=1.0 if count else 0.55,
                        weight="bold" if count == of else "normal")  # fmt: skip
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(names) - 0.5, -0.5))
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def save(figure: Any, file: Path) -> None:
    """Writes the figure in the format that the file's name says, whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format=file.suffix.removeprefix(".").lower(), dpi=160)
    write_whole(file, content.getvalue())
