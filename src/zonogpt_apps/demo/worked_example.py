"""The paper's worked example (its section 3): one attention block, two tokens, two features, and a property to prove.

As printed it has two slips: the property names the second token (0.7, 0.8) while the computation, and the stated
centre 0.400, belong to (0.7, -0.8); and W_o acts on the left, with no causal mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import CHUNK_BYTES
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, dual_norm
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.methods.baselines import Start
from zonogpt.methods.operators.graph import CrownOperators
from zonogpt.methods.operators.intervals import IntervalOperators
from zonogpt.methods.operators.network import block_output, normalised, projected, scaled_dense, scores, softmax
from zonogpt.methods.operators.zonotopes import DenseZonotope, ZonotopeOperators
from zonogpt.methods.structured import VARIANTS
from zonogpt.model.nodes import Attention, Block, Norm, dense
from zonogpt.transforms.ellipsoidal.attention import attend
from zonogpt.transforms.ellipsoidal.sources import sources
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.queries import Queries
from zonogpt.transforms.structured.attention import attention_bounds

RADIUS = 0.02
PAPER_FUSED, PAPER_DEEPZ = (0.11, 0.69), (-1.24, 1.98)
PAPER_DEEPZ_CENTRE, PAPER_DEEPZ_GENERATORS = 0.36, 34


def _tensor(values: list[float] | list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


CENTRE = _tensor([[0.0, 0.0], [0.7, -0.8]])
BLOCK = Block(
    Norm(_tensor([1.6, 1.8]), _tensor([0.2, 0.3]), 1e-5),
    Attention(
        w_q=_tensor([[3.1, -0.2], [0.7, -1.1]]),
        w_k=_tensor([[1.0, 0.1], [-4.3, 1.2]]),
        w_v=_tensor([[0.8, -3.0], [-0.5, 0.6]]),
        w_o=_tensor([[0.112, 0.029], [0.014, 0.153]]).T,
        b_q=_tensor([-0.1, 0.1]),
        b_k=_tensor([0.0, 0.2]),
        b_v=_tensor([0.2, -0.2]),
        b_o=_tensor([0.32122, 0.95628]),
        n_heads=1,
        mask="bidirectional",
    ),
)


def input_set(method: str) -> StructuredZonotope:
    """The box of radius 0.02 around the centre, in the form in which the method starts."""
    return VARIANTS[method].start(CENTRE, local_generators(), 4)


def bound(method: str) -> StructuredZonotope:
    """The attention block's output set."""
    return VARIANTS[method].step(BLOCK, input_set(method))[0]


def interval(z: StructuredZonotope, token: int = 0, feature: int = 0) -> tuple[float, float]:
    low, high = z.c - z.radius, z.c + z.radius
    return float(low[token, feature]), float(high[token, feature])


