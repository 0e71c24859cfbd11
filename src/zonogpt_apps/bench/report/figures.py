"""The report's pictures. Each is as wide as half a laptop's page, so that its letters can be read on a phone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zonogpt.support.plotting import (
    INK,
    STYLE,
    Rectangle,
    method_colour,
    method_marker,
    radius_label,
    rc_context,
    subplots,
)
from zonogpt_apps.bench.grid import SIZES, TASKS, ModelId
from zonogpt_apps.bench.report import words
from zonogpt_apps.bench.report.colours import LEVELS
from zonogpt_apps.bench.report.summary import Summary
from zonogpt_apps.bench.report.tables import CertifiedRadius, RadiusLine, groups

WIDTH = 5.4  # inches
# The salt makes the names inside an SVG the same in every build.
LOOK = {**STYLE, "font.size": 11.5, "axes.titlesize": 12.5, "svg.hashsalt": "zonogpt"}
RADIUS = radius_label("inf")  # of the benchmark's balls
EDGES = (0.0, 0.03, 0.1, 0.3, 1.0, 100.0)  # of the classes of shares in a picture, in %


@dataclass(frozen=True)
class Drawing:
    name: str
    title: str
    note: str
    svg: bytes
    png: bytes


def draw_all(summary: Summary) -> tuple[Drawing, ...]:
    """The pictures that the rows have data for, without the literal variants, which would be too many lines."""
    summary = without_literal(summary)
    found = [
        _draw("solved", "Proved at each radius",
              "Joined: ours, as a part of the instances that were run. Crosses: the paper's, where its text states a"
              " number, of its 576. Points of one radius lie side by side, so that none hides another.",
              lambda: solved(summary)),
        _draw("runtime", "Seconds per instance",
              "Box: the middle half; line: the median; whiskers: smallest and largest.", lambda: runtime(summary)),
        _draw("cactus", "Proved within a time",
              "How many instances each method proves within so many seconds each. Methods that were run on a subset"
              " end lower for that reason alone; the legend says of how many.", lambda: cactus(summary)),
        _draw("depth", "Certified radius against depth",
              "Geometric mean of the largest proved radius, over the instances that have one. Hollow: some have"
              " none, so that the mean is over the easier ones. A cross at the bottom: nothing proved. The grid ends at"
              " the dotted line. Points of one depth lie side by side.", lambda: depth(summary)),
    ]  # fmt: skip
    if summary.shares:
        at = words.radius(summary.shares[0].radius)
        found.append(
            _draw("ledger", "Where E's margin goes, block by block",
                  f"What each residual block takes from the margin at radius {at}, as a share of all. The input and the"
                  " head take the rest: the table has them.", lambda: ledger(summary))
        )  # fmt: skip
    return tuple(found)


def without_literal(summary: Summary) -> Summary:
    def drawn(method: str) -> bool:
        return not method.endswith("-literal")

    return replace(
        summary,
        rows=tuple(row for row in summary.rows if drawn(row.method)),
        methods=tuple(filter(drawn, summary.methods)),
        radii=tuple(line for line in summary.radii if drawn(line.method)),
        runtimes=tuple(line for line in summary.runtimes if drawn(line.method)),
        certified=tuple(line for line in summary.certified if drawn(line.method)),
    )


def _draw(name: str, title: str, note: str, paint: Callable[[], Any]) -> Drawing:
    with rc_context(LOOK):
        figure = paint()
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Drawing(name, title, note, svg.getvalue(), png.getvalue())


def solved(summary: Summary) -> Any:
    """Proved instances as a share of those run, since methods may have been run on different numbers of them."""
    tasks = list(dict.fromkeys(line.task for line in summary.radii))
    figure, axes = subplots(len(tasks), 1, figsize=(WIDTH, 0.9 + 2.5 * len(tasks)), sharex=True, squeeze=False)
    for ax, task in zip(axes.flat, tasks, strict=True):
        for line in summary.radii:
            if line.task == task:
                _solved_line(ax, line, beside(line.method, summary.methods))
        ax.set(xscale="log", ylim=(-4, 104), ylabel="proved of run, %")
        ax.set_title("all tasks" if task is None else words.TASK_NAMES[task], loc="left")
        _grid(ax)
    axes.flat[-1].set_xlabel(RADIUS)
    _radius_ticks(axes.flat[-1], summary.radii[0].radii)
    _legend(figure, axes.flat)
    return figure


def beside(method: str, methods: Sequence[str], step: float = 0.1) -> float:
    """The factor of a method's x values, so that points which would hide each other lie side by side."""
    return (1 + step) ** (methods.index(method) - (len(methods) - 1) / 2)


