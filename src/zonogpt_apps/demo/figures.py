"""Pictures of the demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zonogpt.support.plotting import INK, STYLE, method_colour, plt, save
from zonogpt_apps.demo.study import METHODS, RADII, Study
from zonogpt_apps.demo.worked_example import (
    FirstToken,
    deepz_projections,
    fused_projections,
    intervals,
)

STEP_COLOURS = {
    "input": "#cfc7db",
    "layernorm": "#5b2a86",
    "scores": "#3d8bd4",
    "softmax": "#0b6e4f",
    "product": "#e08e0b",
    "gelu": "#c0392b",
}


def draw_study(study: Study, file: Path) -> None:
    """Digits with their certified radius, margin against radius per method, and where E's margin goes."""
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(13, 8.2), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.15])
        _digits(top, study)
        left, middle, right = bottom.subplots(1, 3, width_ratios=[1, 1.15, 1.15])
        _proved(left, study)
        _margins(middle, study)
        _ledger(right, study)
        save(figure, file)


def _digits(figure: Any, study: Study) -> None:
    figure.suptitle("The largest radius at which E proves that no pixel change alters the answer", weight="bold")
    n = len(study.labels)
    axes = figure.subplots(2, (n + 1) // 2, squeeze=False)
    for digit, ax in enumerate(axes.flat[:n]):
        radius = study.largest_radius("E", digit)
        ax.imshow(1 - study.images[digit].numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set(visible=True, linewidth=2.5, color=plt.cm.viridis(0.15 + 0.8 * _rank(radius)))
        ax.set_xlabel(f"{int(study.labels[digit])}: {radius:g}" if radius else f"{int(study.labels[digit])}: none")


def _rank(radius: float) -> float:
    return (RADII.index(radius) + 1) / len(RADII) if radius else 0.0


def _proved(ax: Any, study: Study) -> None:
    n = len(study.labels)
    for method in METHODS:
        ax.plot(RADII, [study.proved(method, r) for r in RADII], "o-", color=method_colour(method), label=method, lw=2)
    ax.set(xscale="log", xlabel="radius", ylabel=f"digits proved, of {n}", ylim=(-0.5, n + 0.8), title="Proved")
    ax.set_xlim(right=8 * RADII[-1])  # room for the legend beside the lines
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.legend(frameon=False, loc="upper right")


def _margins(ax: Any, study: Study) -> None:
    for method in METHODS:
        values = [max(0.0, study.median_margin(method, r)) for r in RADII]  # a margin below 0 certifies nothing
        ax.plot(RADII, values, "o-", color=method_colour(method), label=method, lw=2, clip_on=False)
    ax.set(xscale="log", xlabel="radius", ylabel="certified margin to the nearest rival", title="Median margin")
    ax.set_ylim(bottom=0)


def _ledger(ax: Any, study: Study) -> None:
    """What each step of method E takes from the margin, block by block, the mean over digits."""
    radius = RADII[-2]
    ledgers = [r.ledger for (m, rad, _), r in study.results.items() if m == "E" and rad == radius]
    blocks = ledgers[0].blocks()
    kinds = [next(e.kind for e in ledgers[0].entries if e.block == b) for b in blocks]
    bottom = dict.fromkeys(blocks, 0.0)
    for step, colour in STEP_COLOURS.items():
        heights = []
        for b in blocks:
            widths = [e.width for ledger in ledgers for e in ledger.entries if (e.block, e.step) == (b, step)]
            heights.append(sum(widths) / len(ledgers))
        ax.bar(blocks, heights, bottom=list(bottom.values()), color=colour, label=step, width=0.7)
        bottom = {b: bottom[b] + height for b, height in zip(blocks, heights, strict=True)}
    ax.set_xticks(
        blocks, [f"{b}\n{kind}" if 0 < b < blocks[-1] else kind for b, kind in zip(blocks, kinds, strict=True)]
    )
    ax.set(ylabel="taken from the margin", title=f"E, radius {radius:g}: where the margin goes")
    ax.set_ylim(top=1.08 * max(bottom.values()))
    ax.legend(frameon=False)


def draw_example(file: Path) -> None:
    """The paper's figure: first-token projections operator by operator and fused, and what is proved in the end."""
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(16.5, 7), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=[4, 1.25])
        axes = left.subplots(2, 4)
        for row, (steps, colour) in zip(
            axes,
            ((deepz_projections(), method_colour("deepz")), (fused_projections(), method_colour("A"))),
            strict=True,
        ):
            for ax, step in zip(row, steps, strict=True):
                _projection(ax, step, colour)
        axes[0, 0].annotate("operator by operator (deepz)", (0, 1.2), xycoords="axes fraction", weight="bold")
        axes[1, 0].annotate("fused (A)", (0, 1.2), xycoords="axes fraction", weight="bold")
        _intervals(right.subplots())
        figure.suptitle("The paper's example: first token, samples inside the certified sets", weight="bold")
        save(figure, file)


def _projection(ax: Any, step: FirstToken, colour: str) -> None:
    outline = step.outline.numpy()
    ax.fill(outline[:, 0], outline[:, 1], color=colour, alpha=0.15)
    ax.plot([*outline[:, 0], outline[0, 0]], [*outline[:, 1], outline[0, 1]], color=colour, lw=1.5)
    ax.scatter(*step.samples[::4].T.numpy(), s=3, color=INK, alpha=0.5, zorder=3)
    ax.set(title=step.title, xlabel=f"{step.axis} 1", ylabel=f"{step.axis} 2")


def _intervals(ax: Any) -> None:
    for y, (name, (low, high)) in enumerate(intervals().items()):
        colour = INK if name == "sampled" else "#b9c4cc" if name.startswith("paper") else method_colour(name)
        ax.plot([low, high], [y, y], color=colour, lw=6, solid_capstyle="butt")
    names = list(intervals())
    ax.axvline(0, color=INK, lw=1, ls=":")
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.5, -0.5), title="$[A]_{11}$: positive?")
