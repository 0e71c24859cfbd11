"""The report's tables as text with a value to sort by: written once, shown as Markdown and on the page."""

from __future__ import annotations

from dataclasses import dataclass

from zonogpt_apps.bench.report import paper, words
from zonogpt_apps.bench.report.reading import method_place
from zonogpt_apps.bench.report.summary import Summary
from zonogpt_apps.bench.report.tables import OURS, BlockShares, Cell, Count, ModelLine, Ours, Total


@dataclass(frozen=True)
class Value:
    text: str
    sort: float | str | None = None  # None: sorts by the text; an empty one sorts last

    @staticmethod
    def number(value: float, text: str | None = None) -> Value:
        return Value(f"{value:,}" if text is None else text, value)


EMPTY = Value(words.NOTHING, "")


@dataclass(frozen=True)
class Sheet:
    name: str  # of its place on the page
    title: str
    note: str
    columns: tuple[str, ...]
    word_columns: tuple[int, ...]  # the others are numbers
    rows: tuple[tuple[Value, ...], ...]
    totals: tuple[tuple[Value, ...], ...] = ()


def all_sheets(summary: Summary) -> dict[str, Sheet]:
    """The tables by name, without those that the rows have no data for."""
    found = (
        ours(summary), methods(summary), others(summary), radii(summary), runtimes(summary), certified(summary),
        ledger(summary), origins(summary), paper_models(),
    )  # fmt: skip
    return {sheet.name: sheet for sheet in found if sheet.rows}


def ours(summary: Summary) -> Sheet:
    pairs = [(line, cell) for line in summary.models for cell in line.cells if cell.method == OURS]
    return Sheet(
        name="ours",
        title="Method E, model by model",
        note=(
            f"Every count says of how many. The paper's columns are its best method, {paper.BEST}, on {paper.INSTANCES}"
            " instances of its own model of this shape; “faster” is its time over ours, only where we ran all"
            f" {paper.INSTANCES} too. Claims about the same input set share one propagation, and its seconds."
            " Relative radius: the largest l2 change over the l2 norm of what moves, from the smallest radius to the"
            " largest. (fallback): not trained with the paper's loss for this task."
        ),
        columns=(
            "Model", *PROVED, f"Paper's {paper.BEST}, solved of {paper.INSTANCES}",
            f"Paper's {paper.BEST}, seconds", "Faster", *NOT_PROVED, "Accuracy", "Training", "Relative radius",
        ),
        word_columns=(0, 11),
        rows=tuple(_ours_row(line, cell, k) for k, (line, cell) in enumerate(pairs)),
        totals=tuple(_ours_total(part) for part in (*summary.ours_by_task, summary.ours) if part is not None),
    )  # fmt: skip


def _ours_row(line: ModelLine, cell: Cell, k: int) -> tuple[Value, ...]:
    theirs = paper.RESULTS.get((cell.model, paper.BEST))
    low, high = line.relative_radius
    faster = theirs.seconds / cell.count.seconds if theirs and cell.whole and cell.count.seconds else None
    return (
        Value(words.model_name(line.model), k),
        *_proved(cell.count),
        *_theirs(theirs),
        EMPTY if faster is None else Value.number(faster, words.ratio(faster)),
        *_not_proved(cell.count),
        _accuracy(line),
        Value(line.training + (" (fallback)" if line.fallback else "")),
        Value.number(high, f"{words.radius(low)} – {words.radius(high)}"),
    )


PROVED = ("Proved of run", "Share", "Seconds")
NOT_PROVED = ("Falsified", "Unknown", "Timeout")


def _proved(count: Count) -> tuple[Value, ...]:
    part = count.proved / count.run if count.run else 0.0
    return (
        Value.number(count.proved, words.proved_of(count)),
        Value.number(part, words.percent(part)),
        Value.number(count.seconds, words.seconds(count.seconds)),
    )


def _not_proved(count: Count) -> tuple[Value, ...]:
    return Value.number(count.falsified), Value.number(count.unknown), Value.number(count.timeout)