def _solved_line(ax: Any, line: RadiusLine, shift: float) -> None:
    colour = method_colour(line.method)
    here = [(r * shift, 100 * p / n) for r, p, n in zip(line.radii, line.proved, line.run, strict=True) if n]
    joined = here[: 1 + next((k for k, (_, part) in enumerate(here) if part == 0), len(here))]  # up to the first zero
    ax.plot(*zip(*joined, strict=True), "-", color=colour, lw=1.4, clip_on=False)
    ax.plot(*zip(*here, strict=True), method_marker(line.method), ms=5, color=colour, label=line.method, clip_on=False)
    stated = [(r * shift, 100 * n / 576) for r, n in zip(line.radii, line.paper, strict=True) if n is not None]
    if stated:
        ax.plot(*zip(*stated, strict=True), "x", color=colour, ms=8, mew=2, label=f"{line.method}, paper", zorder=3)


def runtime(summary: Summary) -> Any:
    shown = summary.runtimes[::-1]
    figure, ax = subplots(figsize=(WIDTH, 1.3 + 0.5 * len(shown)))
    least = min((line.smallest for line in shown if line.smallest > 0), default=1e-3)
    for y, line in enumerate(shown):
        colour = method_colour(line.method)
        low, left, middle, right, high = (
            max(x, least) for x in (line.smallest, line.quarter, line.median, line.three_quarters, line.largest)
        )
        ax.plot([low, high], [y, y], color=colour, lw=1.5)
        for end in (low, high):
            ax.plot([end, end], [y - 0.15, y + 0.15], color=colour, lw=1.5)
        ax.fill([left, right, right, left], [y - 0.28, y - 0.28, y + 0.28, y + 0.28], color=colour, alpha=0.45, lw=0)
        ax.plot([middle, middle], [y - 0.28, y + 0.28], color=colour, lw=3)
    ax.set_yticks(range(len(shown)), [f"{line.method}  ({line.run:,})" for line in shown])
    ax.set(xscale="log", xlabel="seconds per instance (in brackets: instances run)", ylim=(-0.6, len(shown) - 0.4))
    _grid(ax, "x")
    return figure


def cactus(summary: Summary) -> Any:
    figure, ax = subplots(figsize=(WIDTH, 4.2))
    found = groups(summary.rows, lambda row: row.method)
    for method in summary.methods:
        times = sorted(row.seconds for row in found[method] if row.status == "verified")
        label = f"{method}: {len(times):,} of {len(found[method]):,}"
        ax.step([*times[:1], *times], range(len(times) + 1) if times else [], where="post",
                color=method_colour(method), lw=2, label=label)  # fmt: skip
    ax.set(xscale="log", xlabel="seconds per instance", ylabel="instances proved")
    ax.set_ylim(bottom=0)
    _grid(ax)
    _legend(figure, [ax])
    return figure


