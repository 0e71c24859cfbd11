"""The picture of an accuracy table: what becomes of the examples at each radius."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zonogpt.studies.accuracy.table import AccuracyLine
from zonogpt.support.plotting import INK, PAPER, STYLE, radius_label, rc_context, save, short, subplots

# From the bottom of a bar to its top. Light and dark alternate, so that the parts differ even without colour.
PROVED, UNKNOWN, BROKEN, WRONG = "#0c572f", "#d5d0c4", "#c8503f", "#4d5660"


def draw_accuracy(lines: Sequence[AccuracyLine], title: str, file: Path, norm: str = "", counted: str = "") -> None:
    with rc_context(STYLE):
        save(accuracy_figure(lines, title, norm, counted), file)


def accuracy_figure(lines: Sequence[AccuracyLine], title: str, norm: str, counted: str = "") -> Any:
    """A bar per radius, cut into what is proved, unknown, broken, and wrong without any change. `counted`: how many
    examples there are, in words."""
    n = lines[0].examples
    figure, ax = subplots(figsize=(max(6.4, 1.6 + 0.62 * len(lines)), 4.6))
    bottoms = [0] * len(lines)
    for name, colour, counts in parts(lines):
        shares = [100 * count / n for count in counts]
        ax.bar(range(len(lines)), shares, 0.8, bottom=[100 * bottom / n for bottom in bottoms], color=colour,
               edgecolor=PAPER, label=name)  # fmt: skip
        for x, (count, bottom) in enumerate(zip(counts, bottoms, strict=True)):
            if count >= 0.045 * n:  # there is room for a number
                ax.text(x, 100 * (bottom + count / 2) / n, str(count), ha="center", va="center", fontsize=9,
                        color=INK if colour == UNKNOWN else PAPER)  # fmt: skip
        bottoms = [bottom + count for bottom, count in zip(bottoms, counts, strict=True)]
    ax.set_xticks(range(len(lines)), [short(line.radius) for line in lines])
    ax.set(
        xlabel=radius_label(norm),
        ylabel=f"% of {counted if ' ' in counted else f'{n} examples'}",
        ylim=(0, 100),
        xlim=(-0.6, len(lines) - 0.4),
    )
    ax.set_title(title, loc="left")
    figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def parts(lines: Sequence[AccuracyLine]) -> list[tuple[str, str, list[int]]]:
    """Name, colour and counts of each part of a bar; parts that are empty at every radius are left out."""
    right = [line.examples if line.clean is None else line.clean for line in lines]
    searched = all(line.survived is not None for line in lines)
    survived = [most if line.survived is None else line.survived for line, most in zip(lines, right, strict=True)]
    certified = [line.certified for line in lines]
    found = [
        ("certified (proved)", PROVED, certified),
        ("unknown (not broken by the attack)" if searched else "not proved", UNKNOWN, _less(survived, certified)),
        ("broken by the attack", BROKEN, _less(right, survived)),
        ("misclassified without any change", WRONG, _less([line.examples for line in lines], right)),
    ]
    return [part for part in found if any(part[2])]


def _less(all_: Sequence[int], part: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip(all_, part, strict=True)]
