"""The picture of the paper's worked example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zonogpt.support.plotting import INK, STYLE, Picture, method_colour, note, rc_context, save
from zonogpt_apps.demo.worked_example import RADIUS, FirstToken, deepz_projections, fused_projections, intervals

PRINTED = {"paper, fused": "A", "paper, DeepZ": "deepz"}  # the method whose numbers the paper prints


def draw_example(file: Path) -> None:
    with rc_context(STYLE):
        save(example_figure(), file)


def example_figure() -> Any:
    """Projections of the first token, operator by operator and fused, and the final intervals."""
    figure: Any = Picture(figsize=(10.4, 9), layout="constrained")
    figure.suptitle(f"The paper's example: l∞ ball of radius {RADIUS:g}, first token", weight="bold")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=[1, 1, 1.05], hspace=0.03)
    dense, fused = deepz_projections(), fused_projections()
    top.suptitle("Operator by operator (deepz); dashed: the sets of A below, on these axes", fontsize=10)
    middle.suptitle("Fused (A), on axes of their own", fontsize=10)
    for ax, step, other in zip(top.subplots(1, 4), dense, fused, strict=True):
        _projection(ax, step, "deepz")
        ax.plot(*_closed(other), color=method_colour("A"), lw=1.2, ls="--", zorder=4)
    for ax, step in zip(middle.subplots(1, 4), fused, strict=True):
        _projection(ax, step, "A")
    _intervals(bottom.subplots())
    return figure


def _projection(ax: Any, step: FirstToken, method: str) -> None:
    """One panel. The outline is drawn above the samples, which would hide it where the set is a line."""
    x, y = _closed(step)
    ax.fill(x, y, color=method_colour(method), alpha=0.15, lw=0)
    ax.scatter(*step.samples[::4].T.numpy(), s=5, color=INK, alpha=0.35, zorder=3, lw=0)
    ax.plot(x, y, color=method_colour(method), lw=1.5, zorder=4)
    ax.set(title=step.title, xlabel=f"{step.axis} 1", ylabel=f"{step.axis} 2")
    ax.locator_params(nbins=4)


def _closed(step: FirstToken) -> tuple[list[float], list[float]]:
    x, y = step.outline.T.tolist()
    return [*x, x[0]], [*y, y[0]]


def _intervals(ax: Any) -> None:
    """A row per method; hollow marks are the paper's printed intervals."""
    found = intervals()
    for y, (name, (low, high)) in enumerate(found.items()):
        colour = INK if name == "sampled" else method_colour(PRINTED.get(name, name))
        ax.barh(y, high - low, 0.6, left=low, color="none" if name in PRINTED else colour, edgecolor=colour, lw=1.2)
        note(ax, f"{low:.2f} to {high:.2f}", (high, y), (5, 0), va="center", fontsize=8.5)
    ax.axvline(0, color=INK, lw=1, ls=":", zorder=0)
    ax.set_yticks(range(len(found)), list(found))
    ax.set(ylim=(len(found) - 0.4, -0.6), xlabel="bounds of $[A]_{11}$; right of the dotted line: proved positive")
    low, high = min(low for low, _ in found.values()), max(high for _, high in found.values())
    ax.set_xlim(low - 0.03 * (high - low), high + 0.14 * (high - low))
    ax.tick_params(axis="y", length=0)
    ax.set_title("The first output, bounded; hollow: as the paper prints it")
