"""The nodes that networks are made of: frozen values, each with its exact forward pass.

Shapes: S tokens, d features, H heads of width e, f hidden units. Weights keep Hugging Face's (in, out) orientation, so
a dense map is `x @ weight + bias`; a bias may be None. `kind` names what a rule must know to bound a node: methods look
their rules up by it. Nodes are equal only where they are the same object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from zonogpt.errors import ModelError
from zonogpt.model.activations import GELU_TANH, Activation

Mask = Literal["causal", "bidirectional"]


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(..., in) -> (..., out)."""
    return x @ weight if bias is None else x @ weight + bias


def size_of(bias: Tensor | None) -> Tensor | float:
    """|bias|; 0 if there is none."""
    return 0.0 if bias is None else bias.abs()


@dataclass(frozen=True)
class Shape:
    """A node without its weights: what its cost depends on, and what it needs rules for."""

    heads: int = 0  # 0: tokens do not see each other here
    inner: int = 0  # features of all heads together
    hidden: int = 0
    causal: bool = True  # no token sees a later one
    activations: tuple[Activation, ...] = ()


@dataclass(frozen=True, eq=False)
class Norm:
    """gamma * z / sqrt(tau + mean(z^2)) + beta, with z = x - mean(x).

    Without `centred`, z is x itself (RMSNorm). Without `scaled`, nothing is divided: a LayerNorm without variance, or,
    not centred either, an affine map (a folded BatchNorm).
    """

    gamma: Tensor  # (d,)
    beta: Tensor | None  # (d,)
    tau: float = 0.0  # added to the variance
    centred: bool = True
    scaled: bool = True

    shape: ClassVar[Shape] = Shape()

    @property
    def kind(self) -> str:
        names = {(True, True): "LayerNorm", (False, True): "RMSNorm", (True, False): "LayerNorm without variance"}
        return names.get((self.centred, self.scaled), "affine norm")

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (self,)

    @property
    def width(self) -> int:
        return self.gamma.shape[0]

    def centre(self, v: Tensor) -> Tensor:
        """v less its mean over the features if the norm is centred, else v: (..., d) -> (..., d)."""
        return v - v.mean(-1, keepdim=True) if self.centred else v

    def centred_size(self, r: Tensor) -> Tensor:
        """Bounds |centre(v)| for |v| <= r: (..., d) -> (..., d)."""
        return r + r.mean(-1, keepdim=True) if self.centred else r

    def centre_gram(self, Q: Tensor) -> Tensor:
        """The Gram of centre(v) for v of Gram Q, (..., d, d): Q - m 1^T - 1 (m - mean m)^T, m the means of the rows."""
        if not self.centred:
            return Q
        m, batch = Q.mean(-1), Q.shape[:-2]
        ones = torch.ones_like(m)
        left, right = torch.stack([m, ones], dim=-1), torch.stack([ones, self.centre(m)], dim=-2)
        flat = [x.reshape(-1, *x.shape[-2:]) for x in (Q, left, right)]
        return torch.baddbmm(*flat, alpha=-1).view(*batch, *Q.shape[-2:])

    def shifted(self, x: Tensor) -> Tensor:
        """x + beta."""
        return x if self.beta is None else x + self.beta

    @property
    def largest(self) -> float:
        """No coordinate of z / sqrt(tau + mean(z^2)) is larger; its 2-norm is below sqrt(d)."""
        return math.sqrt(self.width - 1 if self.centred else self.width) if self.scaled else math.inf

    def __call__(self, x: Tensor) -> Tensor:  # (..., d) -> (..., d)
        if self.centred and self.scaled:
            return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.tau)
        z = self.centre(x)
        z = z * (z.square().mean(-1, keepdim=True) + self.tau).rsqrt() if self.scaled else z
        return self.shifted(z * self.gamma)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotary positions: feature k of a head and feature k + e/2 turn by an angle that grows with the position."""

    cos: Tensor  # (positions, e / 2)
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:  # (..., S, e) -> (..., S, e)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


@dataclass(frozen=True, eq=False)
class Attention:
    """concat_h(softmax(Q_h K_h^T scale) V_h) W_o + b_o, with Q = n W_q + b_q and so on.

    H e need not be d. With fewer `kv_heads` than `n_heads`, neighbouring heads share keys and values.
    """

    w_q: Tensor  # (d, H e)
    w_k: Tensor  # (d, kv_heads e)
    w_v: Tensor  # (d, kv_heads e)
    w_o: Tensor  # (H e, d)
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    b_o: Tensor | None
    n_heads: int
    mask: Mask = "causal"
    shared_heads: int = 1  # heads that share one key and value; kv_heads is n_heads / shared_heads
    rotation: Rotation | None = None

    @property
    def shape(self) -> Shape:
        return Shape(heads=self.n_heads, inner=self.inner, causal=self.causal)

    @property
    def kind(self) -> str:
        rotary = "rotary " if self.rotation is not None else ""
        return rotary + ("grouped attention" if self.shared_heads > 1 else "attention")

    @property
    def kv_heads(self) -> int:
        return self.n_heads // self.shared_heads

    @property
    def width(self) -> int:
        """d: the features of a token."""
        return self.w_q.shape[0]

    @property
    def inner(self) -> int:
        """H e: the features of all heads."""
        return self.w_o.shape[0]

    @property
    def longest(self) -> int:
        """The longer of d and H e: no sum over features has more terms."""
        return max(self.width, self.inner)

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.inner // self.n_heads)

    @property
    def causal(self) -> bool:
        return self.mask == "causal"

    def split_heads(self, x: Tensor) -> Tensor:  # (..., S, H e) -> (..., H, S, e)
        return x.unflatten(-1, (-1, self.inner // self.n_heads)).transpose(-3, -2)

    def join_heads(self, x: Tensor) -> Tensor:  # (..., H, S, e) -> (..., S, H e)
        return x.transpose(-3, -2).flatten(-2)

    def visible(self, n_tokens: int, padding: Tensor | None = None) -> Tensor:
        """(S, S) booleans: whether query i sees key j.

        With `padding` (B,), (B, 1, S, S): that many tokens in front of each sequence are not its own. Each of them sees
        only itself, and no other token sees it.
        """
        full = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=self.w_o.device)
        seen = full.tril() if self.causal else full
        if padding is None:
            return seen
        real = torch.arange(n_tokens, device=seen.device) >= padding[:, None]  # (B, S)
        itself = torch.eye(n_tokens, dtype=torch.bool, device=seen.device)
        return (seen & real[:, None] & real[..., None] | itself)[:, None]

    def __call__(self, n: Tensor) -> Tensor:  # (..., S, d) -> (..., S, d)
        q, k, v = (self.split_heads(dense(n, w, b)) for w, b in self.projections)
        if self.rotation is not None:
            q, k = self.rotation(q), self.rotation(k)
        k, v = (x.repeat_interleave(self.shared_heads, dim=-3) for x in (k, v))
        scores = (q @ k.transpose(-1, -2)) * self.scale  # (..., H, S, S)
        scores = scores.masked_fill(~self.visible(n.shape[-2]), -math.inf)
        return dense(self.join_heads(scores.softmax(-1) @ v), self.w_o, self.b_o)

    @property
    def projections(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        """Weight and bias of queries, keys and values."""
        return (self.w_q, self.b_q), (self.w_k, self.b_k), (self.w_v, self.b_v)


@dataclass(frozen=True, eq=False)
class Mlp:
    """g(n W_1 + b_1) W_2 + b_2."""

    w_1: Tensor  # (d, f)
    b_1: Tensor | None
    w_2: Tensor  # (f, d)
    b_2: Tensor | None
    activation: Activation = GELU_TANH

    kind: ClassVar[str] = "mlp"

    @property
    def shape(self) -> Shape:
        return Shape(hidden=self.w_1.shape[1], activations=(self.activation,))

    def __call__(self, n: Tensor) -> Tensor:  # (..., d) -> (..., d)
        return dense(self.activation(dense(n, self.w_1, self.b_1)), self.w_2, self.b_2)


@dataclass(frozen=True, eq=False)
class Gated:
    """(g(n W_gate) * (n W_up)) W_down."""

    w_gate: Tensor  # (d, f)
    w_up: Tensor  # (d, f)
    w_down: Tensor  # (f, d)
    activation: Activation

    kind: ClassVar[str] = "gated mlp"

    @property
    def shape(self) -> Shape:
        return Shape(hidden=self.w_gate.shape[1], activations=(self.activation,))

    def __call__(self, n: Tensor) -> Tensor:  # (..., d) -> (..., d)
        return (self.activation(n @ self.w_gate) * (n @ self.w_up)) @ self.w_down


@dataclass(frozen=True, eq=False)
class Parallel:
    """The sum of several branches, all of which read the same normalised tokens."""

    branches: tuple[Attention | Mlp | Gated, ...]

    kind: ClassVar[str] = "parallel branches"

    @property
    def shape(self) -> Shape:
        shapes = [branch.shape for branch in self.branches]
        return Shape(
            heads=max(shape.heads for shape in shapes),
            inner=max(shape.inner for shape in shapes),
            hidden=max(shape.hidden for shape in shapes),
            causal=all(shape.causal for shape in shapes),
            activations=tuple(activation for shape in shapes for activation in shape.activations),
        )

    def __call__(self, n: Tensor) -> Tensor:  # (..., S, d) -> (..., S, d)
        first, *others = self.branches
        return sum((branch(n) for branch in others), first(n))


Branch = Attention | Mlp | Gated | Parallel
B = TypeVar("B", bound=Branch, covariant=True)


@dataclass(frozen=True, eq=False)
class Block(Generic[B]):
    """x + branch(norm(x)), or, with the norm last, norm(x + branch(x))."""

    norm: Norm
    branch: B
    norm_first: bool = True

    @property
    def kind(self) -> str:
        return self.branch.kind if self.norm_first else f"post-norm {self.branch.kind}"

    @property
    def shape(self) -> Shape:
        return self.branch.shape

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (self.norm,)

    def __call__(self, x: Tensor) -> Tensor:  # (..., S, d) -> (..., S, d)
        return x + self.branch(self.norm(x)) if self.norm_first else self.norm(x + self.branch(x))


@dataclass(frozen=True, eq=False)
class Dense:
    """A dense map of every token, then an activation or none, without a skip: poolers, masked-LM heads."""

    weight: Tensor  # (d, d')
    bias: Tensor | None
    activation: Activation | None = None

    kind: ClassVar[str] = "dense"
    norms: ClassVar[tuple[Norm, ...]] = ()

    @property
    def shape(self) -> Shape:
        return Shape(activations=() if self.activation is None else (self.activation,))

    def __call__(self, x: Tensor) -> Tensor:  # (..., d) -> (..., d')
        out = dense(x, self.weight, self.bias)
        return out if self.activation is None else self.activation(out)


Node = Block[Branch] | Dense | Norm


@dataclass(frozen=True, eq=False)
class Head:
    """A norm or none, then a weighted sum over the tokens, then a linear map of that to the outputs."""

    norm: Norm | None
    read: Literal["last", "mean", "first"] | Tensor  # or the weights (S,) themselves
    weight: Tensor  # (d, outputs)
    bias: Tensor | None  # (outputs,)

    def read_weights(self, n_tokens: int) -> Tensor:
        """(S,): the weights of the tokens in the sum that is read. ModelError if the head has weights for another S."""
        if isinstance(self.read, Tensor):
            if self.read.shape != (n_tokens,):
                raise ModelError(
                    f"the head reads {len(self.read)} tokens by weights of their own; there are {n_tokens}"
                )
            return self.read
        if self.read == "mean":
            return self.weight.new_full((n_tokens,), 1.0 / n_tokens)
        at = n_tokens - 1 if self.read == "last" else 0
        return F.one_hot(torch.tensor(at), n_tokens).to(self.weight)

    @property
    def layer_norm(self) -> Norm:
        """The head's norm. A head without one must not get here: methods refuse it before they run."""
        assert self.norm is not None
        return self.norm

    @property
    def reading(self) -> str:
        """What is read: "last", "mean", "first" or "weights"."""
        return "weights" if isinstance(self.read, Tensor) else self.read

    @property
    def reads_last(self) -> bool:
        """Whether the head reads only the last token."""
        return self.reading == "last"

    def __call__(self, x: Tensor) -> Tensor:  # (..., S, d) -> (..., outputs)
        n = x if self.norm is None else self.norm(x)
        if isinstance(self.read, Tensor):
            weights = self.read_weights(x.shape[-2])
            return dense((weights[:, None] * n).sum(-2), self.weight, self.bias)
        read = n.mean(-2) if self.read == "mean" else n[..., -1 if self.read == "last" else 0, :]
        return dense(read, self.weight, self.bias)
