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
    """Seconds with tenths from 10 on, as in the paper, and with three digits below."""
    return f"{value:,.1f}" if value >= 10 or value == 0 else f"{value:.3g}"


def radius(value: float | None) -> str:
    """A radius as people write it: 1e-5, not 1e-05."""
    if value is None:
        return NOTHING
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def margin(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ("none" if value < 0 else "inf")


def percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def share(part: float) -> str:
    """A share in per cent, with one digit if it is tiny: shares span many orders of magnitude."""
    return percent(part) if part >= 0.001 or part == 0 else f"{100 * part:.1g}%"


def proved_of(count: Count) -> str:
    return f"{count.proved:,} of {count.run:,}"


def ratio(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}×" if value >= 10 else f"{value:.2g}×"


def block_name(block: int, last: int) -> str:
    """The name of a place in a ledger: the input, attention and MLP of each GPT-2 block in turn, the head."""
    if block == 0:
        return "input"
    if block == last:
        return "head"
    return f"{'attention' if block % 2 else 'MLP'} {(block + 1) // 2}"