def _accuracy(line: ModelLine) -> Value:
    return Value.number(line.accuracy, words.percent(line.accuracy))


def _theirs(solved: paper.Solved | None) -> tuple[Value, Value]:
    if solved is None:
        return EMPTY, EMPTY
    return Value.number(solved.solved), Value.number(solved.seconds, f"{solved.seconds:,.1f}")


def _ours_total(ours: Ours) -> tuple[Value, ...]:
    """The line of a total. The paper's sum is shown only if every line above was run whole, so that both sums
    count the same."""
    theirs, faster = (ours.speed.paper, ours.speed.ratio) if ours.speed and ours.all_whole else (None, None)
    task = "" if ours.task is None else f" of {words.TASK_NAMES[ours.task]}"
    compared = *_theirs(theirs), Value(words.ratio(faster))
    return (
        Value(f"All {ours.models}{task}"),
        *_proved(ours.count),
        *compared,
        *_not_proved(ours.count),
        *[Value("")] * 3,
    )


def methods(summary: Summary) -> Sheet:
    """The table of methods. It also lists those of the paper that were not run, so that none seems forgotten."""
    known = {total.method: total for total in summary.totals}
    names = sorted({*known, *paper.METHODS, *paper.OUT_OF_MEMORY}, key=method_place)
    return Sheet(
        name="methods",
        title="All methods",
        note=(
            "Our counts are over exactly the instances that a method was run on, and “E there” is method E on the same"
            f" ones. The paper's are over all {paper.INSTANCES * 16:,} of its own; compare them with ours only where"
            " the third column says 16 of 16 models whole. “Rounding”: whether what the proofs round themselves was"
            " bounded, or only estimated, when they were run."
        ),
        columns=(
            "Method", "Rounding", "Models run whole", *PROVED, "E there, proved", "E there, seconds",
            f"Paper, solved of {paper.INSTANCES * 16:,}", "Paper, seconds", *NOT_PROVED,
        ),
        word_columns=(0, 1, 2),
        rows=tuple(_method_row(name, known.get(name), k) for k, name in enumerate(names)),
    )  # fmt: skip


def _method_row(method: str, total: Total | None, k: int) -> tuple[Value, ...]:
    theirs = _theirs(paper.TOTALS.get(method))
    if method in paper.OUT_OF_MEMORY:
        theirs = Value("out of memory", ""), EMPTY
    if total is None:
        return (Value(method, k), EMPTY, Value("not run", ""), *[EMPTY] * 5, *theirs, *[EMPTY] * 3)
    whole = f"{total.whole} of {total.models}" + ("" if total.complete else " (subset)")
    return (Value(method, k), Value(total.guarantee), Value(whole, total.whole), *_proved(total.count),
            *_same(total.count, total.ours), *theirs, *_not_proved(total.count))  # fmt: skip


def _same(count: Count, ours: Count) -> tuple[Value, Value]:
    """The columns of E on exactly the instances of another method."""
    if ours.run == 0:
        return EMPTY, EMPTY
    proved = f"{ours.proved:,}" if ours.run == count.run else words.proved_of(ours)
    return Value.number(ours.proved, proved), Value.number(ours.seconds, words.seconds(ours.seconds))


def others(summary: Summary) -> Sheet:
    pairs = [(line, cell) for line in summary.models for cell in line.cells if cell.method != OURS]
    return Sheet(
        name="others",
        title="The other methods, model by model",
        note=(
            "As above: ours over the instances that were run, with E on the same ones; the paper's over"
            f" {paper.INSTANCES} of its own."
        ),
        columns=(
            "Model", "Method", *PROVED, "E there, proved", "E there, seconds",
            f"Paper, solved of {paper.INSTANCES}", "Paper, seconds", *NOT_PROVED, "Accuracy",
        ),
        word_columns=(0, 1),
        rows=tuple(
            (
                Value(words.model_name(cell.model), k), Value(cell.method, method_place(cell.method)[0]),
                *_proved(cell.count), *_same(cell.count, cell.ours),
                *_theirs(cell.paper), *_not_proved(cell.count), _accuracy(line),
            )
            for k, (line, cell) in enumerate(pairs)
        ),
    )  # fmt: skip


