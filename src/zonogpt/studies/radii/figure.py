"""Pictures of a comparison of methods, and of what is proved and what is broken for each input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zonogpt.studies.radii.rows import ATTACK, RadiusRow
from zonogpt.studies.radii.table import InputLine, MethodLine
from zonogpt.support.plotting import (
    INK,
    STYLE,
    count_table,
    log_ticks,
    method_colour,
    note,
    radius_label,
    rc_context,
    save,
    short,
    subplots,
)

MOST_LETTERS = 40  # that name the tokens of an input
PROVED = method_colour("E")  # for every method: one colour for what is proved, one for what is broken


def draw_comparison(
    lines: Sequence[MethodLine], rows: Sequence[RadiusRow], grid: Sequence[float], title: str, file: Path,
    norm: str = "",
) -> None:  # fmt: skip
    with rc_context(STYLE):
        save(comparison_figure(lines, rows, grid, title, norm), file)


def comparison_figure(
    lines: Sequence[MethodLine], rows: Sequence[RadiusRow], grid: Sequence[float], title: str, norm: str
) -> Any:
    """A row per method, so that none hides another: proved counts, every input's radius, time and memory."""
    shown = sorted(lines, key=lambda line: (line.method != ATTACK, -(line.radius or 0.0)))
    widths = [0.3 * len(grid) + 0.3, 3.6, 1.3, 1.3]
    size = (10.4, 1.5 + 0.36 * len(shown))
    figure, axes = subplots(1, 4, figsize=size, width_ratios=widths)
    counts, radii, seconds, memory = axes
    _counts(counts, shown, grid, norm)
    _radii(radii, shown, rows, norm)
    _bars(seconds, shown, [line.seconds_per_run for line in shown], "{:,.2f}", "Seconds\nper run")
    peaks = [line.peak_bytes / 2**20 if line.peak_bytes else None for line in shown]
    _bars(memory, shown, peaks, "{:,.0f}", "Peak memory,\nMiB")
    for ax in axes:
        ax.set_ylim(len(shown) - 0.5, -0.5)
        if shown[0].method == ATTACK:
            ax.axhline(0.5, color=INK, lw=0.8, alpha=0.4)  # above: broken; below: proved
    figure.suptitle(title, weight="bold")
    return figure


def _counts(ax: Any, shown: Sequence[MethodLine], grid: Sequence[float], norm: str) -> None:
    names = [line.method for line in shown]
    inputs = max(line.inputs for line in shown)
    count_table(ax, names, [short(radius) for radius in grid], [line.counts for line in shown], inputs)
    ax.set_title(f"Proved, of {inputs}\n" + ("(attack: survived)" if ATTACK in names else ""))
    ax.set_xlabel(radius_label(norm))


