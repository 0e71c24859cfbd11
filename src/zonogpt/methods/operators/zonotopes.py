"""Dense zonotopes operator by operator (deepz): every nonlinear operator adds a symbol per entry; none is dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import dual_norm
from zonogpt.domains.interval import Interval
from zonogpt.domains.structured import abs_sum
from zonogpt.methods.operators.network import Arrangement
from zonogpt.transforms.functions import Function


@dataclass(frozen=True)
class DenseZonotope:
    """c + sum_j G_j eps_j. The first symbols are the input's, the others are errors: each in [-1, 1] on its own.

    `box` holds the values too, and is often smaller than the box of c and G: 1/t needs to know that t > 0.
    """

    c: Tensor  # (shape)
    G: Tensor  # (N, shape); symbols after the N-th do not occur
    box: Interval


class ZonotopeOperators:
    """Symbols are numbered over the whole run: two values share the symbols of the same numbers."""

    def __init__(self, n_inputs: int, p: float, tick: Callable[[], None]) -> None:
        self.n_inputs, self.p = n_inputs, p  # the input's symbols together are in the unit ball of the p-norm
        self.n_symbols = n_inputs
        self.tick = tick  # called before every operator that takes time

    def zonotope(self, c: Tensor, G: Tensor, known: Interval | None = None) -> DenseZonotope:
        radius = abs_sum(G[self.n_inputs :], 0)
        if self.n_inputs:
            radius = radius + dual_norm(G[: self.n_inputs], self.p, 0)
        box = Interval(c - radius, c + radius)
        return DenseZonotope(c, G, box if known is None else box.meet(known))

    def bounds(self, x: DenseZonotope) -> Interval:
        return x.box

    def arrange(self, x: DenseZonotope, how: Arrangement) -> DenseZonotope:
        return DenseZonotope(how.there(x.c), how.there(x.G), Interval(how.there(x.box.lower), how.there(x.box.upper)))

    def add(self, x: DenseZonotope, y: DenseZonotope) -> DenseZonotope:
        return self.zonotope(x.c + y.c, _plus(x.G, y.G), x.box.plus(y.box))

    def dense(self, x: DenseZonotope, weight: Tensor, bias: Tensor | None, *sizes: Tensor | None) -> DenseZonotope:
        c = x.c @ weight
        return self.zonotope(c if bias is None else c + bias, x.G @ weight, x.box.dense(weight, bias))

    def matmul(self, x: DenseZonotope, y: DenseZonotope, known: Interval | None = None) -> DenseZonotope:
        """x y = x_c y_c + x_c dy + dx y_c + dx dy, and |dx dy| <= |dx| |dy| is a new error."""
        box = x.box.matmul(y.box)

        def linear(out: Tensor) -> None:
            out[: len(x.G)] = x.G @ y.c
            out[: len(y.G)] += x.c @ y.G

        error = _farthest(x) @ _farthest(y)
        return self._with_errors(x.c @ y.c, linear, error, box if known is None else box.meet(known))

    def apply(self, f: Function, x: DenseZonotope) -> DenseZonotope:
        strip = f.strip(x.box)

        def linear(out: Tensor) -> None:
            torch.mul(x.G, strip.slope, out=out[: len(x.G)])

        return self._with_errors(strip.slope * x.c + strip.mid, linear, strip.half, f.range(x.box))

    def relative(self, u: DenseZonotope, visible: Tensor) -> DenseZonotope:
        return u  # as the paper's worked example has it

    def _with_errors(
        self, c: Tensor, linear: Callable[[Tensor], None], error: Tensor, known: Interval
    ) -> DenseZonotope:
        """A zonotope of c, the old symbols as `linear` writes them, and a new symbol for every entry with an error.

        Memory: symbols so far times entries, without a second copy.
        """
        self.tick()
        # Any slope is sound, zero too: an entry whose error exceeds its range (or overflowed) keeps only the range.
        sloped = error <= known.radius
        c, error = torch.where(sloped, c, known.centre), torch.where(sloped, error, known.radius)
        where = error.flatten().nonzero()[:, 0]
        G = c.new_zeros(self.n_symbols + len(where), *c.shape)
        linear(G)
        G.masked_fill_(~sloped, 0.0)
        new = torch.arange(self.n_symbols, len(G), device=c.device)
        G.view(len(G), c.numel())[new, where] = error.flatten()[where]
        self.n_symbols = len(G)
        return self.zonotope(c, G, known)


def _plus(G: Tensor, H: Tensor) -> Tensor:
    """The sum, symbol by symbol; the shorter one counts as zero after its end."""
    short, long = sorted((G, H), key=len)
    out = long.clone()
    out[: len(short)] += short
    return out


def _farthest(x: DenseZonotope) -> Tensor:
    """The largest |value - c| over the box."""
    return torch.maximum(x.box.upper - x.c, x.c - x.box.lower)