def radii(summary: Summary) -> Sheet:
    rows: list[tuple[Value, ...]] = []
    for line in summary.radii:
        task = "all" if line.task is None else words.TASK_NAMES[line.task]
        counts = zip(line.proved, line.run, strict=True)
        rows.append((
            Value(line.method, len(rows)), Value(task),
            *(Value.number(proved, f"{proved:,} of {run:,}") if run else EMPTY for proved, run in counts),
        ))  # fmt: skip
        if any(stated is not None for stated in line.paper):
            stated = [EMPTY if n is None else Value.number(n, f"{n} of 576") for n in line.paper]
            rows.append((Value(f"{line.method}, paper", len(rows)), Value(task), *stated))
    return Sheet(
        name="radii",
        title="Proved at each radius",
        note="Proved of run. The paper's counts are those that its text states.",
        columns=("Method", "Task", *(words.radius(radius) for radius in summary.radii[0].radii)),
        word_columns=(0, 1),
        rows=tuple(rows),
    )


def runtimes(summary: Summary) -> Sheet:
    return Sheet(
        name="runtimes",
        title="Seconds per instance",
        note=(
            "Claims about the same input set share one propagation, and its time. The paper's are the times that its"
            f" text names, on one {paper.DEVICE}."
        ),
        columns=("Method", "Devices", "Run", "Smallest", "Quarter", "Median", "Three quarters", "Largest", "Paper"),
        word_columns=(0, 1),
        rows=tuple(
            (
                Value(line.method, k), Value(", ".join(origin.devices)), Value.number(line.run),
                *(Value.number(x, words.seconds(x)) for x in
                  (line.smallest, line.quarter, line.median, line.three_quarters, line.largest)),
                Value(paper.TYPICAL_SECONDS.get(line.method, words.NOTHING)),
            )
            for k, (line, origin) in enumerate(zip(summary.runtimes, summary.origins, strict=True))
        ),
    )  # fmt: skip


def certified(summary: Summary) -> Sheet:
    return Sheet(
        name="certified",
        title="Certified radius",
        note=(
            "For each instance the largest radius of the grid that is proved. The mean is geometric, over the instances"
            " that have one; “at the top” are proved at the largest radius, so that their own may lie beyond the grid."
        ),
        columns=("Model", "Method", "Instances", "None proved", "At the top", "Mean radius"),
        word_columns=(0, 1),
        rows=tuple(
            (
                Value(words.model_name(line.model), k), Value(line.method, method_place(line.method)[0]),
                Value.number(line.instances), Value.number(line.none), Value.number(line.at_top),
                EMPTY if line.radius is None else Value.number(line.radius, words.radius(line.radius)),
            )
            for k, line in enumerate(summary.certified)
        ),
    )  # fmt: skip


def ledger(summary: Summary) -> Sheet:
    at = f" at radius {words.radius(summary.shares[0].radius)}" if summary.shares else ""
    return Sheet(
        name="ledger",
        title="Where E's margin goes",
        note=(
            f"Shares of all that is taken from the margin{at}, mean over propagations. The input's share is"
            " what the model's linear part loses over the ball; the rest is what the bounds of each block add."
        ),
        columns=("Model", "Largest residual block", "Its share", "Input", "All attention", "All MLP", "Head",
                 "Taken from the margin", "Propagations"),
        word_columns=(0, 1),
        rows=tuple(_ledger_row(line, k) for k, line in enumerate(summary.shares)),
    )  # fmt: skip