def depth(summary: Summary) -> Any:
    """A panel per task and size."""
    tasks = [task for task in TASKS if any(line.model.task == task for line in summary.certified)]
    sizes = [size for size in SIZES if any(line.model.size == size for line in summary.certified)]
    figure, axes = subplots(
        len(tasks), len(sizes), figsize=(WIDTH, 1 + 2.5 * len(tasks)), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    radii = summary.radii[0].radii
    for ax, (task, size) in zip(axes.flat, [(task, size) for task in tasks for size in SIZES if size in sizes],
                                strict=True):  # fmt: skip
        for method in summary.methods:
            lines = [c for c in summary.certified if (c.model.task, c.model.size, c.method) == (task, size, method)]
            if lines:
                _depth_line(ax, lines, beside(method, summary.methods), radii[0] / 1.6)
        ax.axhline(radii[-1], color=INK, lw=1, ls=":", alpha=0.5, zorder=0)
        ax.set(ylim=(radii[0] / 2, radii[-1] * 1.5), xscale="log", yscale="log")
        ax.set_title(f"{words.TASK_NAMES[task]}, {size}", loc="left")
        _grid(ax)
    blocks = sorted({c.model.blocks for c in summary.certified})
    axes.flat[-1].set_xticks(blocks, [str(n) for n in blocks])
    axes.flat[-1].minorticks_off()
    for ax in axes[-1]:
        ax.set_xlabel("blocks")
    for ax in axes[:, 0]:
        ax.set_ylabel(RADIUS)
    _legend(figure, axes.flat)
    return figure


def _depth_line(ax: Any, lines: Sequence[CertifiedRadius], shift: float, bottom: float) -> None:
    method = lines[0].method
    look = {"color": method_colour(method), "marker": method_marker(method), "ms": 5, "mew": 1.5}
    found = [(c.model.blocks * shift, c.radius) for c in lines if c.radius]
    ax.plot([x for x, _ in found], [y for _, y in found], "-", lw=1.4, label=method, **look)
    partly = [(c.model.blocks * shift, c.radius) for c in lines if c.radius and c.none]
    ax.plot([x for x, _ in partly], [y for _, y in partly], ls="none", mfc=ax.get_facecolor(), zorder=3, **look)
    nothing = [c.model.blocks * shift for c in lines if not c.radius]
    ax.plot(nothing, [bottom] * len(nothing), "x", color=look["color"], ms=4, mew=1.5)


def ledger(summary: Summary) -> Any:
    """A row per model and a column per GPT-2 block, attention and MLP apart, so that nothing overlaps."""
    tasks = [task for task in TASKS if any(line.model.task == task for line in summary.shares)]
    rows = [[line for line in summary.shares if line.model.task == task] for task in tasks]
    figure, axes = subplots(
        len(tasks), 2, figsize=(WIDTH, 1.1 + sum(0.6 + 0.22 * len(lines) for lines in rows)), sharex=True,
        sharey="row", squeeze=False, height_ratios=[2.5 + len(lines) for lines in rows],
    )  # fmt: skip
    deepest = max((len(line.shares) - 2) // 2 for line in summary.shares)
    for task, lines, pair in zip(tasks, rows, axes, strict=True):
        for ax, (kind, first) in zip(pair, (("attention", 1), ("MLP", 2)), strict=True):
            for y, line in enumerate(lines):
                for k, share in enumerate(line.shares[first:-1:2]):
                    ax.add_patch(Rectangle((k + 0.55, y - 0.45), 0.9, 0.9, color=_level(100 * share), lw=0))
            ax.set(xlim=(0.3, deepest + 0.7), ylim=(len(lines) - 0.3, -0.7))
            ax.set_title(f"{words.TASK_NAMES[task]}, {kind}", loc="left")
            ax.tick_params(axis="y", length=0)
        pair[0].set_yticks(range(len(lines)), [_short(line.model) for line in lines])
    for ax in axes[-1]:
        ax.set_xlabel("block")
        ax.set_xticks(sorted({1, *range(4, deepest + 1, 4)}))
    named = [Rectangle((0, 0), 1, 1, color=colour, lw=0) for colour in LEVELS]
    figure.legend(named, [_range(k) for k in range(len(LEVELS))], frameon=False, fontsize=10, ncols=3,
                  loc="outside lower center", handlelength=1.2, columnspacing=1.0, title="share of all, %")  # fmt: skip
    return figure


def _level(percent: float) -> str:
    return LEVELS[sum(percent >= edge for edge in EDGES[1:-1])]


def _range(k: int) -> str:
    if k == 0:
        return f"below {EDGES[1]:g}"
    return f"{EDGES[k]:g} to {EDGES[k + 1]:g}" if k < len(LEVELS) - 1 else f"above {EDGES[k]:g}"


def _short(model: ModelId) -> str:
    return f"{model.size} {model.blocks}"


def _grid(ax: Any, axis: str = "both") -> None:
    ax.grid(axis=axis, color=INK, alpha=0.08)
    ax.set_axisbelow(True)


def _radius_ticks(ax: Any, radii: Sequence[float]) -> None:
    ax.set_xticks(radii, [words.radius(radius) for radius in radii])
    ax.minorticks_off()


def _legend(figure: Any, axes: Iterable[Any]) -> None:
    """One legend for all axes; it also names lines that only one of them has."""
    pairs = [zip(*ax.get_legend_handles_labels(), strict=True) for ax in axes]
    named = {label: handle for ax in pairs for handle, label in ax}
    figure.legend(named.values(), named.keys(), frameon=False, fontsize=10, loc="outside lower center", ncols=3,
                  handlelength=3.0, columnspacing=1.2)  # fmt: skip
