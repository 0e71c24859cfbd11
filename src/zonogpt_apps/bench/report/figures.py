"""The report's pictures. Each is as wide as half a laptop's page, so that its letters can be read on a phone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zonogpt.support.plotting import INK, STYLE, method_colour, plt
from zonogpt_apps.bench.grid import SIZES, TASKS, ModelId
from zonogpt_apps.bench.report import words
from zonogpt_apps.bench.report.summary import Summary
from zonogpt_apps.bench.report.tables import OURS, BlockShares, RadiusLine, groups

WIDTH = 5.4  # inches
# The salt makes the names inside an SVG the same in every build.
LOOK = {**STYLE, "font.size": 11.5, "axes.titlesize": 12.5, "svg.hashsalt": "zonogpt"}
LINES = {"small": "-", "medium": "--", "tiny": ":"}


@dataclass(frozen=True)
class Drawing:
    name: str
    title: str
    note: str
    svg: bytes
    png: bytes


def draw_all(summary: Summary) -> tuple[Drawing, ...]:
    """Those that the rows say something about. The literal variants are left to the tables: too many lines."""
    summary = without_literal(summary)
    found = [
        _draw("solved", "Proved at each radius",
              "Circles: ours, as a part of the instances that were run. Crosses: the paper's, where its text states a"
              " number, of its 576.", lambda: solved(summary)),
        _draw("runtime", "Seconds per instance",
              "Box: the middle half; line: the median; whiskers: smallest and largest.", lambda: runtime(summary)),
        _draw("cactus", "Proved within a time",
              "How many instances each method proves within so many seconds each. Methods that were run on a subset"
              " end lower for that reason alone; the legend says of how many.", lambda: cactus(summary)),
        _draw("depth", "Certified radius against depth",
              "Geometric mean of the largest proved radius, over the instances that have one. Hollow: some have"
              " none, so that the mean is over the easier ones. A cross at the bottom: nothing proved. The grid ends at"
              " the dotted line.", lambda: depth(summary)),
    ]  # fmt: skip
    if summary.shares:
        at = words.radius(summary.shares[0].radius)
        found.append(
            _draw("ledger", "Where E's margin goes, block by block",
                  f"What each residual block takes from the margin at radius {at}, as a share of all. 0 is the input;"
                  " attention and MLP follow in turn; the last is the head.", lambda: ledger(summary))
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
    with plt.rc_context(LOOK):
        figure = paint()
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
        plt.close(figure)
    return Drawing(name, title, note, svg.getvalue(), png.getvalue())


def solved(summary: Summary) -> Any:
    """A part of what was run, since methods may have been run on different numbers of instances."""
    tasks = list(dict.fromkeys(line.task for line in summary.radii))
    figure, axes = plt.subplots(
        len(tasks), 1, figsize=(WIDTH, 0.9 + 2.5 * len(tasks)), sharex=True, layout="constrained", squeeze=False
    )
    for ax, task in zip(axes.flat, tasks, strict=True):
        for line in summary.radii:
            if line.task == task:
                _solved_line(ax, line)
        ax.set(xscale="log", ylim=(-4, 104), ylabel="proved of run, %")
        ax.set_title("all tasks" if task is None else words.TASK_NAMES[task], loc="left")
        _grid(ax)
    axes.flat[-1].set_xlabel("radius")
    _radius_ticks(axes.flat[-1], summary.radii[0].radii)
    _legend(figure, axes.flat)
    return figure


def _solved_line(ax: Any, line: RadiusLine) -> None:
    colour = method_colour(line.method)
    here = [(r, 100 * p / n) for r, p, n in zip(line.radii, line.proved, line.run, strict=True) if n]
    ax.plot(*zip(*here, strict=True), "o-", color=colour, lw=2, label=line.method, clip_on=False)
    stated = [(r, 100 * n / 576) for r, n in zip(line.radii, line.paper, strict=True) if n is not None]
    if stated:
        ax.plot(*zip(*stated, strict=True), "x", color=colour, ms=8, mew=2, label=f"{line.method}, paper")


def runtime(summary: Summary) -> Any:
    shown = summary.runtimes[::-1]
    figure, ax = plt.subplots(figsize=(WIDTH, 1.3 + 0.5 * len(shown)), layout="constrained")
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
    ax.set(xscale="log", xlabel="seconds per instance", ylim=(-0.6, len(shown) - 0.4))
    _grid(ax, "x")
    return figure


def cactus(summary: Summary) -> Any:
    figure, ax = plt.subplots(figsize=(WIDTH, 4.2), layout="constrained")
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
    tasks = [task for task in TASKS if any(line.model.task == task for line in summary.certified)]
    figure, axes = plt.subplots(
        len(tasks), 1, figsize=(WIDTH, 1 + 2.9 * len(tasks)), sharex=True, sharey=True, layout="constrained",
        squeeze=False,
    )  # fmt: skip
    radii = summary.radii[0].radii
    for ax, task in zip(axes.flat, tasks, strict=True):
        for method in summary.methods:
            for size in SIZES:
                lines = [c for c in summary.certified
                         if (c.model.task, c.model.size, c.method) == (task, size, method)]  # fmt: skip
                if not lines:
                    continue
                colour = method_colour(method)
                ax.plot([c.model.blocks for c in lines if c.radius], [c.radius for c in lines if c.radius],
                        "o" + LINES[size], color=colour, lw=2, label=f"{method}, {size}")  # fmt: skip
                partly = [c for c in lines if c.radius and c.none]
                ax.plot([c.model.blocks for c in partly], [c.radius for c in partly], "o", mfc=ax.get_facecolor(),
                        mec=colour, mew=1.5, zorder=3)  # fmt: skip
                nothing = [c.model.blocks for c in lines if not c.radius]
                ax.plot(nothing, [radii[0] / 1.6] * len(nothing), "x", color=colour, mew=2)
        ax.axhline(radii[-1], color=INK, lw=1, ls=":", alpha=0.5)
        ax.set(ylim=(radii[0] / 2, radii[-1] * 1.5), xscale="log", yscale="log", ylabel="radius")
        ax.set_title(words.TASK_NAMES[task], loc="left")
        _grid(ax)
    blocks = sorted({c.model.blocks for c in summary.certified})
    axes.flat[-1].set_xticks(blocks, [str(n) for n in blocks])
    axes.flat[-1].minorticks_off()
    axes.flat[-1].set_xlabel("blocks")
    _legend(figure, axes.flat)
    return figure


def ledger(summary: Summary) -> Any:
    tasks = [task for task in TASKS if any(line.model.task == task for line in summary.shares)]
    figure, axes = plt.subplots(
        len(tasks), 1, figsize=(WIDTH, 0.8 + 3.2 * len(tasks)), layout="constrained", squeeze=False
    )
    for ax, task in zip(axes.flat, tasks, strict=True):
        lines = [line for line in summary.shares if line.model.task == task]
        for line, colour in zip(lines, _depth_colours(lines), strict=True):
            blocks = [block for block, share in enumerate(line.shares) if share > 0]
            ax.plot(blocks, [100 * line.shares[block] for block in blocks], "o" + LINES[line.model.size], ms=3,
                    color=colour, lw=1.6, label=_short(line.model))  # fmt: skip
        ax.set(yscale="log", ylabel="share of the margin taken, %", xlabel="residual block")
        ax.set_title(f"{words.TASK_NAMES[task]}, method {OURS}", loc="left")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(frameon=False, fontsize=9.5, loc="center left", bbox_to_anchor=(1, 0.5))
        _grid(ax)
    return figure


def _depth_colours(lines: Sequence[BlockShares]) -> list[Any]:
    """The deeper, the darker."""
    depths = sorted({line.model.blocks for line in lines})
    return [plt.cm.viridis_r(0.15 + 0.85 * depths.index(line.model.blocks) / len(depths)) for line in lines]


def _short(model: ModelId) -> str:
    return f"{model.size} {model.blocks}"


def _grid(ax: Any, axis: str = "both") -> None:
    ax.grid(axis=axis, color=INK, alpha=0.08)
    ax.set_axisbelow(True)


def _radius_ticks(ax: Any, radii: Sequence[float]) -> None:
    ax.set_xticks(radii, [words.radius(radius) for radius in radii])
    ax.minorticks_off()


def _legend(figure: Any, axes: Iterable[Any]) -> None:
    """One for all axes: a line that only one of them has is named too."""
    pairs = [zip(*ax.get_legend_handles_labels(), strict=True) for ax in axes]
    named = {label: handle for ax in pairs for handle, label in ax}
    figure.legend(named.values(), named.keys(), frameon=False, fontsize=10, loc="outside lower center", ncols=3,
                  handlelength=3.0, columnspacing=1.2)  # fmt: skip
