"""Counterexamples: inputs of the set on which Hugging Face's own model breaks the claim, in float32 and in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zonogpt.model.ir import Model
from zonogpt.model.replay import HuggingFaceModel
from zonogpt.search.attack import RESTARTS, STEPS, attack
from zonogpt.spec.inputs import EmbeddingBox, InputBox, PixelBox
from zonogpt.spec.spec import Spec
from zonogpt.tensors import ByValue, moved


@dataclass(frozen=True, eq=False)
class Counterexample(ByValue):
    input: Tensor  # raw, in the set; float64 on the CPU
    answer: int | None  # what the model answers there; None: it has one output
    margin_float32: float  # the lowest margin, as the Hugging Face model computes it in float32
    margin_float64: float


@dataclass(frozen=True)
class Finding:
    """What a search came to."""

    counterexample: Counterexample | None
    lowest: float  # the lowest margin that the search saw
    said: str = ""  # for people: what the counterexample is, or why an input that looked like one is none


def falsify(
    model: Model,
    spec: Spec,
    judge: HuggingFaceModel | None,
    restarts: int = RESTARTS,
    steps: int = STEPS,
    seed: int = 0,
    deadline: float = math.inf,
) -> Finding:
    """Searches the set by gradient descent and replays the best input found. `model` in float64; the spec anywhere."""
    spec = moved(spec, model.device, torch.float64)
    found = attack(model, spec, restarts, steps, seed, deadline=deadline)
    if not found.broken:
        return Finding(None, found.lowest)
    finding = replay(model, spec, judge, found.input)
    # What was seen before rounding to float32 was seen: it forbids a proof, even if the rounded input breaks nothing.
    return replace(finding, lowest=min(finding.lowest, found.lowest))


def replay(model: Model, spec: Spec, judge: HuggingFaceModel | None, raw: Tensor) -> Finding:
    """Whether this input of the set breaks the claim in the IR and, twice, in the model it was made from."""
    raw = representable(spec.input, raw.to(spec.input.anchor))
    with torch.no_grad():
        ours = float(spec.claim.margins(model.forward(spec.input.embed(raw))).min())
    if not ours <= 0:
        return Finding(None, ours, f"an input was found whose margin is {ours:.3g} once it is rounded to float32")
    if judge is None:
        return Finding(
            None, ours, f"an input with margin {ours:.3g} was found, but there is no original to replay it in"
        )
    output = {dtype: output_of(judge, spec.input, raw, dtype) for dtype in (torch.float32, torch.float64)}
    margin = {dtype: float(spec.claim.margins(y.to(spec.input.anchor.device)).min()) for dtype, y in output.items()}
    if not all(value <= 0 for value in margin.values()):  # NaN is no counterexample
        seen = f"{margin[torch.float32]:.3g} in float32 and {margin[torch.float64]:.3g} in float64"
        return Finding(None, ours, f"an input with margin {ours:.3g} was found, but Hugging Face's model has {seen}")
    answer = int(output[torch.float64].argmax()) if spec.n_outputs > 1 else None
    found = Counterexample(raw.cpu(), answer, margin[torch.float32], margin[torch.float64])
    unmoved = torch.equal(raw, spec.input.anchor)
    where = "the unperturbed input already breaks the claim" if unmoved else "an input of the ball breaks the claim"
    instead = "" if answer is None or spec.label is None else f" (answer {answer} instead of {spec.label})"
    return Finding(found, ours, f"{where}{instead}, by {-ours:.3g}; replayed in float32 and float64")


def representable(box: InputBox, raw: Tensor) -> Tensor:
    """raw, each coordinate a float32 between itself and the anchor: still in the set. Where there is none, as it is."""
    near = raw.float().double()
    inward = torch.nextafter(near.float(), box.anchor.float()).double()
    near = torch.where((near - box.anchor).abs() > (raw - box.anchor).abs(), inward, near)
    between = (near - raw).sign() * (near - box.anchor).sign() <= 0
    return torch.where(between, near, raw)


def output_of(judge: HuggingFaceModel, box: PixelBox | EmbeddingBox, raw: Tensor, dtype: torch.dtype) -> Tensor:
    """What Hugging Face's model answers to a raw input of the set."""
    if isinstance(box, PixelBox):
        return judge.on_image(raw, dtype)
    return judge.on_embeddings(box.ids[: box.n_tokens], box.positions, raw, dtype)
