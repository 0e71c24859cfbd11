"""How far a radius reaches, measured against the tokens themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zonogpt.model.ir import Model, token_embedding
from zonogpt.model.names import token_names
from zonogpt.spec.inputs import Box


@dataclass(frozen=True)
class TokenScale:
    """The size of a token that moves, in the norm of its ball (for a box: inf)."""

    position: int
    id: int
    token: str | None  # what it spells, if the model has a tokenizer
    length: float  # norm of its embedding
    nearest: int | None  # the other token whose embedding is nearest; None: there is no other
    nearest_token: str | None
    distance: float  # to that token; inf if there is none

    def shares(self, radius: float) -> tuple[float, float]:
        """The radius as a fraction of the token's norm, and of the distance to the nearest other token."""
        return _share(radius, self.length), _share(radius, self.distance)

    @property
    def called(self) -> str:
        """ "' good' (3)": what it spells, or its id, and where it is."""
        return f"{f'id {self.id}' if self.token is None else repr(self.token)} ({self.position})"

    @property
    def plain(self) -> dict[str, Any]:
        nearest = {"id": self.nearest, "token": self.nearest_token, "distance": self.distance}
        there = self.nearest is not None
        return {
            "position": self.position,
            "id": self.id,
            "token": self.token,
            "length": self.length,
            "nearest": nearest if there else None,
        }


def _share(radius: float, size: float) -> float:
    return radius / size if size > 0 else float("inf")


def scales(model: Model, box: Box) -> list[TokenScale]:
    """The scale of each token that moves."""
    embed = box.embed
    assert embed.ids is not None
    assert embed.positions is not None
    tokens = token_embedding(model).tokens.detach().to("cpu", torch.float64)
    found = []
    for row, position in enumerate(embed.positions):
        number, own = int(embed.ids[position]), box.anchor[row].cpu()
        distance = torch.cdist(own[None], tokens, p=box.p)[0]
        distance[number] = torch.inf
        nearest, length = int(distance.argmin()), float(torch.linalg.vector_norm(own, box.p))
        spelt = token_names(model, [number, nearest]) or (None, None)
        if len(tokens) == 1:
            found.append(TokenScale(position, number, spelt[0], length, None, None, float("inf")))
        else:
            found.append(TokenScale(position, number, spelt[0], length, nearest, spelt[1], float(distance[nearest])))
    return found
