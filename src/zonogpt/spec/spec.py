"""A spec: an input set and a claim about every output over it. Built here, checked here, trusted afterwards."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.model.ir import Model, as_ids, as_image, token_embedding
from zonogpt.spec.claims import Claim, interval_claim, linear_claim, margin_claim, sign_claim
from zonogpt.spec.embed import patch_map, token_map
from zonogpt.spec.inputs import Ball, Box
from zonogpt.support.tensors import ByValue, moved

NORMS = (math.inf, 2.0, 1.0)
LARGEST = 1e300  # radius: what it is multiplied with to be rounded outward is finite
MULTI_LABEL, REGRESSION = "multi_label_classification", "regression"  # of config.problem_type


@dataclass(frozen=True, eq=False)
class Spec(ByValue):
    input: Box
    claim: Claim
    n_outputs: int

    @property
    def label(self) -> int | None:
        """The label to keep; None where the claim is not about the largest output."""
        return self.claim.label

    @property
    def radius(self) -> float | None:
        """Of a ball; None for any other box."""
        return None if self.input.ball is None else self.input.ball.radius

    def require_ball(self) -> Ball:
        """The input set, which must be a ball: only balls have a norm and a radius."""
        if self.input.ball is None:
            raise SpecError("this needs the radius of a ball, and the input set of this spec is a box without one")
        return self.input.ball

    def with_claim(self, rows: object, offset: object, groups: Iterable[Iterable[int]] | None = None) -> Spec:
        """The same input set with the claim `rows @ output + offset > 0`, rows (K, outputs) and offset (K,).

        All rows must be positive; with `groups`, lists of row numbers, for every input at least one row of each group.
        """
        claim = linear_claim(rows, offset, self.n_outputs, groups)
        claim = moved(claim, self.input.anchor.device, torch.float64)
        return dataclasses.replace(self, claim=claim)

    def shrunk(self, radius: float) -> Spec:
        """The same claim over the ball of a smaller radius."""
        ball = self.require_ball()
        if not 0 <= radius <= ball.radius:
            raise SpecError(f"a spec of radius {ball.radius:g} can be shrunk to 0..{ball.radius:g}, not to {radius!r}")
        lower, upper = outward(ball.anchor, radius)
        lower, upper = torch.maximum(lower, ball.lower), torch.minimum(upper, ball.upper)
        return dataclasses.replace(self, input=dataclasses.replace(ball, lower=lower, upper=upper, radius=radius))


def image_ball(
    model: Model,
    image: object,
    radius: float,
    label: int | None = None,
    norm: float = math.inf,
    clip: tuple[float, float] = (0.0, 1.0),
    interval: tuple[float, float] | None = None,
) -> Spec:
    """All images within `radius` of `image`, clipped to `clip`, keep their answer.

    `image` is (height, width) with floats in [0, 1]. `norm` is inf (every pixel may move by the radius), 2 or 1.
    What the answer is, and what `label` and `interval` say of it: see `answer_claim`.
    """
    anchor = as_image(model, image)
    radius = check_ball(radius, norm)
    try:
        low, high = map(float, clip)
    except (TypeError, ValueError) as error:
        raise SpecError(f"clip must be (low, high); got {clip!r}") from error
    if not (low < high and low <= float(anchor.min()) and float(anchor.max()) <= high):
        raise SpecError(f"clip {clip} must be (low, high) with the image inside")
    lower, upper = outward(anchor, radius)
    ball = Ball(lower.clamp(min=low), upper.clamp(max=high), anchor, patch_map(model), radius, float(norm))
    return _spec(model, ball, label, interval)


def embedding_ball(
    model: Model,
    input_ids: object,
    positions: Iterable[int],
    radius: float,
    label: int | None = None,
    norm: float = math.inf,
    interval: tuple[float, float] | None = None,
) -> Spec:
    """The token embeddings at `positions` (0-based over the ids) move within `radius`, all coordinates together.

    `norm` is inf (every coordinate may move by the radius), 2 or 1. What answer is to be kept, and what `label` and
    `interval` say of it: see `answer_claim`.
    """
    given = as_ids(model, input_ids)
    radius = check_ball(radius, norm)
    at = check_positions(positions, len(given), len(model.readable_ids(given)))
    anchor = token_embedding(model).tokens[given[list(at)]].double()  # (positions, d)
    ball = Ball(*outward(anchor, radius), anchor, token_map(model, given, at), radius, float(norm))
    return _spec(model, ball, label, interval)


def box_spec(model: Model, box: Box, label: int | None = None, interval: tuple[float, float] | None = None) -> Spec:
    """All inputs of `box` keep the model's answer; what that is: see `answer_claim`. `box.embed` is the model's own
    (`patch_map`, `token_map`), and of a text the anchor is what its tokens embed to."""
    ends = (box.lower, box.anchor, box.upper)
    if any(end.dtype != torch.float64 or tuple(end.shape) != box.embed.raw_shape for end in ends):
        raise SpecError(f"a box needs lower, anchor and upper in float64, of shape {box.embed.raw_shape}")
    if not bool(((box.lower <= box.anchor) & (box.anchor <= box.upper)).all()):  # NaN is not
        raise SpecError("a box needs lower <= anchor <= upper everywhere")
    if box.ball is not None:
        check_ball(box.ball.radius, box.ball.norm)
    if not box.belongs_to(model):
        raise SpecError("the box is about another model's inputs, or its anchor is not what the text's tokens embed to")
    return _spec(model, box, label, interval)


def _spec(model: Model, box: Box, label: int | None, interval: tuple[float, float] | None) -> Spec:
    claim = moved(answer_claim(model, box, label, interval), model.device, torch.float64)
    return Spec(box, claim, model.n_outputs)


def outward(anchor: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """(lower, upper): anchor -+ radius, rounded away from the anchor; the anchor itself for radius 0."""
    if radius == 0:
        return anchor, anchor
    far = torch.full_like(anchor, math.inf)
    return torch.nextafter(anchor - radius, -far), torch.nextafter(anchor + radius, far)


def check_spec(spec: object) -> None:
    if not isinstance(spec, Spec):
        several = "; for several give a list to verify_many" if isinstance(spec, list | tuple) else ""
        raise SpecError(f"one spec is needed, from image_ball or embedding_ball{several}; got {type(spec).__name__}")


def check_ball(radius: object, norm: object) -> float:
    """The radius as a float."""
    try:
        value = math.nan if isinstance(radius, bool) or not isinstance(radius, Real) else float(radius)
    except OverflowError:
        value = math.inf
    if not 0 <= value <= LARGEST:  # NaN is not
        raise SpecError(f"the radius must lie in 0..{LARGEST:g}; got {radius!r}")
    if isinstance(norm, bool) or not isinstance(norm, Real) or norm not in NORMS:
        raise SpecError(f"norm {norm!r} is not supported; use {', '.join(f'{p:g}' for p in NORMS)}")
    return value


def check_positions(positions: Iterable[int], n_ids: int, n_read: int) -> tuple[int, ...]:
    try:
        at = tuple(operator.index(position) for position in positions)
    except TypeError as error:
        raise SpecError(f"positions must be a list of integers; got {positions!r}") from error
    if not at or len(set(at)) != len(at):
        raise SpecError(f"positions must be distinct and at least one; got {list(at)}")
    for position in at:
        if not 0 <= position < n_ids:
            raise SpecError(f"position {position} is out of range; the {n_ids} token ids have positions 0..{n_ids - 1}")
        if position >= n_read:
            raise SpecError(f"position {position} is padding after the last real token {n_read - 1}; it cannot matter")
    return at


def answer_claim(model: Model, box: Box, label: int | None, interval: tuple[float, float] | None) -> Claim:
    """That the model's answer does not change.

    The answer is the largest output: `label`, by default the model's own on the unperturbed input. A model of one
    output answers by its sign, and a multi-label classifier (config.problem_type) by the sign of each output. Of a
    regression model, what counts as the same answer is for the user to say: every output stays inside `interval`.
    """
    check_answer(model, label, interval is not None)
    if interval is not None:
        return interval_claim(interval, model.n_outputs)
    if label is not None:
        return margin_claim(label, model.n_outputs)
    with torch.no_grad():
        output = model.forward(box.embed(box.anchor).to(model.dtype))
    if not bool(output.isfinite().all()):
        raise SpecError("the model's own output is NaN or infinite on this input: there is no answer to keep")
    if model.n_outputs == 1 or model.problem == MULTI_LABEL:
        return sign_claim(output)
    return margin_claim(int(output.argmax()), model.n_outputs)


def check_answer(model: Model, label: int | None, interval: bool = False) -> None:
    """SpecError unless a claim about this model may be made with such a label, or with or without an interval."""
    if interval:
        if label is not None:
            raise SpecError("give a label or an interval, not both")
        if model.problem != REGRESSION and model.n_outputs > 1:
            raise SpecError(f"an interval is for regression models; {model.name} answers with one of its labels")
        return
    if model.problem == REGRESSION:
        raise SpecError(
            f"{model.name} is a regression model: say where its output must stay, interval=(low, high)"
            " (--interval LOW,HIGH of verify)"
        )
    if label is not None and model.problem == MULTI_LABEL:
        raise SpecError(
            f"{model.name} is a multi-label classifier: every label keeps its side of 0, so there is none to name."
            " Leave the label out, or claim rows with spec.with_claim(rows, offset)"
        )
    if label is not None:
        margin_claim(label, model.n_outputs)
