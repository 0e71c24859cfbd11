"""Input sets: boxes of raw numbers, and balls, which are boxes with a norm and a radius."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.model.ir import Model
from zonogpt.spec.embed import EmbedMap
from zonogpt.support.numbers import exact, norm_name
from zonogpt.support.tensors import ByValue


@dataclass(frozen=True, eq=False)
class Box(ByValue):
    """Every raw input between `lower` and `upper`, coordinate by coordinate."""

    lower: Tensor  # smallest raw input, in the input's shape, float64
    upper: Tensor
    anchor: Tensor  # the unperturbed raw input, inside the box
    embed: EmbedMap  # raw inputs to tokens

    @property
    def ball(self) -> Ball | None:
        """The set itself if it is a ball."""
        return None

    @property
    def p(self) -> float:
        """inf, 2 or 1: the norm of the noise by which `centre_and_noise` describes the set."""
        return math.inf

    @property
    def words(self) -> str:
        """For people: the set, and what moves in it."""
        ball, at = self.ball, self.embed.positions
        reach = "a box" if ball is None else f"the {ball.kind} ball of radius {exact(ball.radius)}"
        if at is None:
            return f"{reach} around an image of {' x '.join(map(str, self.embed.raw_shape))} pixels"
        many = f"token {at[0]}" if len(at) == 1 else f"tokens {', '.join(map(str, at[:8]))}{', ...' * (len(at) > 8)}"
        return f"{reach} around {many} of {self.n_tokens}"

    @property
    def n_tokens(self) -> int:
        return self.embed.n_tokens

    def first_moving(self) -> int:
        """The first token that changes anywhere in the set; if none does, a token before which none changes."""
        return self.embed.first_touched(self.upper > self.lower)

    def belongs_to(self, model: Model) -> bool:
        """Whether this model embeds raw inputs exactly as `embed` does. A proof for another would mean nothing."""
        return self.embed.belongs_to(model, self.anchor)


@dataclass(frozen=True, eq=False)
class Ball(Box):
    """Every raw input of the box whose distance from the anchor, in the norm, is at most the radius."""

    radius: float
    norm: float  # inf, 2 or 1

    @property
    def ball(self) -> Ball | None:
        return self

    @property
    def kind(self) -> str:
        """ "l∞", "l2" or "l1"."""
        return norm_name(f"{self.norm:g}")

    @property
    def p(self) -> float:
        return self.norm


def centre_and_radius(box: Box) -> tuple[Tensor, Tensor]:
    """Midpoint and half-widths with [lower, upper] inside [centre - radius, centre + radius].

    Clipping makes boxes lopsided, so the centre is the midpoint, not the anchor. The radius is measured from the
    rounded midpoint to the farther side and rounded up, so no corner is lost; an exact 0 stays 0.
    """
    centre = (box.lower + box.upper) / 2
    radius = torch.maximum(box.upper - centre, centre - box.lower)
    return centre, torch.where(radius > 0, torch.nextafter(radius, torch.full_like(radius, torch.inf)), radius)


def centre_and_noise(box: Box) -> tuple[Tensor, Tensor, float]:
    """(centre, scale, p): every raw input of the set is centre + scale * noise with ||noise||_p <= 1.

    An l_1 or l_2 ball keeps the anchor as its centre. Its clipping is ignored, except that coordinates that cannot move
    at all get scale 0.
    """
    ball = box.ball
    if ball is None or ball.norm == math.inf:
        return *centre_and_radius(box), math.inf
    scale = torch.full_like(ball.anchor, ball.radius * (1 + 2**-50))
    return ball.anchor, torch.where(ball.upper > ball.lower, scale, 0.0), ball.norm