def _radii(ax: Any, shown: Sequence[MethodLine], rows: Sequence[RadiusRow], norm: str) -> None:
    """A dot per input, a bar for the geometric mean, and its number at the right end."""
    ends = [row.radius for row in rows if 0 < row.radius < math.inf] or [1e-3, 1e-2]
    log_ticks(ax.xaxis, min(ends) / 1.5, max(ends) * 1.5)
    for y, line in enumerate(shown):
        colour = method_colour(line.method)
        radii = [row.radius for row in rows if row.method == line.method and 0 < row.radius < math.inf]
        heights = [y + 0.2 * (k % 3 - 1) for k in range(len(radii))]  # equal radii lie side by side
        ax.scatter(sorted(radii), heights, s=16, color=colour, alpha=0.7, zorder=3, lw=0)
        if line.radius is not None:
            ax.plot([line.radius] * 2, [y - 0.4, y + 0.4], color=colour, lw=1.5, zorder=2)
        ax.annotate(_said(line), (1.02, y), xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    ax.set_yticks([])
    ax.set_xlabel(radius_label(norm))
    ax.set_title("Certified radius\n" + ("(attack: broken at)" if shown[0].method == ATTACK else ""))
    ax.annotate("geometric\nmean", (1.02, 1), (0, 6), "axes fraction", "offset points", weight="bold", fontsize=11)
    ax.grid(axis="x", color=INK, alpha=0.08)


def _said(line: MethodLine) -> str:
    """The mean radius and, if not all inputs have one, how many do."""
    if line.radius is None:
        return line.stopped or ("not broken" if line.method == ATTACK else "none proved")
    return short(line.radius) + (f" ({line.found} of {line.inputs})" if line.found < line.inputs else "")


def _bars(ax: Any, shown: Sequence[MethodLine], values: Sequence[float | None], form: str, title: str) -> None:
    """Bars from zero, with the number at the end; a dash where nothing was measured."""
    most = max((value for value in values if value), default=1.0)
    for y, (line, value) in enumerate(zip(shown, values, strict=True)):
        ax.barh(y, value or 0.0, 0.6, color=method_colour(line.method))
        said = "–" if value is None else form.format(value)
        note(ax, said, (value or 0.0, y), (3, 0), va="center", fontsize=9)
    ax.set(xlim=(0, 1.45 * most), xticks=[], yticks=[], title=title)
    ax.spines[["bottom"]].set_visible(False)


def draw_inputs(lines: Sequence[InputLine], title: str, file: Path, norm: str = "") -> None:
    with rc_context(STYLE):
        save(inputs_figure(lines, title, norm), file)


def inputs_figure(lines: Sequence[InputLine], title: str, norm: str) -> Any:
    """A line for every input, between what is proved and what is broken; the true radius is somewhere on it.

    Arrows point out of the picture where a side has no end: nothing proved, or nothing broken. The tokens of a single
    text are in reading order, from the top; other inputs are sorted by what is proved.
    """
    tried = [line for line in lines if line.status != "misclassified"]
    one_text = len({line.name for line in tried}) == 1
    shown = tried[::-1] if one_text else sorted(tried, key=lambda line: line.certified)
    figure, ax = subplots(figsize=(7.6, 1.6 + 0.26 * max(4, len(shown))))
    ends = [x for line in shown for x in (line.certified, line.attacked or 0.0) if 0 < x < math.inf]
    left, right = min(ends, default=1e-3) / 1.6, max(ends, default=1e-2) * 1.6
    log_ticks(ax.xaxis, left, right)
    for y, line in enumerate(shown):
        broken = line.attacked is not None and line.attacked < math.inf
        if line.attacked is not None:
            ends = [line.certified or left, line.attacked if broken else right]
            ax.plot(ends, [y, y], color="#c9ced3", lw=3, solid_capstyle="butt", zorder=1)
    _side(ax, [(line.certified, y) for y, line in enumerate(shown)], 0.0, (left, "<"), PROVED, "o", "proved")
    attacked = [(line.attacked, y) for y, line in enumerate(shown) if line.attacked is not None]
    _side(ax, attacked, math.inf, (right, ">"), method_colour(ATTACK), "X", "broken")
    ax.set_yticks(range(len(shown)), [_name(line, one_text) for line in shown], fontsize=8.5)
    ax.set(xlabel=radius_label(norm), ylim=(-0.8, len(shown) - 0.2))
    ax.grid(axis="x", color=INK, alpha=0.08)
    wrong = len(lines) - len(shown)
    ax.set_title(title + (f"\n({wrong} misclassified, left out)" if wrong else ""), loc="left")
    figure.legend(frameon=False, loc="outside lower center", ncols=4)
    return figure


def _side(
    ax: Any, points: Sequence[tuple[float, int]], none: float, edge: tuple[float, str], colour: str, marker: str,
    word: str,
) -> None:  # fmt: skip
    """One side of every input: a mark where it has a radius, an arrow at the edge where it has `none`."""
    at, arrow = edge
    which = "largest" if none == 0 else "smallest"
    for found, sign, label in (
        ([(x, y) for x, y in points if x != none], marker, f"{which} {word}"),
        ([(at, y) for x, y in points if x == none], arrow, f"none {word}"),
    ):
        if found:
            ax.scatter(*zip(*found, strict=True), s=34, marker=sign, color=colour, zorder=3, label=label, clip_on=False)


def _name(line: InputLine, one_text: bool) -> str:
    """What moves: the input and, in a text, the tokens. Dollar signs are escaped, as they would begin a formula."""
    if line.positions is None:
        return line.name
    moved = line.moved if len(line.moved) <= MOST_LETTERS else line.moved[: MOST_LETTERS - 1] + "…"
    return (moved if one_text else f"{line.name}: {moved}").replace("$", r"\$")
