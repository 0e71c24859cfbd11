"""A result as a picture: its margins, and what took from them."""

from __future__ import annotations

import math
from typing import Any

from zonogpt.support.plotting import INK, STYLE, method_colour, rc_context, subplots
from zonogpt.verification.result import Result

MOST_ROWS = 20  # margins that are shown: the lowest


def result_figure(result: Result) -> Any:
    """Margins as bars, the lowest first; of method E beside them what each block takes from them."""
    shares = block_losses(result)
    with rc_context(STYLE):
        figure, axes = subplots(1, 2 if shares else 1, figsize=(9.0 if shares else 5.0, 4.2),
                                    squeeze=False)  # fmt: skip
        _margins(axes[0, 0], result)
        if shares:
            _losses(axes[0, 1], shares, result.method)
        figure.suptitle(f"{result.verdict}: {result.claim}", ha="left", x=0.01)
    return figure


def block_losses(result: Result) -> list[tuple[str, float]]:
    """Method E: what each block, the input and the head take from the margins, in the network's order."""
    if result.method != "E" or not result.ledger.entries:
        return []
    found: dict[str, float] = {}
    for entry in result.ledger.entries:
        place = entry.kind if entry.kind in ("input", "head") else f"block {entry.block} ({entry.kind})"
        found[place] = found.get(place, 0.0) + entry.width
    return list(found.items())


def _margins(ax: Any, result: Result) -> None:
    margins = result.margins.tolist()
    lowest = sorted(range(len(margins)), key=lambda k: margins[k])[:MOST_ROWS]
    values = [margins[k] if math.isfinite(margins[k]) else 0.0 for k in lowest]
    ax.barh(range(len(lowest)), values, color=method_colour(result.method))
    ax.set_yticks(range(len(lowest)), [row_name(result, k) for k in lowest])
    ax.invert_yaxis()
    ax.axvline(0, color=INK, lw=1)
    of = f", the lowest of {len(margins)}" if len(margins) > len(lowest) else ""
    ax.set(xlabel=f"certified margin{of}", ylabel="rival" if result.label is not None else "row of the claim")
    ax.set_title("Above 0 is proved", loc="left")


def row_name(result: Result, row: int) -> str:
    """Rivals are the outputs in order, without the label."""
    if result.label is None:
        return str(row)
    return str(row if row < result.label else row + 1)


def _losses(ax: Any, shares: list[tuple[str, float]], method: str) -> None:
    ax.barh(range(len(shares)), [loss for _, loss in shares], color=method_colour(method))
    ax.set_yticks(range(len(shares)), [place for place, _ in shares])
    ax.invert_yaxis()
    ax.set(xlabel="taken from the margins, mean over the rows")
    ax.set_title("Where margin is lost", loc="left")
