"""bench report: from rows to files. The same rows give the same bytes, wherever and whenever."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zonogpt.support.files import make_folder, write_whole
from zonogpt_apps.bench.report.figures import draw_all
from zonogpt_apps.bench.report.markdown import FIGURES, markdown
from zonogpt_apps.bench.report.page import page
from zonogpt_apps.bench.report.reading import load_rows
from zonogpt_apps.bench.report.sheets import all_sheets, headlines
from zonogpt_apps.bench.report.summary import summarise


@dataclass(frozen=True)
class ReportFiles:
    html: Path
    markdown: Path
    figures: tuple[Path, ...]


def build_report(rows: Path, instances: Path, out: Path) -> ReportFiles:
    """OUT/report.html, OUT/report.md and OUT/figures from ROWS/*.jsonl. Raises OptionError where rows do not fit."""
    summary = summarise(load_rows(rows, instances))
    heads, sheets, drawings = headlines(summary), all_sheets(summary), draw_all(summary)
    make_folder(out / FIGURES)
    figures = []
    for drawing in drawings:
        for kind, content in (("svg", drawing.svg), ("png", drawing.png)):
            figures.append(out / FIGURES / f"{drawing.name}.{kind}")
            write_whole(figures[-1], content)
    write_whole(out / "report.md", markdown(summary, heads, sheets, drawings))
    write_whole(out / "report.html", page(summary, heads, sheets, drawings))
    return ReportFiles(out / "report.html", out / "report.md", tuple(figures))
