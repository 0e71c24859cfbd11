"""The commands that make the same rows and the same report again."""

from __future__ import annotations

import shlex

from zonogpt_apps.bench.grid import PAPER_MODELS, ModelId
from zonogpt_apps.bench.report.summary import Summary


def commands(summary: Summary) -> str:
    """Directory names are examples: a report does not say where it was made."""
    models = [line.model for line in summary.models]
    chosen = "" if set(models) == set(PAPER_MODELS) else f" --models {','.join(map(str, models))}"
    lines = [
        f"zonogpt bench train{chosen} --out models",
        f"zonogpt bench make{chosen} --trained models --out instances",
        *(line for method in summary.methods for line in _runs(summary, method)),
        "zonogpt bench report --rows rows --instances instances --out report",
    ]
    return "\n".join(lines)


def _runs(summary: Summary, method: str) -> list[str]:
    """The runs of a method: one for all models, or several if it was run on different numbers of inputs."""
    settings = summary.settings
    on_gpu = any(device != "cpu" for origin in summary.origins if origin.method == method for device in origin.devices)
    shared = {
        "device": "cuda" if on_gpu else None,
        "dtype": settings.get("dtype"),
        "arithmetic": None if settings.get("arithmetic") == "real" else settings.get("arithmetic"),
        "timeout": settings.get("timeout"),
        "budget": settings.get("budget"),
    }
    lines = []
    for count, models in _inputs(summary, method).items():
        chosen = None if len(models) == len(summary.models) else ",".join(map(str, models))
        options = {"methods": method, "models": chosen, "inputs": count, **shared}
        said = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None)
        attack = " --attack" if settings.get("attack") else ""
        lines.append(f"zonogpt bench run --instances instances --trained models{said}{attack} --out rows")
    return lines


def _inputs(summary: Summary, method: str) -> dict[int | None, list[ModelId]]:
    """Models by the number of inputs that the method was run on; None if no method was run on more."""
    found: dict[int | None, list[ModelId]] = {}
    for line in summary.models:
        inputs: dict[str, set[str]] = {}
        for row in summary.rows:
            if row.model == line.model:
                inputs.setdefault(row.method, set()).add(row.input)
        if method in inputs:
            count = len(inputs[method])
            most = max(map(len, inputs.values()))
            found.setdefault(count if count < most else None, []).append(line.model)
    return found
