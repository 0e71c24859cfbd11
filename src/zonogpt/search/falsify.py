"""Counterexamples: inputs of the set on which the original model breaks the claim, in float32 and in float64, and by
more than float64 rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zonogpt.model.ir import Model
from zonogpt.model.names import output_called, output_name
from zonogpt.model.original import Original
from zonogpt.model.sensitivity import sensitivity
from zonogpt.search.descent import RESTARTS, STEPS, OnShare, attack
from zonogpt.spec.inputs import Box
from zonogpt.spec.spec import Spec
from zonogpt.support.tensors import ByValue, moved


@dataclass(frozen=True, eq=False)
class Counterexample(ByValue):
    input: Tensor  # raw, in the set; float64 on the CPU
    answer: int | None  # the largest output there; None: the claim is not about the largest output
    margin_float32: float  # the claim's value (Claim.value), as the original computes it in float32
    margin_float64: float
    answer_name: str | None = None  # the name of that answer


@dataclass(frozen=True)
class Finding:
    """The outcome of a search."""

    counterexample: Counterexample | None
    lowest: float  # the lowest value of the claim that the search saw
    said: str = ""  # for people: what the counterexample is, or why an input that looked like one is not


def falsify(
    model: Model,
    spec: Spec,
    original: Original | None,
    restarts: int = RESTARTS,
    steps: int = STEPS,
    seed: int = 0,
    deadline: float = math.inf,
    on_share: OnShare | None = None,
) -> Finding:
    """Searches the set by gradient descent and replays the best input found. `model` in float64; the spec anywhere."""
    spec = moved(spec, model.device, torch.float64)
    found = attack(model, spec, restarts=restarts, steps=steps, seed=seed, deadline=deadline, on_share=on_share)
    if not found.broken:
        return Finding(None, found.lowest)
    finding = replay(model, spec, original, found.input)
    # A margin seen before the input was rounded to float32 forbids a proof, even if the rounded input breaks nothing.
    return replace(finding, lowest=min(found.lowest, finding.lowest))  # NaN after the rounding does not count


def replay(model: Model, spec: Spec, original: Original | None, raw: Tensor) -> Finding:
    """Whether this input of the set breaks the claim in the IR and, twice, in the model it was made from.

    All rows of one group must be below zero in all of them; in float64 by more than what rounding may have done to it.
    """
    claim = spec.claim
    raw = representable(spec.input, raw.to(spec.input.anchor))

    def margins_of(net: Model) -> Tensor:
        return claim.margins(net.forward(spec.input.embed(raw)))

    with torch.no_grad():
        margins = margins_of(model)
    ours = float(claim.value(margins))
    if not ours <= 0:
        return Finding(None, ours, f"an input was found whose margin is {ours:.3g} once it is rounded to float32")
    if original is None:
        return Finding(
            None, ours, f"an input with margin {ours:.3g} was found, but there is no original to replay it in"
        )
    with torch.no_grad():
        rounding = sensitivity(model, margins_of)
    output = {dtype: output_of(original, spec.input, raw, dtype) for dtype in (torch.float32, torch.float64)}
    theirs = {dtype: claim.margins(y.to(spec.input.anchor.device)) for dtype, y in output.items()}
    narrow, wide = theirs[torch.float32], theirs[torch.float64]
    if not claim.broken((margins < -rounding) & (wide < -rounding) & (narrow < 0)):  # NaN is no counterexample
        k = claim.deciding_row(margins)
        seen = f"{float(narrow[k]):.3g} in float32 and {float(wide[k]):.3g} in float64"
        if not claim.broken(margins < -rounding):
            seen = f"{seen}, which rounding may have moved by {float(rounding[k]):.1g}"
        return Finding(None, ours, f"an input with margin {ours:.3g} was found, but {original.name} has {seen}")
    answer = None if spec.label is None else int(output[torch.float64].argmax())
    name = None if answer is None else output_name(model, answer)
    found = Counterexample(raw.cpu(), answer, float(claim.value(narrow)), float(claim.value(wide)), name)
    unmoved = torch.equal(raw, spec.input.anchor)
    reach = "box" if spec.input.ball is None else "ball"
    where = "the unperturbed input already breaks the claim" if unmoved else f"an input of the {reach} breaks the claim"
    instead = ""
    if answer is not None and spec.label is not None:
        instead = f" (answer {output_called(model, answer)} instead of {output_called(model, spec.label)})"
    return Finding(found, ours, f"{where}{instead}, by {-ours:.3g}; replayed in float32 and float64")


def representable(box: Box, raw: Tensor) -> Tensor:
    """raw, with each coordinate moved to a float32 between itself and the anchor, which stays in the set; a coordinate
    without such a float32 is left as it is."""
    near = raw.float().double()
    inward = torch.nextafter(near.float(), box.anchor.float()).double()
    near = torch.where((near - box.anchor).abs() > (raw - box.anchor).abs(), inward, near)
    between = (near - raw).sign() * (near - box.anchor).sign() <= 0
    return torch.where(between, near, raw)


def output_of(original: Original, box: Box, raw: Tensor, dtype: torch.dtype) -> Tensor:
    """(outputs,): the original's outputs at a raw input of the set."""
    return box.embed.outputs_of(original, raw, dtype)
