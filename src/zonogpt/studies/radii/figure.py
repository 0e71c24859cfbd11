"""Pictures of a comparison of methods, and of inputs seen from both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zonogpt.studies.radii.rows import ATTACK, RadiusRow
from zonogpt.studies.radii.table import InputLine, MethodLine
from zonogpt.support.plotting import INK, STYLE, method_colour, plt, save


def draw_comparison(
    lines: Sequence[MethodLine], rows: Sequence[RadiusRow], grid: Sequence[float], title: str, file: Path
) -> None:
    """Proved counts over the radius, every input's radius under every method, and precision against time."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(15.5, 5.2), layout="constrained", width_ratios=[1.05, 1.2, 1.05])
        _counts(axes[0], lines, grid)
        _radii(axes[1], lines, rows)
        _costs(axes[2], lines)
        figure.suptitle(title, weight="bold")
        save(figure, file)


def _counts(ax: Any, lines: Sequence[MethodLine], grid: Sequence[float]) -> None:
    n = max(line.inputs for line in lines)
    for line in lines:
        attack = line.method == ATTACK
        ax.plot(grid, line.counts, "s--" if attack else "o-", color=method_colour(line.method), lw=2,
                label="not broken by the attack" if attack else line.method)  # fmt: skip
    ax.set(xscale="log", xlabel="radius", ylabel=f"inputs, of {n}", title="Proved at each radius")
    ax.set_ylim(-0.04 * n, 1.06 * n)
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)


def _radii(ax: Any, lines: Sequence[MethodLine], rows: Sequence[RadiusRow]) -> None:
    """A row of dots per method, the geometric mean as a bar; the attack's are the smallest broken radii."""
    shown = sorted(lines, key=lambda line: (line.method == ATTACK, line.radius or 0.0))
    for y, line in enumerate(shown):
        colour = method_colour(line.method)
        radii = [row.radius for row in rows if row.method == line.method and 0 < row.radius < math.inf]
        ax.scatter(radii, [y] * len(radii), s=22, color=colour, alpha=0.6, zorder=3, lw=0)
        if line.radius is not None:
            ax.plot([line.radius] * 2, [y - 0.32, y + 0.32], color=colour, lw=3)
            ax.annotate(f"{line.radius:.2g}", (line.radius, y), (0, 9), "data", "offset points", ha="center",
                        fontsize=8.5, color=colour)  # fmt: skip
        else:
            said = line.stopped or ("not broken" if line.method == ATTACK else "none proved")
            ax.annotate(said, (0.5, y), xycoords=("axes fraction", "data"), ha="center", va="center", fontsize=9,
                        color=colour)  # fmt: skip
    ax.set_yticks(range(len(shown)), [line.method for line in shown])
    ax.set(xscale="log", xlabel="radius", ylim=(-0.6, len(shown) - 0.3))
    ax.set_title("Certified radius (attack: smallest broken)")
    ax.grid(axis="x", color=INK, alpha=0.08)


def _costs(ax: Any, lines: Sequence[MethodLine]) -> None:
    shown = [line for line in lines if line.radius and line.seconds_per_run and line.method != ATTACK]
    # Names above and below in turn, from left to right: neighbours are often close.
    for k, line in enumerate(sorted(shown, key=lambda line: line.seconds_per_run or 0.0)):
        at = (line.seconds_per_run, line.radius)
        size, colour = 30 + 25 * math.sqrt(line.peak_bytes / 2**20), method_colour(line.method)
        away = 4 + math.sqrt(size) / 2
        ax.scatter(*at, s=size, color=colour, alpha=0.55, lw=0)
        ax.annotate(line.method, at, (0, away if k % 2 == 0 else -away), "data", "offset points", ha="center",
                    va="bottom" if k % 2 == 0 else "top", fontsize=10, weight="bold", color=colour)  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="seconds per run", ylabel="certified radius, geometric mean")
    ax.set_title("Precision against time (area: memory)")
    ax.margins(0.18)


def draw_inputs(lines: Sequence[InputLine], title: str, file: Path) -> None:
    """Every input a line between what is proved and what is broken; the truth is somewhere on it."""
    shown = sorted((line for line in lines if line.status != "misclassified"), key=lambda line: line.certified)
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(7.6, 1.6 + 0.26 * max(4, len(shown))), layout="constrained")
        ends = [x for line in shown for x in (line.certified, line.attacked or 0.0) if 0 < x < math.inf]
        left, right = min(ends, default=1e-3) / 1.6, max(ends, default=1e-2) * 1.3
        for y, line in enumerate(shown):
            start = line.certified or left
            if line.attacked is not None and line.attacked < math.inf:
                ax.plot([start, line.attacked], [y, y], color="#c9ced3", lw=3, solid_capstyle="butt", zorder=1)
                ax.scatter([line.attacked], [y], s=34, marker="X", color=method_colour(ATTACK), zorder=3)
            if line.certified:
                ax.scatter([line.certified], [y], s=34, color=method_colour("E"), zorder=3)
        ax.scatter([], [], s=34, color=method_colour("E"), label="largest proved")
        ax.scatter([], [], s=34, marker="X", color=method_colour(ATTACK), label="smallest broken")
        ax.set_yticks(range(len(shown)), [_name(line) for line in shown], fontsize=8.5)
        ax.set(xscale="log", xlabel="radius", ylim=(-0.8, len(shown) - 0.2), xlim=(left, right))
        ax.grid(axis="x", color=INK, alpha=0.08)
        ax.set_title(title, loc="left")
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
        save(figure, file)


def _name(line: InputLine) -> str:
    if line.positions is None:
        return line.name
    return f"{line.name}, token{'s' * (len(line.positions) > 1)} {', '.join(map(str, line.positions))}"
