"""report.html: one file that holds everything and loads nothing from the network."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from zonogpt_apps.bench.report import words
from zonogpt_apps.bench.report.colours import rules
from zonogpt_apps.bench.report.commands import commands
from zonogpt_apps.bench.report.figures import Drawing
from zonogpt_apps.bench.report.hardest import RULE, Hard
from zonogpt_apps.bench.report.inline import inline
from zonogpt_apps.bench.report.inputs import Input, pieces, what_moves
from zonogpt_apps.bench.report.sheets import Headline, Sheet, Value
from zonogpt_apps.bench.report.summary import Summary
from zonogpt_apps.bench.rows import BenchRow

FIGURES = "figures-section"


def page(summary: Summary, heads: Sequence[Headline], sheets: dict[str, Sheet], drawings: Sequence[Drawing]) -> str:
    first = [sheets[name] for name in ("ours", "methods") if name in sheets]
    rest = [sheet for sheet in sheets.values() if sheet not in first]
    sections = [*map(_sheet, first), _figures(drawings), _hardest(summary), *map(_sheet, rest)]
    links = [(sheet.name, sheet.title) for sheet in first]
    links += [(FIGURES, "Figures"), ("hardest", "Hardest inputs")]
    links += [(sheet.name, sheet.title) for sheet in rest]
    links += [("explorer", "All rows"), ("again", "Commands")]
    return Template(_part("page.html")).substitute(
        css=rules() + "\n" + _part("page.css"),
        js=_part("page.js"),
        headlines="\n".join(map(_headline, heads)),
        links=" ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in links),
        sections="\n".join(section for section in sections if section),
        commands=escape(commands(summary)),
        data=in_script(explorer(summary)),
    )


def _part(name: str) -> str:
    return resources.files("zonogpt_apps.bench.report").joinpath(name).read_text(encoding="utf-8").rstrip("\n")


def in_script(value: object) -> str:
    """JSON for inside a <script>: without any "<", so that no HTML parser can see an end of the script in it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _headline(head: Headline) -> str:
    return (
        f'<div class="headline"><strong>{escape(head.number)}</strong><span>{escape(head.label)}</span>'
        f"<small>{escape(head.note)}</small></div>"
    )


def _sheet(sheet: Sheet) -> str:
    def kind(column: int) -> str:
        return ' class="word"' if column in sheet.word_columns else ""

    def line(row: Sequence[Value]) -> str:
        return "<tr>" + "".join(f"<td{kind(k)}{_sort(v)}>{escape(v.text)}</td>" for k, v in enumerate(row)) + "</tr>"

    head = "".join(
        f'<th scope="col"{kind(k)} aria-sort="none"><button type="button">{escape(title)}</button></th>'
        for k, title in enumerate(sheet.columns)
    )
    foot = f"<tfoot>{''.join(map(line, sheet.totals))}</tfoot>" if sheet.totals else ""
    tall = " tall" if len(sheet.rows) > 20 else ""
    return (
        f'<section id="{sheet.name}">\n<h2>{escape(sheet.title)}</h2>\n<p>{escape(sheet.note)}</p>\n'
        f'<div class="scroll{tall}" tabindex="0" role="region" aria-label="{escape(sheet.title)}">\n'
        f'<table class="sortable">\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(map(line, sheet.rows))
        + f"\n</tbody>\n{foot}</table>\n</div>\n</section>"
    )


def _sort(value: Value) -> str:
    return "" if value.sort is None else f' data-sort="{escape(str(value.sort))}"'


def _figures(drawings: Sequence[Drawing]) -> str:
    """The pictures inside the page itself, where their colours follow its theme."""
    shown = [
        f"<figure>{inline(drawing.svg, drawing.name, drawing.title)}"
        f"<figcaption><b>{escape(drawing.title)}.</b> {escape(drawing.note)}</figcaption></figure>"
        for drawing in drawings
    ]
    return (
        f'<section id="{FIGURES}">\n<h2>Figures</h2>\n<div class="figures">\n' + "\n".join(shown) + "\n</div></section>"
    )


def _hardest(summary: Summary) -> str:
    cards = [_hard(hard, summary.inputs.get(hard.row.input, Input())) for hard in summary.hardest]
    return (
        f'<section id="hardest">\n<h2>Hardest inputs for E</h2>\n<p>{escape(RULE)}</p>\n<div class="hardest">\n'
        + "\n".join(cards)
        + "\n</div></section>"
    )


def _number(text: str) -> str:
    return f'<span class="number">{escape(text)}</span>'


def _hard(hard: Hard, shown: Input) -> str:
    row = hard.row
    picture = f'<img class="digit" alt="the input" src="{shown.picture}">' if shown.picture else ""
    largest = _number(words.radius(hard.largest))
    proved = f"proved up to radius {largest}" if hard.largest else "not proved at any radius"
    text = "".join(
        f"<mark>{escape(piece.text)}</mark>" if piece.moved else escape(piece.text)
        for piece in pieces(shown, row.positions)
    )
    quote = f"<blockquote>{text}</blockquote>" if text else ""
    return (
        f'<article class="hard">{picture}<h3>{escape(words.model_name(row.model))}</h3>'
        f"<p>{escape(row.instance)}: {escape(row.claim)}</p><p>{proved}; margin {_number(words.margin(row.margin))} at"
        f" {_number(words.radius(row.radius))}; {escape(what_moves(row, shown))}</p>{quote}</article>"
    )


# The columns of the table of all rows. Words that are repeated are stored once.
WORDS = ("task", "size", "method", "status", "claim", "instance", "input", "reason", "device", "commit", "guarantee")
NUMBERS = ("blocks", "radius", "margin", "seconds", "positions")


def explorer(summary: Summary) -> dict[str, Any]:
    lists: dict[str, dict[str, int]] = {name: {} for name in WORDS}

    def number(name: str, word: str) -> int:
        return lists[name].setdefault(word, len(lists[name]))

    def entry(row: BenchRow) -> list[Any]:
        margin = float(f"{row.margin:.5g}") if math.isfinite(row.margin) else None
        numbers = [row.blocks, row.radius, margin, float(f"{row.seconds:.4g}"), row.positions]
        return [number(name, getattr(row, name)) for name in WORDS] + numbers

    return {
        "columns": [*WORDS, *NUMBERS],
        "rows": [entry(row) for row in summary.rows],
        "words": {name: list(found) for name, found in lists.items()},
        "inputs": {
            name: {"picture": shown.picture, "text": shown.text, "tokens": shown.tokens}
            for name, shown in summary.inputs.items()
        },
        "names": words.STATUS_NAMES | words.TASK_NAMES,
    }