def _ledger_row(line: BlockShares, k: int) -> tuple[Value, ...]:
    last = len(line.shares) - 1
    inner = range(1, last)
    largest = max(inner, key=lambda block: line.shares[block], default=0)
    parts = (
        line.shares[largest], line.shares[0], sum(line.shares[b] for b in inner if b % 2),
        sum(line.shares[b] for b in inner if b % 2 == 0), line.shares[last],
    )  # fmt: skip
    return (
        Value(words.model_name(line.model), k),
        Value(words.block_name(largest, last)),
        *(Value.number(part, words.share(part)) for part in parts),
        Value.number(line.taken, f"{line.taken:.3g}"),
        Value.number(line.propagations),
    )


def origins(summary: Summary) -> Sheet:
    return Sheet(
        name="origins",
        title="Where the rows come from",
        note=settings_note(summary),
        columns=("Method", "Devices", "Numbers", "Commits", "First row", "Last row"),
        word_columns=tuple(range(6)),
        rows=tuple(
            (Value(o.method, k), Value(", ".join(o.devices)), Value(", ".join(o.dtypes)), Value(", ".join(o.commits)),
             Value(o.first), Value(o.last))
            for k, o in enumerate(summary.origins)
        ),
    )  # fmt: skip


def settings_note(summary: Summary) -> str:
    if not summary.settings:
        return "The directory of the rows does not say with which settings they were run."
    said = {name: "none" if value is None else str(value) for name, value in summary.settings.items()}
    return "Settings of the run: " + "; ".join(f"{name}: {value}" for name, value in said.items()) + "."


def paper_models() -> Sheet:
    """The paper's first table."""
    return Sheet(
        name="paper",
        title="The paper's models",
        note=f"{paper.INSTANCES} instances for each number of blocks, {paper.INSTANCES * 16:,} in all.",
        columns=("Task", "Size", "Blocks", "Width", "Heads", "Parameters", "Instances"),
        word_columns=(0, 1, 2),
        rows=tuple(
            (Value(words.TASK_NAMES[g.task]), Value(f"GPT-2 {g.size}"), Value(", ".join(map(str, g.blocks)), k),
             Value.number(g.width), Value.number(g.heads), Value(g.parameters, k), Value.number(g.instances))
            for k, g in enumerate(paper.GROUPS)
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class Headline:
    number: str
    label: str
    note: str


def headlines(summary: Summary) -> tuple[Headline, ...]:
    """The numbers at the top. Ratios to the paper are only over models that were run whole."""
    total = summary.ours
    if total is None:
        return (Headline(f"{len(summary.rows):,}", "rows", "none of them of method E"),)
    devices = ", ".join(next(o.devices for o in summary.origins if o.method == OURS))
    commits = ", ".join(next(o.commits for o in summary.origins if o.method == OURS))
    speed = total.speed
    if speed is None:
        against = f"no model of the paper was run whole, so there is nothing to compare with its {paper.BEST}"
        return (
            Headline(words.proved_of(total.count), "proved by E", against),
            Headline(f"{words.seconds(total.count.seconds)} s", "time of E", _models(total.models)),
            Headline(devices, "device", f"commit {commits}"),
        )
    ours = f"{speed.proved:,} of {speed.instances:,}"
    theirs = f"the paper's {paper.BEST}: {speed.paper.solved:,} of {speed.instances:,}"
    where = f"on {_models(len(speed.models))}" + ("" if total.all_whole else " that were run whole")
    more = "" if total.all_whole else f"; with the others E proved {words.proved_of(total.count)}"
    return (
        Headline(ours, f"proved by E {where}", theirs + more),
        Headline(f"{words.seconds(speed.seconds)} s", f"time of E {where}",
                 f"the paper's {paper.BEST}: {speed.paper.seconds:,.1f} s"),
        Headline(words.ratio(speed.ratio), f"time of the paper's {paper.BEST} over time of E",
                 f"on one {paper.DEVICE}, ours on {', '.join(speed.devices)}: not the same machine"),
        Headline(devices, "device", f"commit {commits}"),
    )  # fmt: skip


def _models(count: int) -> str:
    return f"{count} model{'' if count == 1 else 's'}"
