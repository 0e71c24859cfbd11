"""report.md: the numbers and pictures, for reading in a repository."""

from __future__ import annotations

from collections.abc import Sequence

from zonogpt_apps.bench.report import words
from zonogpt_apps.bench.report.commands import commands
from zonogpt_apps.bench.report.figures import Drawing
from zonogpt_apps.bench.report.hardest import RULE, Hard
from zonogpt_apps.bench.report.inputs import Input, Piece, pieces, what_moves
from zonogpt_apps.bench.report.sheets import Headline, Sheet, Value
from zonogpt_apps.bench.report.summary import Summary

FIGURES = "figures"
AFTER = {"radii": ("solved",), "runtimes": ("runtime", "cactus"), "certified": ("depth",), "ledger": ("ledger",)}


def markdown(summary: Summary, heads: Sequence[Headline], sheets: dict[str, Sheet], drawings: Sequence[Drawing]) -> str:
    parts = ["# GPT-2 benchmark", "\n".join(f"- **{head.number}** {head.label} ({head.note})" for head in heads)]
    by_name = {drawing.name: drawing for drawing in drawings}
    for name, sheet in sheets.items():
        parts += [f"## {sheet.title}", sheet.note, table(sheet)]
        parts += [_figure(by_name[figure]) for figure in AFTER.get(name, ()) if figure in by_name]
    if summary.hardest:
        parts += ["## Hardest inputs for E", RULE, "\n".join(_hard(hard, summary.inputs) for hard in summary.hardest)]
    parts += ["## How to make this again", "```sh\n" + commands(summary) + "\n```"]
    return "\n\n".join(parts) + "\n"


def table(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["---" if k in sheet.word_columns else "---:" for k in range(len(sheet.columns))]
    rows = [line([_plain(value.text) for value in row]) for row in sheet.rows]
    totals = [line([_bold(value) for value in total]) for total in sheet.totals]
    return "\n".join([line(sheet.columns), line(rule), *rows, *totals])


def _bold(value: Value) -> str:
    return f"**{_plain(value.text)}**" if value.text else ""


def _figure(drawing: Drawing) -> str:
    return f"![{drawing.title}]({FIGURES}/{drawing.name}.svg)\n\n*{drawing.title}.* {drawing.note}"


def _hard(hard: Hard, inputs: dict[str, Input]) -> str:
    row, shown = hard.row, inputs.get(hard.row.input, Input())
    proved = f"proved up to radius {words.radius(hard.largest)}" if hard.largest else "not proved at any radius"
    text = "".join(map(_piece, pieces(shown, row.positions)))
    return (
        f"- {words.model_name(row.model)}, `{row.input}`, {row.claim.replace('>', 'over')}: {proved}, margin"
        f" {words.margin(row.margin)} at {words.radius(row.radius)}; {what_moves(row, shown)}."
        + (f" “{text.strip()}”" if text else "")
    )


def _piece(piece: Piece) -> str:
    return f"**{_plain(piece.text)}**" if piece.moved else _plain(piece.text)


def _plain(text: str) -> str:
    """The text with everything escaped that Markdown or HTML would read as markup."""
    for sign in "\\`*_|[]":
        text = text.replace(sign, "\\" + sign)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
