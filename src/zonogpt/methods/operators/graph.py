"""CROWN: every operator lies between two linear functions of its inputs, substituted backwards down to the input.

A value is a node: it knows how to bound functionals of itself from below by functionals of its inputs. The interval of
a node is computed when it is needed: one functional up and one down for every entry, all the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks
from zonogpt.domains.interval import Interval
from zonogpt.methods.operators.network import Arrangement
from zonogpt.methods.operators.plan import COPIES
from zonogpt.transforms.functions import Function

# Functionals (R, shape) of a node -> functionals of each of its inputs, and a constant (R,): a lower bound together.
Pull = Callable[[Tensor], tuple[list[Tensor], Tensor]]


@dataclass(eq=False)
class GraphNode:
    number: int  # inputs of a node have smaller numbers
    like: Tensor  # of the node's shape
    inputs: list[GraphNode]
    pull: Pull
    known: Interval  # an interval that needs no backward pass
    box: Interval | None = None  # set when it is first asked for


@dataclass
class CrownOperators:
    """One graph. `source` bounds functionals (R, S, d) of the input from below; `tick` is called now and then."""

    source: Callable[[Tensor], Tensor]
    limit: int  # bytes that functionals on their way back may take
    tick: Callable[[], None] = lambda: None
    nodes: list[GraphNode] = field(default_factory=list)

    def start(self, like: Tensor, known: Interval) -> GraphNode:
        return self._node(like, [], lambda A: ([], self.source(A)), known)

    def bounds(self, x: GraphNode) -> Interval:
        if x.box is None:
            x.box = x.known.meet(Interval(self.lowest(x, 1.0), -self.lowest(x, -1.0)))
        return x.box

    def lowest(self, x: GraphNode, sign: float) -> Tensor:
        """Lower bounds of sign * x, entry by entry, by substitution, some entries at a time."""
        n = x.like.numel()
        out = torch.empty(n, dtype=x.like.dtype, device=x.like.device)
        for part in chunks(n, self.bytes_per_functional(x), self.limit):
            self.tick()
            A = torch.zeros(part.stop - part.start, n, dtype=out.dtype, device=out.device)
            A[torch.arange(len(A)), torch.arange(part.start, part.stop)] = sign
            out[part] = self.lower(x, A.view(-1, *x.like.shape))
        return out.view_as(x.like)

    def lower(self, x: GraphNode, A: Tensor) -> Tensor:
        """(R,): lower bounds of the functionals A (R, shape) of x over all inputs."""
        waiting = {x.number: A}
        total = A.new_zeros(len(A))
        while waiting:
            number = max(waiting)
            node = self.nodes[number]
            before, constant = node.pull(waiting.pop(number))
            total = total + constant
            for input, part in zip(node.inputs, before, strict=True):
                held = waiting.get(input.number)
                waiting[input.number] = part if held is None else held + part
        return total

    def bytes_per_functional(self, x: GraphNode) -> int:
        widest = max(node.like.numel() for node in self.nodes[: x.number + 1])
        return COPIES * widest * x.like.element_size()

    def arrange(self, x: GraphNode, how: Arrangement) -> GraphNode:
        known = Interval(how.there(x.known.lower), how.there(x.known.upper))
        node = self._node(how.there(x.like), [x], lambda A: ([how.back(A)], A.new_zeros(len(A))), known)
        if x.box is not None:
            node.box = Interval(how.there(x.box.lower), how.there(x.box.upper))
        return node

    def add(self, x: GraphNode, y: GraphNode) -> GraphNode:
        return self._node(x.like, [x, y], lambda A: ([A, A], A.new_zeros(len(A))), x.known.plus(y.known))

    def dense(self, x: GraphNode, weight: Tensor, bias: Tensor | None, *sizes: Tensor | None) -> GraphNode:
        def pull(A: Tensor) -> tuple[list[Tensor], Tensor]:
            constant = A.new_zeros(len(A)) if bias is None else (A * bias).flatten(1).sum(1)
            return [A @ weight.mT], constant

        return self._node(x.like @ weight, [x], pull, (x.box or x.known).dense(weight, bias))

    def apply(self, f: Function, x: GraphNode) -> GraphNode:
        box = self.bounds(x)
        values = f.range(box)
        lines = f.lines(box).or_range(values)

        def pull(A: Tensor) -> tuple[list[Tensor], Tensor]:
            return [A * torch.where(A > 0, lines.a_low, lines.a_high)], _least(A, lines.b_low, lines.b_high)

        node = self._node(x.like, [x], pull, values)
        node.box = values  # no substitution improves on it: a line below f is nowhere above f's least value
        return node

    def matmul(self, x: GraphNode, y: GraphNode, known: Interval | None = None) -> GraphNode:
        """x y is within r_x r_y of x_c y + x y_c - x_c y_c: on each side that is the mean of McCormick's two planes."""
        X, Y = self.bounds(x), self.bounds(y)
        box = X.matmul(Y) if known is None else X.matmul(Y).meet(known)
        x_c, y_c = (torch.where(c.isfinite(), c, 0.0) for c in (X.centre, Y.centre))
        error = X.radius @ Y.radius
        # Any slope is sound, zero too: an entry whose error exceeds its range (or overflowed) keeps only the range.
        sloped = (error <= box.radius) & error.isfinite()
        low = torch.where(sloped, -x_c @ y_c - error, box.lower)
        high = torch.where(sloped, -x_c @ y_c + error, box.upper)

        def pull(A: Tensor) -> tuple[list[Tensor], Tensor]:
            kept = A.masked_fill(~sloped, 0.0)
            return [kept @ y_c.mT, x_c.mT @ kept], _least(A, low, high)

        return self._node(x.like @ y.like, [x, y], pull, box)

    def relative(self, u: GraphNode, visible: Tensor) -> GraphNode:
        """u less the mean of its row, by the weights of `row_weights`."""
        box = self.bounds(u)
        weights = row_weights(box, visible)
        # Ends of weight 0 may be infinite.
        ends = (torch.where(weights > 0, weights * end, 0.0) for end in (box.lower, box.upper))
        low, high = (end.sum(-1, keepdim=True) for end in ends)

        def pull(A: Tensor) -> tuple[list[Tensor], Tensor]:
            return [A - weights * A.sum(-1, keepdim=True)], A.new_zeros(len(A))

        return self._node(less_mean(u.like, weights), [u], pull, box.plus(Interval(-high, -low)))

    def _node(self, like: Tensor, inputs: list[GraphNode], pull: Pull, known: Interval) -> GraphNode:
        node = GraphNode(len(self.nodes), like, inputs, pull, known)
        self.nodes.append(node)
        return node


def row_weights(box: Interval, visible: Tensor) -> Tensor:
    """Weights for the mean of a row of scores: the softmax at their centre.

    Relative to this mean, the sum of a row's exponentials has slope 0 there. Any weights are sound; they are 0
    where the centre is not finite.
    """
    centre = torch.where(visible & box.centre.isfinite(), box.centre, -torch.inf)
    return centre.softmax(-1).nan_to_num(0.0)


def less_mean(u: Tensor, weights: Tensor) -> Tensor:
    return u - (weights * u).sum(-1, keepdim=True)


def _least(A: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(R,): the smallest A . v over low <= v <= high; ends may be infinite where A is zero."""
    return torch.where(A == 0, 0.0, A * torch.where(A > 0, low, high)).flatten(1).sum(1)