def interval_by_adjoint(token: int = 0, feature: int = 0) -> tuple[float, float]:
    """Method E's bounds of one output: its functional and the negative one are pulled back through the block."""
    S, d = CENTRE.shape
    G = torch.zeros(1, S, S * d, d, dtype=CENTRE.dtype)
    for j in range(S * d):
        G[0, j // d, j, j % d] = RADIUS
    z = EllipsoidalZonotope(CENTRE[None], G, torch.zeros(1, S, d, d, dtype=CENTRE.dtype), math.inf)
    seen = sources(BLOCK, z, Prefix.none(z.c, BLOCK.branch), CHUNK_BYTES)
    out, step = attend(seen, Queries.every(S), CHUNK_BYTES)
    functionals = torch.zeros(1, 2, S, d, dtype=CENTRE.dtype)
    functionals[0, :, token, feature] = torch.tensor([1.0, -1.0], dtype=CENTRE.dtype)
    before, losses = step.pull(functionals, CHUNK_BYTES)
    linear = dual_norm(torch.einsum("bknd,bnmd->bkm", before, G), math.inf, -1)
    fall, rise = (linear + torch.stack(list(losses.values())).sum(0))[0].tolist()
    centre = float(out.c[0, token, feature])
    return centre - fall, centre + rise


def local_generators() -> Tensor:
    """(S, q, d): one generator per coordinate of the input, at its own token."""
    return torch.diag_embed(torch.full_like(CENTRE, RADIUS))


def dense_start() -> tuple[ZonotopeOperators, DenseZonotope]:
    """The input box as deepz sees it: four dense generators."""
    ops = ZonotopeOperators(CENTRE.numel(), math.inf, lambda: None)
    return ops, ops.zonotope(CENTRE, RADIUS * torch.eye(CENTRE.numel(), dtype=CENTRE.dtype).view(-1, *CENTRE.shape))


def bound_by_deepz() -> tuple[DenseZonotope, int]:
    """The block's output set, operator by operator, and how many generators it has."""
    ops, x = dense_start()
    return block_output(ops, BLOCK, x), ops.n_symbols


def interval_by_operators(method: str, token: int = 0, feature: int = 0) -> tuple[float, float]:
    """Bounds of one output by ibp, deepz or crown."""
    start = Start(CENTRE, local_generators(), math.inf)
    if method == "ibp":
        box = block_output(IntervalOperators(), BLOCK, start.box)
    elif method == "deepz":
        box = bound_by_deepz()[0].box
    else:
        ops = CrownOperators(start.lowest, CHUNK_BYTES)
        box = ops.bounds(block_output(ops, BLOCK, ops.start(CENTRE, start.box)))
    return float(box.lower[token, feature]), float(box.upper[token, feature])


def sampled_inputs(count: int = 40_000, seed: int = 0) -> Tensor:
    """(count, 2, 2): inputs in the box, half of them on its faces, where the extremes are."""
    g = torch.Generator().manual_seed(seed)
    noise = 2 * torch.rand(count, 2, 2, generator=g, dtype=torch.float64) - 1
    on_face = torch.rand(count, 2, 2, generator=g, dtype=torch.float64) < 0.5
    noise[::2] = torch.where(on_face[::2], noise[::2].sign(), noise[::2])
    return CENTRE + RADIUS * noise


@dataclass(frozen=True)
class FirstToken:
    """Sampled values of the first token behind one step, and the outline of a method's bound of them."""

    title: str
    axis: str  # what the two coordinates are
    samples: Tensor  # (count, 2)
    outline: Tensor  # (corners, 2): the boundary of the bound, a zonotope


@dataclass(frozen=True)
class Samples:
    """Sampled values after each step."""

    norm: Tensor  # (count, S, d)
    scores: Tensor  # (count, H, S, S)
    softmax: Tensor
    output: Tensor

    @staticmethod
    def draw() -> Samples:
        x = sampled_inputs(4000)
        n = BLOCK.norm(x)
        of = BLOCK.branch
        Q, K, _ = (of.split_heads(dense(n, w, b)) for w, b in of.projections)
        U = (Q @ K.transpose(-1, -2)) * of.scale
        return Samples(n, U, U.softmax(-1), BLOCK(x))


def deepz_projections() -> list[FirstToken]:
    """The upper row of the paper's figure: the same steps operator by operator, every error a new generator."""
    ops, x = dense_start()
    seen = Samples.draw()
    n = normalised(ops, BLOCK.norm, x)
    norm = scaled_dense(ops, n, BLOCK.norm, torch.eye(2, dtype=CENTRE.dtype), torch.zeros(2, dtype=CENTRE.dtype))
    q, k, _ = projected(ops, BLOCK, n)
    U = scores(ops, q, k)
    P = softmax(ops, U, BLOCK.branch)
    out = bound_by_deepz()[0]
    return [
        FirstToken("LayerNorm", "feature", seen.norm[:, 0], zonogon(norm.c[0], norm.G[:, 0])),
        FirstToken("scores", "key", seen.scores[:, 0, 0], zonogon(U.c[0, 0], U.G[:, 0, 0])),
        FirstToken("softmax", "key", seen.softmax[:, 0, 0], zonogon(P.c[0, 0], P.G[:, 0, 0])),
        FirstToken("output", "feature", seen.output[:, 0], zonogon(out.c[0], out.G[:, 0])),
    ]


def fused_projections() -> list[FirstToken]:
    """The lower row of the paper's figure: LayerNorm, scores, softmax, and the block's output, fused."""
    z, seen = input_set("A"), Samples.draw()
    bounds = attention_bounds(BLOCK, z)
    norm, point, out = bounds.norm, bounds.point, bound("A")
    U = (point.Q @ point.K.transpose(-1, -2)) * BLOCK.branch.scale
    T_U = bounds.f["U"] + bounds.R["U"]
    norm_generators = torch.cat([norm.jacobian(z.G.transpose(0, 1))[0], norm.error_generators()[0]])
    out_generators = torch.cat([out.G[:, 0], out.L[0], torch.diag(out.b[0])])
    P_box = torch.diag(bounds.softmax.total[0, 0])
    return [
        FirstToken("LayerNorm", "feature", seen.norm[:, 0], zonogon(norm.centre[0], norm_generators)),
        FirstToken("scores", "key", seen.scores[:, 0, 0], zonogon(U[0, 0], torch.diag(T_U[0, 0]))),
        FirstToken("softmax", "key", seen.softmax[:, 0, 0], zonogon(point.P[0, 0], P_box)),
        FirstToken("output", "feature", seen.output[:, 0], zonogon(out.c[0], out_generators)),
    ]


def zonogon(centre: Tensor, generators: Tensor) -> Tensor:
    """The corners, in order, of the planar zonotope with this centre (2,) and these generators (n, 2)."""
    g = generators[generators.abs().sum(-1) > 0]
    if len(g) == 0:
        return centre[None]
    g = torch.where(((g[:, 1] < 0) | ((g[:, 1] == 0) & (g[:, 0] < 0)))[:, None], -g, g)  # into the upper half plane
    g = g[torch.atan2(g[:, 1], g[:, 0]).argsort()]
    start = centre - g.sum(0)
    up = start + torch.cat([torch.zeros_like(start)[None], 2 * g.cumsum(0)])
    down = 2 * centre - up
    return torch.cat([up, down[1:]])


def intervals() -> dict[str, tuple[float, float]]:
    """Bounds of [A(x)]_11 over the box: sampled, by every method here, and as the paper prints them."""
    sampled = BLOCK(sampled_inputs())[:, 0, 0]
    return {
        "sampled": (float(sampled.min()), float(sampled.max())),
        "E": interval_by_adjoint(),
        **{name: interval(bound(name)) for name in ("A", "A-literal")},
        "paper, fused": PAPER_FUSED,
        **{name: interval(bound(name)) for name in ("D", "D-literal")},
        **{name: interval_by_operators(name) for name in ("crown", "deepz")},
        "paper, DeepZ": PAPER_DEEPZ,
        "ibp": interval_by_operators("ibp"),
    }
