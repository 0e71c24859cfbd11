"""Little tables for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Text on the left, numbers on the right; every cell is text, whatever is in it. No headings, no header row."""
    above = f"<caption style='text-align:left'>{escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th style='text-align:left'>{escape(heading)}</th>" for heading in headings)
    head = f"<thead><tr>{head}</tr></thead>" if headings else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table style='{STYLE}'>{above}{head}<tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    shown = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"<td style='text-align:{'right' if number else 'left'}'>{escape(shown)}</td>"


def marked(tokens: Sequence[str], moved: Sequence[int]) -> str:
    """A text, with the tokens at these positions marked."""
    at = set(moved)
    return "".join(f"<mark>{escape(token)}</mark>" if k in at else escape(token) for k, token in enumerate(tokens))
