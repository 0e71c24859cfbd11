"""A spec: an input set and a claim about every output over it. Built here, checked here, trusted afterwards."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.model.ir import Model, as_ids, as_image, token_embedding
from zonogpt.model.names import require_own
from zonogpt.model.tokenizer import Text
from zonogpt.spec.answer import Asked, Label, Rows, answer_claim
from zonogpt.spec.claims import Claim, linear_claim
from zonogpt.spec.embed import patch_map, token_map
from zonogpt.spec.inputs import Ball, Box
from zonogpt.spec.positions import Positions
from zonogpt.support.tensors import ByValue, moved

NORMS = {"inf": math.inf, "2": 2.0, "1": 1.0}
LARGEST = 1e300  # of a radius: small enough that it stays finite when it is rounded outward

Numbers = Tensor | np.ndarray | Sequence[Any]  # an array of numbers, or lists of them
Ids = Tensor | np.ndarray | Sequence[int]  # a Text is such a sequence


@dataclass(frozen=True, eq=False, repr=False)
class Spec(ByValue):
    """What is to be proved, from `image_ball` or `embedding_ball`.

    input: the input set.
    claim: what is claimed of the outputs at every input of that set.
    n_outputs: the model's number of outputs.
    """

    input: Box
    claim: Claim
    n_outputs: int

    def __repr__(self) -> str:
        return f"Spec({self.claim.words}; {self.input.words})"

    @property
    def label(self) -> int | None:
        """The label to keep; None where the claim is not about the largest output."""
        return self.claim.label

    @property
    def radius(self) -> float | None:
        """The radius of a ball; None for any other box."""
        return None if self.input.ball is None else self.input.ball.radius

    def require_ball(self) -> Ball:
        """The input set, which must be a ball: only balls have a norm and a radius."""
        if self.input.ball is None:
            raise SpecError("this needs the radius of a ball, and the input set of this spec is a box without one")
        return self.input.ball

    def with_claim(self, rows: object, offset: object, groups: Iterable[Iterable[int]] | None = None) -> Spec:
        """The same input set with the claim `rows @ output + offset > 0`, rows (K, outputs) and offset (K,).

        All rows must be positive. With `groups`, lists of row numbers, every input needs at least one positive row in
        each group.
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
    image: Numbers,
    radius: float,
    label: Label | None = None,
    *,
    norm: float | str = math.inf,
    clip: tuple[float, float] = (0.0, 1.0),
    interval: tuple[float, float] | None = None,
    target: Label | Sequence[Label] | None = None,
    top_k: int | None = None,
    keep_sign: bool = False,
    rows: Rows | None = None,
) -> Spec:
    """All images within `radius` of `image`, clipped to `clip`, keep the model's answer.

    `image` is (height, width) with floats in [0, 1]. `norm` is inf (every pixel may move by the radius), 2 or 1.

    The answer is the largest output: the model's own, or `label`. Other claims: it stays above the outputs `target` or
    among the `top_k` largest; every output keeps its side of 0 (`keep_sign`) or stays in `interval`; linear `rows`
    (docs/claims.md).
    """
    anchor = as_image(model, image)
    radius, p = check_radius(radius), as_norm(norm)
    try:
        low, high = map(float, clip)
    except (TypeError, ValueError) as error:
        raise SpecError(f"clip must be (low, high); got {clip!r}") from error
    if not (low < high and low <= float(anchor.min()) and float(anchor.max()) <= high):
        raise SpecError(f"clip {clip} must be (low, high) with the image inside")
    lower, upper = outward(anchor, radius)
    ball = Ball(lower.clamp(min=low), upper.clamp(max=high), anchor, patch_map(model), radius, p)
    return spec_of(model, ball, Asked(label, interval, target, top_k, keep_sign, rows))


def embedding_ball(
    model: Model,
    input_ids: Ids,
    positions: Iterable[int] | Literal["last", "all"],
    radius: float,
    label: Label | None = None,
    *,
    norm: float | str = math.inf,
    interval: tuple[float, float] | None = None,
    target: Label | Sequence[Label] | None = None,
    top_k: int | None = None,
    keep_sign: bool = False,
    rows: Rows | None = None,
) -> Spec:
    """The model's answer stays while the token embeddings at `positions` (from 0) move together within `radius`.

    `input_ids` are numbers, or a text from `zonogpt.text`, whose `at("good", "film")` gives positions. "last" and "all"
    leave out tokens that the tokenizer added to a text. `norm` is inf (every coordinate may move by the radius),
    2 or 1; there is one ball around all these tokens. The claims are those of `image_ball`.
    """
    if isinstance(input_ids, Text):
        require_own(model, input_ids)
    given = as_ids(model, input_ids)
    radius, p, n_read = check_radius(radius), as_norm(norm), len(model.readable_ids(given))
    if isinstance(positions, str):
        positions = Positions.parse(positions).of(input_ids, n_read)
    at = check_positions(positions, len(given), n_read)
    anchor = token_embedding(model).tokens[given[list(at)]].double()  # (positions, d)
    ball = Ball(*outward(anchor, radius), anchor, token_map(model, given, at), radius, p)
    return spec_of(model, ball, Asked(label, interval, target, top_k, keep_sign, rows))


def box_spec(model: Model, box: Box, label: Label | None = None, interval: tuple[float, float] | None = None) -> Spec:
    """All inputs of `box` keep the model's answer (see `Asked`). `box.embed` must be the model's own (`patch_map`
    or `token_map`), and the anchor of a text must be the embeddings of its tokens."""
    ends = (box.lower, box.anchor, box.upper)
    if any(end.dtype != torch.float64 or tuple(end.shape) != box.embed.raw_shape for end in ends):
        raise SpecError(f"a box needs lower, anchor and upper in float64, of shape {box.embed.raw_shape}")
    if not bool(((box.lower <= box.anchor) & (box.anchor <= box.upper)).all()):  # NaN fails too
        raise SpecError("a box needs lower <= anchor <= upper everywhere")
    if box.ball is not None:
        check_radius(box.ball.radius)
        as_norm(box.ball.norm)
    if not box.belongs_to(model):
        raise SpecError("the box is about another model's inputs, or its anchor is not what the text's tokens embed to")
    return spec_of(model, box, Asked(label, interval))


def spec_of(model: Model, box: Box, asked: Asked) -> Spec:
    """The spec with the claim that is asked for, over a set that has been checked."""
    claim = moved(answer_claim(model, box, asked), model.device, torch.float64)
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


def check_radius(radius: object) -> float:
    try:
        value = math.nan if isinstance(radius, bool) or not isinstance(radius, Real) else float(radius)
    except OverflowError:
        value = math.inf
    if isinstance(radius, str):
        raise SpecError(f"the radius must be a number, not a string: {radius} without quotes")
    if value < 0:
        raise SpecError(f"the radius must be 0 or more; got {radius!r}")
    if not 0 <= value <= LARGEST:  # NaN fails too
        raise SpecError(f"the radius must lie in 0..{LARGEST:g}; got {radius!r}")
    return value


def as_norm(norm: object) -> float:
    """inf, 2 or 1, from a number, or from a string as "inf", "l2" or "l_1"."""
    if isinstance(norm, str):
        value = NORMS.get(norm.strip().lower().removeprefix("l").removeprefix("_"))
    else:
        known = type(norm) is not bool and isinstance(norm, Real)
        value = next((p for p in NORMS.values() if known and norm == p), None)
    if value is None:
        raise SpecError(f"norm {norm!r} is not supported; use {', '.join(NORMS)}")
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
