"""The claim to prove: that the model keeps its own answer, or what the user asks for instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zonogpt.errors import SpecError
from zonogpt.model.ir import Model
from zonogpt.model.names import output_called, output_name, output_number
from zonogpt.spec.claims import (
    Claim,
    interval_claim,
    linear_claim,
    margin_claim,
    sign_claim,
    target_claim,
    top_claim,
)
from zonogpt.spec.inputs import Box

MULTI_LABEL, REGRESSION = "multi_label_classification", "regression"  # values of config.problem_type

Label = int | str  # a number, or a name from config.id2label; for a language model, a token
Rows = tuple[Any, Any, Iterable[Iterable[int]] | None]  # rows (K, outputs), offset (K,), groups of rows


@dataclass(frozen=True)
class Asked:
    """What must hold. By default, the model's answer does not change.

    The answer is the largest output: `label`, by default the model's own on the unperturbed input. A model with one
    output answers by its sign, and a multi-label classifier (config.problem_type) by the sign of each output.

    `target`: the answer stays above these outputs, whatever the others do. `top_k`: the answer stays among the k
    largest outputs. `keep_sign`: every output keeps its side of 0. `interval`: every output stays between the two
    numbers. A regression model needs it: nothing else says what counts as the same answer. `rows` is (rows, offset,
    groups), with None for no groups: see `Spec.with_claim`.
    """

    label: Label | None = None
    interval: tuple[float, float] | None = None
    target: Label | Sequence[Label] | None = None
    top_k: int | None = None
    keep_sign: bool = False
    rows: Rows | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.keep_sign, bool):
            raise SpecError(f"keep_sign is True or False; got {self.keep_sign!r}")
        said = {
            "interval": self.interval is not None,
            "target": self.target is not None,
            "top_k": self.top_k is not None,
            "keep_sign": self.keep_sign,
            "rows": self.rows is not None,
        }
        given = [name for name, there in said.items() if there]
        if len(given) > 1:
            raise SpecError(f"a claim is one of {', '.join(said)}; got {' and '.join(given)}")
        if self.label is not None and given and given[0] not in ("target", "top_k"):
            raise SpecError(f"give a label or {given[0]}, not both")

    @property
    def targets(self) -> list[Label]:
        if self.target is None:
            return []
        one = isinstance(self.target, str) or hasattr(self.target, "__index__")
        return [self.target] if one else list(self.target)  # type: ignore[arg-type, list-item]

    @property
    def about_largest(self) -> bool:
        """Whether the claim is about the largest output, for a model that answers by its largest output."""
        return self.interval is None and self.rows is None and not self.keep_sign


def answer_claim(model: Model, box: Box, asked: Asked) -> Claim:
    """The claim that is asked for; SpecError if it makes no sense for this model."""
    check_answer(model, asked)
    if asked.interval is not None:
        return interval_claim(asked.interval, model.n_outputs)
    if asked.rows is not None:
        rows, offset, groups = asked.rows
        return linear_claim(rows, offset, model.n_outputs, groups)
    if asked.label is not None:
        return _about(model, output_number(model, asked.label), asked)
    with torch.no_grad():
        output = model.forward(box.embed(box.anchor).to(model.dtype))
    if not bool(output.isfinite().all()):
        raise SpecError("the model's own output is NaN or infinite on this input: there is no answer to keep")
    if asked.keep_sign or model.n_outputs == 1 or model.problem == MULTI_LABEL:
        return sign_claim(output)
    return _about(model, int(output.argmax()), asked)


def _about(model: Model, label: int, asked: Asked) -> Claim:
    name = output_name(model, label) if 0 <= label < model.n_outputs else None
    if asked.top_k is not None:
        return top_claim(label, model.n_outputs, asked.top_k, name)
    if asked.target is None:
        return margin_claim(label, model.n_outputs, name)
    targets = [output_number(model, target) for target in asked.targets]
    below = ", ".join(output_called(model, k) for k in targets if 0 <= k < model.n_outputs)
    return target_claim(label, targets, model.n_outputs, f"label {output_called(model, label)} stays above {below}")


def check_answer(model: Model, asked: Asked) -> None:
    """SpecError unless such a claim may be made about this model."""
    if asked.interval is not None and model.problem != REGRESSION and model.n_outputs > 1:
        raise SpecError(f"an interval is for regression models; {model.name} answers with one of its labels")
    if not asked.about_largest:
        return
    chosen = asked.label is not None or asked.target is not None or asked.top_k is not None
    if model.problem == REGRESSION:
        raise SpecError(
            f"{model.name} is a regression model: say where its output must stay, interval=(low, high)"
            " (--interval LOW,HIGH of verify)"
        )
    if chosen and model.problem == MULTI_LABEL:
        raise SpecError(
            f"{model.name} is a multi-label classifier: every label keeps its side of 0, so there is none to name."
            " Leave the label out, or claim rows with spec.with_claim(rows, offset)"
        )
    if asked.label is not None:
        margin_claim(output_number(model, asked.label), model.n_outputs)
    elif chosen and model.n_outputs == 1:
        raise SpecError("this model has one output, which has no rivals: its sign is what is kept")
