"""The picture of the digits. Each method has one colour in all of its parts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from zonogpt.methods.ledger import LedgerEntry
from zonogpt.support.plotting import (
    INK,
    STYLE,
    Picture,
    count_table,
    log_ticks,
    method_colour,
    method_marker,
    note,
    radius_label,
    rc_context,
    save,
    short,
)
from zonogpt_apps.demo.study import METHODS, RADII, SEARCHED, TOLERANCE, Study

SHOWN = tuple(method for method in METHODS if not method.endswith("-literal"))  # the table has them all
LEDGER_RADIUS = RADII[-2]
STEPS = ("input", "layernorm", "scores", "softmax", "product", "gelu", "rounding")
NAMES = {"attention": "attention", "mlp": "MLP", "layernorm": "LayerNorm", "gelu": "GELU"}


def draw_study(study: Study, file: Path) -> None:
    with rc_context(STYLE):
        save(study_figure(study), file)


def study_figure(study: Study) -> Any:
    """Digits with their searched radius; proved counts and lost margin per method; where E's margin goes."""
    figure: Any = Picture(figsize=(10.4, 7.9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.3], hspace=0.03)
    _digits(top, study)
    left, middle, right = bottom.subplots(1, 3, width_ratios=[1, 1.12, 1.05])
    _proved(left, study)
    _losses(middle, study)
    _ledger(right, study)
    return figure


def _digits(figure: Any, study: Study) -> None:
    """The digits, each above its radius: a bar on a scale that all digits share, and a number."""
    figure.suptitle(
        f"How far every pixel may move: the largest radius (l∞) that {SEARCHED} proves, found to {TOLERANCE:.0%}",
        weight="bold", fontsize=12,
    )  # fmt: skip
    n, most = len(study.labels), max(study.largest) or 1.0
    columns = (n + 1) // 2
    axes = figure.subplots(4, columns, squeeze=False, height_ratios=[5, 1, 5, 1])
    for ax in axes.flat:
        ax.set_axis_off()
    for digit, radius in enumerate(study.largest):
        row, column = divmod(digit, columns)
        picture, scale = axes[2 * row, column], axes[2 * row + 1, column]
        picture.set_anchor("S")
        picture.imshow(1 - study.images[digit].numpy(), cmap="gray", vmin=0, vmax=1)
        scale.set(xlim=(0, 1), ylim=(0, 1))
        scale.barh(0.78, 1.0, 0.32, color=INK, alpha=0.1)
        scale.barh(0.78, radius / most, 0.32, color=method_colour(SEARCHED))
        scale.text(0.5, 0.5, short(radius) if radius else "none", ha="center", va="top")


def _proved(ax: Any, study: Study) -> None:
    counts = [[study.proved(method, radius) for radius in RADII] for method in SHOWN]
    count_table(ax, SHOWN, [short(radius) for radius in RADII], counts, len(study.labels))
    ax.set(xlabel=radius_label("inf"), title=f"Digits proved, of {len(study.labels)}")


def _losses(ax: Any, study: Study) -> None:
    """The lost margins, on a logarithmic axis to set methods apart; a line ends where most digits were given up."""
    clean = sorted(study.clean)[(len(study.clean) - 1) // 2]
    for method in SHOWN:
        points = [(radius, study.median_loss(method, radius)) for radius in RADII]
        points = [(radius, loss) for radius, loss in points if math.isfinite(loss)]
        ax.plot(*zip(*points, strict=True), "-", marker=method_marker(method), color=method_colour(method), lw=1.8,
                label=method)  # fmt: skip
        note(ax, method, points[-1], (7, -5), va="center", weight="bold", color=method_colour(method))
    losses = [y for line in ax.lines for y in line.get_ydata()]
    log_ticks(ax.xaxis, RADII[0] / 1.3, RADII[-1] * 1.9)
    log_ticks(ax.yaxis, min(losses) / 1.5, max([*losses, clean]) * 2)
    ax.axhline(clean, color=INK, lw=1, ls=":")
    note(ax, f"clean margin {clean:.3g}", (ax.get_xlim()[1], clean), (0, 4), ha="right", fontsize=8.5)
    ax.set(xlabel=radius_label("inf"), ylabel="logits, median over digits", title="Margin lost to the bounds")
    ax.grid(color=INK, alpha=0.08)


def _ledger(ax: Any, study: Study) -> None:
    """What each step of method E takes from the margin, as a mean over the digits, from the input to the head."""
    ledgers = [r.ledger for (method, radius, _), r in study.results.items() if (method, radius) == ("E", LEDGER_RADIUS)]
    entries = sorted((e for ledger in ledgers for e in ledger.entries), key=_place)
    taken: dict[str, float] = {}
    for entry in entries:
        name = _step_name(entry)
        taken[name] = taken.get(name, 0.0) + entry.width / len(ledgers)
    ax.barh(list(taken), list(taken.values()), color=method_colour("E"), height=0.7)
    for y, width in enumerate(taken.values()):
        note(ax, short(width), (width, y), (3, 0), va="center", fontsize=9)
    ax.set(ylim=(len(taken) - 0.4, -0.6), xlim=(0, 1.3 * max(taken.values())), xlabel="logits, mean over digits")
    ax.set_title(f"Where E loses it, at radius {short(LEDGER_RADIUS)}", loc="right")
    ax.tick_params(axis="y", length=0)


def _place(entry: LedgerEntry) -> tuple[bool, int, int]:
    """A sort key: the order in which the network computes, with rounding last."""
    return entry.step == "rounding", entry.block, STEPS.index(entry.step)


def _step_name(entry: LedgerEntry) -> str:
    """The name of a step. Attention and MLP alternate after the input; rounding, tiny everywhere, is one step."""
    if entry.step == "rounding" or entry.block == 0:
        return entry.step
    where = entry.kind if entry.kind == "head" else f"{NAMES[entry.kind]} {(entry.block + 1) // 2}"
    return f"{where}: {NAMES.get(entry.step, entry.step)}"
