"""A picture as a part of the page: matplotlib's SVG with colours that follow the page's theme."""

from __future__ import annotations

import re
from html import escape

from zonogpt_apps.bench.report.colours import DARK, variable


def inline(svg: bytes, name: str, title: str) -> str:
    """The picture as an <svg> element. Ids begin with `name`, because one page holds several pictures. KeyError if a
    colour has no dark twin."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r" *<defs>\s*<style.*?</style>\s*</defs>\n", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # nothing points to a group
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", _follow, text)
    text = re.sub(r' width="[^"]*" height="[^"]*"', f' role="img" aria-label="{escape(title)}"', text, count=1)
    return re.sub(r"\s*\n\s*", " ", text).strip()


def _follow(found: re.Match[str]) -> str:
    if found[0] not in DARK:
        raise KeyError(f"{found[0]} has no dark twin in zonogpt_apps.bench.report.colours")
    return f"var({variable(found[0])})"
