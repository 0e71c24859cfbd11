"""The picture of a table: accuracies against the radius."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zonogpt.studies.accuracy.table import AccuracyLine
from zonogpt.support.plotting import INK, STYLE, plt, save

CERTIFIED, ATTACKED, CLEAN = "#0b6e4f", "#e08e0b", "#7a8b99"


def draw_accuracy(lines: Sequence[AccuracyLine], title: str, file: Path) -> None:
    """Clean, surviving and certified accuracy over the radii; the truth lies in the band between the last two."""
    radii, n = [line.radius for line in lines], lines[0].examples
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(7.6, 4.8), layout="constrained")
        certified = [100 * line.certified / n for line in lines]
        if lines[0].clean is not None:
            clean = 100 * lines[0].clean / n
            ax.axhline(clean, color=CLEAN, lw=1.5, ls="--", label=f"clean: {clean:.3g} %")
        survived = [100 * line.survived / n for line in lines if line.survived is not None]
        if len(survived) == len(lines):
            ax.fill_between(radii, certified, survived, color=ATTACKED, alpha=0.13, lw=0, label="unknown")
            ax.plot(radii, survived, "s-", color=ATTACKED, lw=2, label="survived the attack (no counterexample found)")
        ax.plot(radii, certified, "o-", color=CERTIFIED, lw=2.4, label="certified (proved)")
        for radius, line, y in zip(radii, lines, certified, strict=True):
            ax.annotate(str(line.certified), (radius, y), (-4, -13), "data", "offset points", ha="right", fontsize=9,
                        color=CERTIFIED)  # fmt: skip
        _radius_axis(ax, radii)
        ax.set(ylabel=f"accuracy on {n} examples, %", ylim=(-9, 104), yticks=range(0, 101, 20))
        ax.grid(axis="y", color=INK, alpha=0.08)
        ax.set_title(title, loc="left")
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, fontsize=9)
        save(figure, file)


def _radius_axis(ax: Any, radii: list[float]) -> None:
    """Logarithmic, with a tick at every radius that was tried and no other."""
    ax.set_xscale("log")
    ax.set_xticks(radii, [f"{radius:g}" for radius in radii], rotation=45 if len(radii) > 8 else 0)
    ax.minorticks_off()
    ax.set_xlim(radii[0] / 1.3, radii[-1] * 1.3)
    ax.set_xlabel("radius")
