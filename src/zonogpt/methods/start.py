"""The input sets of a batch as ellipsoidal zonotopes: where method E starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, dual_norm, minkowski
from zonogpt.domains.rounding import gamma, up
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.ir import Model
from zonogpt.spec.inputs import Box, centre_and_noise
from zonogpt.spec.spec import Spec
from zonogpt.transforms.execution import embedding_rounding


@dataclass(frozen=True)
class Start:
    """The last tokens of every input. Shorter sequences have padding in front, so that all end together, with the token
    that the head reads."""

    z: EllipsoidalZonotope
    generators: Tensor  # (B, n, m, d) in float64: z.G before it is rounded to the tangents' type
    length: int  # tokens in all, of the longest sequence
    padding: list[int]  # tokens of padding, for each input

    @property
    def before(self) -> int:
        """Tokens before these, padding among them."""
        return self.length - self.z.n_tokens

    @property
    def n_tokens(self) -> Tensor:
        """(B,): how many of these tokens are an input's own."""
        own = self.length - torch.tensor(self.padding, device=self.z.c.device)
        return own.clamp(max=self.z.n_tokens)

    def as_padding(self) -> Tensor | None:
        """`padding` for Attention.visible; None if all sequences have the same length."""
        return torch.tensor(self.padding, device=self.z.c.device) if any(self.padding) else None


def start(model: Model, specs: Sequence[Spec], dtype: torch.dtype, n: int, arithmetic: Arithmetic = "real") -> Start:
    """The last n tokens of every input, with one symbol per raw number that moves, and a small box for the rounding of
    the embedding. No token before these may move."""
    sets = [embedded(spec.input, arithmetic) for spec in specs]
    B, S, d = len(specs), max(len(symbols.tokens) for symbols in sets), model.width
    m = max(1, *(len(symbols.generators) for symbols in sets))  # at least one symbol, if only of zeros: no empty sums
    c = torch.empty(B, n, d, dtype=torch.float64, device=model.device)
    G, box = c.new_zeros(B, n, m, d), torch.zeros_like(c)
    for b, symbols in enumerate(sets):
        here = min(n, len(symbols.tokens))
        c[b, : n - here] = symbols.tokens[0]  # padding: as finite as the first token, and nobody sees it
        c[b, n - here :], box[b, n - here :] = symbols.tokens[-here:], symbols.rounding[-here:]
        at = symbols.token - len(symbols.tokens)
        G[b, at, torch.arange(len(at), device=G.device)] = symbols.generators
    p, tangents = specs[0].input.p, G.to(dtype)
    # Generators are products, off by a unit; then comes the rounding of the cast.
    box = box + dual_norm(gamma(2, G.dtype) * G, p, 2) + dual_norm(G - tangents.to(G), p, 2)
    z = around(c, up(box, m + 8), model.dtype, tangents, p)
    return Start(z, G, S, [S - len(symbols.tokens) for symbols in sets])


def around(c: Tensor, box: Tensor, dtype: torch.dtype, G: Tensor, p: float) -> EllipsoidalZonotope:
    """A centre and a box around it (B, n, d), both in float64, as a set of this type with the symbols G."""
    rounded = c.to(dtype)
    box = up(box + (c - rounded.to(c)).abs()).to(dtype)
    Q = minkowski(rounded.new_zeros(*c.shape, c.shape[-1]), box=up(box))
    return EllipsoidalZonotope(rounded, G, Q, p)


@dataclass(frozen=True)
class Symbols:
    """An embedded input set: the centre's tokens, and the token and the generator of every raw number that moves."""

    tokens: Tensor  # (S, d)
    rounding: Tensor  # (S, d): by how much they are off
    token: Tensor  # (m,)
    generators: Tensor  # (m, d)


def embedded(box: Box, arithmetic: Arithmetic) -> Symbols:
    _, scale, _ = centre_and_noise(box)
    local = box.embed.local_generators(scale)  # (S, q, d)
    token, index = (local.abs().amax(-1) != 0).nonzero().unbind(1)  # NaN counts as moving, and is found later
    return Symbols(*embedded_centre(box, arithmetic), token, local[token, index])


def embedded_centre(box: Box, arithmetic: Arithmetic) -> tuple[Tensor, Tensor]:
    """The centre's tokens (S, d), and by how much they are off."""
    centre, _, _ = centre_and_noise(box)
    return box.embed(centre), embedding_rounding(box, centre, arithmetic)
