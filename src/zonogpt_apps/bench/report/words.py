"""How numbers and names are written, the same in Markdown and on the page."""

from __future__ import annotations

import math

from zonogpt_apps.bench.grid import MNIST, ModelId
from zonogpt_apps.bench.report.tables import Count

NOTHING = "–"
TASK_NAMES = {MNIST: "MNIST", "sst": "SST-2"}
STATUS_NAMES = {"verified": "proved", "falsified": "falsified", "unknown": "unknown", "timeout": "timeout"}


def model_name(model: ModelId) -> str:
    return f"{TASK_NAMES[model.task]} {model.size} {model.blocks}"


def seconds(value: float) -> str:
    """Tenths from ten seconds on, as the paper; below, three digits."""
    return f"{value:,.1f}" if value >= 10 or value == 0 else f"{value:.3g}"


def radius(value: float | None) -> str:
    """1e-05 is 1e-5 for people."""
    if value is None:
        return NOTHING
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def margin(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ("none" if value < 0 else "inf")


def percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def share(part: float) -> str:
    """Shares run over many orders of magnitude."""
    return percent(part) if part >= 0.001 or part == 0 else f"{100 * part:.1g}%"


def proved_of(count: Count) -> str:
    return f"{count.proved:,} of {count.run:,}"


def ratio(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}×" if value >= 10 else f"{value:.2g}×"


def block_name(block: int, last: int) -> str:
    """A place in a ledger: the input, attention and MLP of each GPT-2 block in turn, the head."""
    if block == 0:
        return "input"
    if block == last:
        return "head"
    return f"{'attention' if block % 2 else 'MLP'} {(block + 1) // 2}"
