"""A result as a picture: its margins and what each block takes from them, or the counterexample."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from zonogpt.support.plotting import INK, STYLE, method_colour, rc_context, subplots
from zonogpt.verification.result import Result

MOST_ROWS = 20  # how many margins are shown: the lowest
FEWEST_BARS = 4  # the axis has room for so many, so that a single bar does not fill it
NOT_PROVED = "#b9bfc4"


def result_figure(result: Result) -> Any:
    """Margins as bars, the lowest first; beside them, for method E, what each block takes from them. A falsified result
    shows its counterexample instead."""
    shares = block_losses(result)
    two = bool(shares) and result.counterexample is None
    height = 1.6 if result.counterexample is not None and not is_image(result) else 4.2
    with rc_context(STYLE):
        figure, axes = subplots(1, 2 if two else 1, figsize=(9.0 if two else 6.0, height), squeeze=False)
        if result.counterexample is not None:
            _counterexample(axes[0, 0], result)
        else:
            _margins(axes[0, 0], result)
        if two:
            _losses(axes[0, 1], shares, result.method)
        title = f"{result.verdict}\n{result.claim}, {result.reach}, method {result.method}"
        figure.suptitle(plain(title), ha="left", x=0.01)
    return figure


def plain(text: str) -> str:
    """The text with its dollar signs escaped: matplotlib reads what stands between two of them as a formula."""
    return text.replace("$", r"\$")


def block_losses(result: Result) -> list[tuple[str, float]]:
    """Method E: what each block, the input and the head take from the margins, in the network's order."""
    if result.method != "E" or not result.ledger.entries:
        return []
    found: dict[str, float] = {}
    for entry in result.ledger.entries:
        place = entry.kind if entry.kind in ("input", "head") else f"block {entry.block} ({entry.kind})"
        found[place] = found.get(place, 0.0) + entry.width
    return list(found.items())


def _counterexample(ax: Any, result: Result) -> None:
    """Draws an image as it is; for a text, whose tokens cannot be drawn, writes the reason in words."""
    assert result.counterexample is not None
    if is_image(result):
        ax.imshow(result.counterexample, cmap="gray", vmin=0.0, vmax=1.0)
        answer = "" if result.answer is None else f", which the model answers with {answer_of(result)}"
        ax.set_title(plain(f"An input of the set{answer}"), loc="left")
    else:
        ax.text(0, 1, plain("\n".join(textwrap.wrap(result.reason, 60))), va="top")
    ax.set_axis_off()


def is_image(result: Result) -> bool:
    return result.about.get("input", {}).get("kind") == "image"


def answer_of(result: Result) -> str:
    return str(result.answer) if result.answer_name is None else f"{result.answer} ({result.answer_name!r})"


def _margins(ax: Any, result: Result) -> None:
    margins = result.margins.tolist()
    lowest = sorted(range(len(margins)), key=lambda k: margins[k])[:MOST_ROWS]
    values = [margins[k] if math.isfinite(margins[k]) else 0.0 for k in lowest]
    colours = [method_colour(result.method) if margins[k] > 0 else NOT_PROVED for k in lowest]
    ax.barh(range(len(lowest)), values, color=colours)
    ax.set_yticks(range(len(lowest)), [plain(row_name(result, k)) for k in lowest])
    _room_for_bars(ax, len(lowest))
    ax.axvline(0, color=INK, lw=1)
    of = f", the lowest of {len(margins)}" if len(margins) > len(lowest) else ""
    ax.set(xlabel=f"certified margin{of}", ylabel="rival" if result.label is not None else "row of the claim")
    ax.set_title("Certified margins: above 0 is proved", loc="left")


def row_name(result: Result, row: int) -> str:
    """The name of a row. Rivals are the outputs in order, without the label, under the names in the model's config."""
    if result.label is None:
        return str(row)
    number = row if row < result.label else row + 1
    labels = result.about.get("model", {}).get("labels")
    return str(number) if labels is None else labels[number]


def _losses(ax: Any, shares: list[tuple[str, float]], method: str) -> None:
    ax.barh(range(len(shares)), [loss for _, loss in shares], color=method_colour(method))
    ax.set_yticks(range(len(shares)), [place for place, _ in shares])
    _room_for_bars(ax, len(shares))
    ax.set(xlabel="mean over all rows of the claim")
    ax.set_title("What takes from a margin", loc="left")


def _room_for_bars(ax: Any, count: int) -> None:
    """Puts the first bar on top, and only a few numbers on the axis, so that they do not touch."""
    ax.set_ylim(max(count, FEWEST_BARS) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=5)
