"""The fused attention block (paper, section "Fused Attention Block Transform" and its appendix).

A(x) = x + B(LN(x)). LayerNorm gives n = n_0 + J (x - c) + e_N; the error e_N is written as generators at LayerNorm's
output, so that the branch treats it linearly too, and B is linearised at n_0:

    A(x) = A_0 + [x - c + J_B J (x - c)] + J_B e_N + concat(e_P V + dP dV) W_o

The first bracket keeps every input symbol. What a local symbol adds to it at *other* tokens goes to the interval, as in
the paper. e_P V becomes recentred local generators, dP dV an interval. All products with W_o are composed before
absolute values are taken. Derivations: docs/math.md, Lemma 5.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, temporary_bytes
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import StructuredZonotope, abs_sum
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.nodes import Attention, Block
from zonogpt.support.tensors import moved
from zonogpt.transforms.attention_rounding import (
    AttentionRounding,
    NormSizes,
    Skip,
    attention_rounding,
    head_rounding,
    output_rounding,
)
from zonogpt.transforms.execution import AttentionSizes, attention_error
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.softmax import SoftmaxBounds, softmax_bounds
from zonogpt.transforms.structured.attention_point import (
    AttentionPoint,
    attention_point,
    cross_images,
    local_tangents,
    own_images,
    shared_images,
    shared_tangents,
    value_images,
)
from zonogpt.transforms.structured.layernorm import LayerNormBounds, layernorm_bounds
from zonogpt.transforms.structured.widths import Widths


@dataclass(frozen=True)
class FirstOrder:
    """Sums of absolute tangents over a family of generators: bounds of the linear change of each quantity."""

    Q: Tensor  # (H, S, e)
    K: Tensor
    V: Tensor
    U: Tensor  # (H, S, S)
    P: Tensor  # (H, S, S), before any softmax slope is dropped
    VW: Tensor  # (H, S, d)

    def __add__(self, other: FirstOrder) -> FirstOrder:
        return FirstOrder(*(a + b for a, b in zip(self._parts(), other._parts(), strict=True)))

    def rounded_up(self, terms: int, dtype: torch.dtype) -> FirstOrder:
        """These sums in `dtype`, rounded up: not below the exact sums of `terms` terms."""
        return FirstOrder(*(up(part, terms).to(dtype) for part in self._parts()))

    def _parts(self) -> tuple[Tensor, ...]:
        return self.Q, self.K, self.V, self.U, self.P, self.VW


@dataclass(frozen=True)
class AttentionBounds:
    """Contracts over all x in Z, for X in Q, K, V, U, P:  |J_X (x - c)| <= f_X  and  |X(x) - X - J_X (x - c)| <= R_X.

    J_X is the Jacobian of X as a function of x at the centre, with LayerNorm's slope, and for P softmax's slope, only
    where they are kept. `softmax.remainder` is the part of R_P that is not the image of LayerNorm's error.
    """

    norm: LayerNormBounds
    point: AttentionPoint
    narrow: AttentionPoint  # the point in the generators' type
    from_input: FirstOrder
    from_norm: FirstOrder
    rounding: AttentionRounding
    score_product: Tensor  # (H, S, S): bounds |dQ dK^T| / sqrt(e) and the rounding of the scores
    softmax: SoftmaxBounds

    @property
    def value_change(self) -> Tensor:
        """(H, S, d): bounds |(V(x) - V) W_o| head by head, linear part, error and rounding together."""
        lost = self.rounding.value(self.narrow.Q.dtype) @ self.point.w_o.abs()
        forming = gamma(2 * self.point.attention.longest + 8, self.narrow.Q.dtype)
        lost = lost + forming * (self.rounding.V_moving @ self.point.w_o.abs())
        return up(self.from_input.VW + self.from_norm.VW + lost, self.point.w_o.shape[-1])

    @property
    def value_product(self) -> Tensor:
        """(S, d): bounds |sum_hj (P(x) - P)_hij (V(x) - V)_hj W_o|."""
        sums = torch.einsum("hij,hjd->id", self.softmax.total, self.value_change)
        return up(sums, self.softmax.total.shape[0] * self.softmax.total.shape[-1])

    @property
    def f(self) -> dict[str, Tensor]:
        sums = {name: getattr(self.from_input, name) for name in "QKVU"}
        return sums | {"P": self.from_input.P * self.softmax.sloped[..., None]}

    @property
    def R(self) -> dict[str, Tensor]:
        e = self.from_norm
        from_norm_P = e.P * self.softmax.sloped[..., None]
        return {
            "Q": e.Q + self.rounding.query, "K": e.K + self.rounding.key,
            "V": e.V + self.rounding.value(self.narrow.Q.dtype),
            "U": e.U + self.score_product,
            "P": from_norm_P + self.softmax.remainder,
        }  # fmt: skip


def attention_bounds(block: Block[Attention], z: StructuredZonotope) -> AttentionBounds:
    """All intermediate bounds of the block over z."""
    norm = layernorm_bounds(block.norm, z)
    point = attention_point(block.branch, norm.centre)
    narrow = moved(point, z.c.device, z.G.dtype)
    G, L = z.generator_stacks()
    local = _local_sums(narrow, map(norm.jacobian, _parts(narrow, L)))
    from_input = (_shared_sums(narrow, norm, G) + local).rounded_up(z.m + z.q * z.n_tokens, z.c.dtype)
    errors = norm.error_generators().to(z.G.dtype)
    from_norm = _local_sums(narrow, _parts(narrow, errors)).rounded_up(errors.shape[1] * z.n_tokens, z.c.dtype)
    total = from_input + from_norm
    r = rounding_of(point, norm, z)
    product = ((total.Q + r.query) @ (total.K + r.key).transpose(-1, -2)) * block.branch.scale
    product = up(product + r.scores, point.Q.shape[-1]).masked_fill(~point.visible, 0.0)
    softmax = softmax_bounds(
        point.log_P,
        f_P=total.P + tangent_rounding(point, r),
        R_U=product,
        T_U=up(total.U + product),
        doubt=point.doubt,
    )
    require_finite("attention softmax", softmax.remainder, softmax.total)
    return AttentionBounds(norm, point, narrow, from_input, from_norm, r, product, softmax)


def rounding_of(point: AttentionPoint, norm: LayerNormBounds, z: StructuredZonotope) -> AttentionRounding:
    """The block's rounding. The prefix is empty: here every token counts as moving."""
    sizes = NormSizes(norm.centre, norm.reach, norm.rounding)
    return attention_rounding(point, Prefix.none(norm.centre, point.attention), sizes, z.G.dtype, z.m + z.q)


def tangent_rounding(point: AttentionPoint, r: AttentionRounding) -> Tensor:
    """(H, S, S): the rounding of the tangents of P beyond that of the scores' tangents, all symbols together."""
    moving = point.P * (r.U_moving + (point.P * r.U_moving).sum(-1, keepdim=True))
    d, (S, e) = point.attention.longest, point.Q.shape[-2:]
    return up(gamma(d + e + 3 * S + 16, r.narrow) * moving, S)


def branch_rounding(
    norm: LayerNormBounds,
    point: AttentionPoint,
    r: AttentionRounding,
    softmax: SoftmaxBounds,
    z: StructuredZonotope,
    arithmetic: Arithmetic,
) -> Tensor:
    """(S, d): the rounding of the block's output, with float32 that of executions too; plus the skip's interval."""
    P, narrow = point.P, z.G.dtype
    coefficients = P + softmax.total + softmax.remainder
    heads = head_rounding(point, r, coefficients, softmax.total, narrow)
    spread = P * (r.U_moving + (P * r.U_moving).sum(-1, keepdim=True))
    linear = spread @ point.V.abs() + spread.sum(-1, keepdim=True) * point.O.abs() + P @ r.V_moving
    rounding = output_rounding(point, heads, linear, point.O, Skip(z.c, z.radius), narrow) + z.b
    rounding = rounding + r.underflow(z.c.shape[-1], narrow)
    if arithmetic == "real":
        return rounding
    Q, K, V = (up(x.abs() + y) for x, y in ((point.Q, r.Q_moving), (point.K, r.K_moving), (point.V, r.V_moving)))
    most = up(P + softmax.total).clamp(max=1).masked_fill(point.hidden, 0.0)
    skip = up(z.c.abs() + z.radius)
    sizes = AttentionSizes(Q, K, V, most, norm.size, norm.execution_error(z), skip)
    return rounding + attention_error(point.attention, point.queries, sizes)


def fused_attention(
    block: Block[Attention], z: StructuredZonotope, arithmetic: Arithmetic = "real"
) -> tuple[StructuredZonotope, Widths]:
    """Z_A with A(x) in Z_A for x in z, the symbols of z kept in place (Theorem: fused attention soundness).

    Appends per token d generators for LayerNorm's error and H S for softmax's. Memory O(S d (m + q + d + H S)).
    """
    bounds = attention_bounds(block, z)
    norm, point, narrow, sloped = bounds.norm, bounds.point, bounds.narrow, bounds.softmax.sloped
    dtype = z.G.dtype

    G = z.G.clone()
    for part in chunks(z.m, _shared_bytes(point), temporary_bytes(z.c.device.type)):
        n_dot = norm.jacobian(z.G[part].transpose(0, 1)).transpose(0, 1)
        G[part] += shared_images(narrow, shared_tangents(narrow, n_dot), sloped)

    L, crossed = _local_images(bounds, z.L, through_norm=True)
    L = L + z.L  # the skip
    E, crossed_norm = _local_images(bounds, norm.error_generators().to(dtype), through_norm=False)
    softmax_generators = recentred_generators(bounds.softmax.remainder, point.VW).to(dtype)  # (S, H S, d)
    product = bounds.value_product
    rounding = branch_rounding(norm, point, bounds.rounding, bounds.softmax, z, arithmetic)
    rounding = up(rounding + recentring_rounding(bounds.softmax.remainder, point, dtype))

    out = StructuredZonotope(
        c=z.c + point.branch(),
        G=G,
        L=torch.cat([L, E, softmax_generators], dim=1),
        b=up(crossed + crossed_norm + product + rounding),
    )
    require_finite("attention output", out.c, out.G, out.L, out.b)
    widths = Widths.of(
        carried=abs_sum(G, 0) + abs_sum(L, 1),
        cross_token=crossed,
        layernorm=abs_sum(E, 1) + crossed_norm,
        softmax=abs_sum(softmax_generators, 1),
        product=product,
        rounding=rounding,
    )
    return out, widths


def recentring_rounding(remainder: Tensor, point: AttentionPoint, dtype: torch.dtype) -> Tensor:
    """(S, d): what `recentred_generators` misses: their rounding, and that P, as computed, does not add up to 1.

    The value that they subtract lies between the smallest and the largest VW_hj over j.
    """
    largest = point.VW.abs().amax(1)  # (H, d)
    weight = gamma(point.Q.shape[-1] + 8, dtype) * 2 * remainder.sum(-1) + 2 * point.doubt  # (H, S)
    return up(weight.T @ largest, weight.shape[0] + remainder.shape[-1])


def recentred_generators(remainder: Tensor, VW: Tensor) -> Tensor:
    """Local generators (S, H S, d) that contain sum_hj e_hij VW_hj for all |e_hij| <= remainder with sum_j e_hij = 0.

    Since each row of e sums to zero, any a_hi may be taken from every VW_hj: the generators are
    remainder_hij (VW_hj - a_hi). The weighted median of VW_hj over j makes their radius smallest.
    """
    H, S, _ = remainder.shape
    d = VW.shape[-1]
    out = VW.new_zeros(S, H, S, d)
    for part in chunks(S, 3 * H * S * d * VW.element_size(), temporary_bytes(VW.device.type)):
        centre = weighted_median(VW[:, None], remainder[:, part, :, None])  # (H, I, d)
        generators = remainder[:, part, :, None] * (VW[:, None] - centre[:, :, None])  # (H, I, S, d)
        out[part] = generators.transpose(0, 1)
    return out.flatten(1, 2)


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """A minimiser over a of sum_j weights_j |values_j - a|, the sum over dimension -2; weights >= 0."""
    values, weights = torch.broadcast_tensors(values, weights)
    ordered, index = values.sort(dim=-2)
    mass = weights.gather(-2, index).cumsum(dim=-2)
    middle = (mass < mass[..., -1:, :] / 2).sum(dim=-2, keepdim=True).clamp(max=values.shape[-2] - 1)
    return ordered.gather(-2, middle).squeeze(-2)


def _shared_bytes(point: AttentionPoint) -> int:
    """Bytes that one shared generator needs while it passes through the branch."""
    H, S, e = point.Q.shape
    return point.Q.element_size() * (6 * S * H * e + 2 * H * S * S)


def _parts(point: AttentionPoint, stack: Tensor) -> Iterator[Tensor]:
    """Chunks of local tangents (S, n, d), small enough for their head-by-head images (S, n, H, d)."""
    H, S, e = point.Q.shape
    each = stack.element_size() * S * H * (H * e + 3 * S)
    for part in chunks(stack.shape[1], each, temporary_bytes(stack.device.type)):
        yield stack[:, part]


def _shared_sums(point: AttentionPoint, norm: LayerNormBounds, G: Tensor) -> FirstOrder:
    sums = _zero_sums(point)
    for part in chunks(G.shape[1], _shared_bytes(point), temporary_bytes(G.device.type)):
        t = shared_tangents(point, norm.jacobian(G[:, part]).transpose(0, 1))
        # Head by head, so that (n, S, d) is the largest temporary.
        VW = torch.stack([(t.V[:, h] @ w).abs().sum(0) for h, w in enumerate(point.w_o)])
        sums += FirstOrder(t.Q.abs().sum(0), t.K.abs().sum(0), t.V.abs().sum(0), t.U.abs().sum(0), t.P.abs().sum(0), VW)
    return sums


def _local_sums(point: AttentionPoint, parts: Iterable[Tensor]) -> FirstOrder:
    sums = _zero_sums(point)
    for n_dot in parts:
        t = local_tangents(point, n_dot)
        Q, K, V = (part.abs().sum(1).transpose(0, 1) for part in (t.Q, t.K, t.V))
        column = t.column.abs().sum(1).permute(1, 2, 0)  # (H, i, s)
        row, row_P = (part.abs().sum(1).transpose(0, 1) for part in (t.row, t.row_P))  # (H, s, j)
        # A source's key changes row i of P by P_ij (delta_js - P_is) u: sum over sources s != i, then the own row.
        spread = point.P * (column * point.P).sum(-1, keepdim=True)  # sum_s P_is u_is, times P_ij
        own = point.P * column * ((1 - point.P) - point.P)  # j = s: 1 - P_is in place of P_is
        VW = value_images(point, t.V).abs().sum(1).transpose(0, 1)
        sums += FirstOrder(Q, K, V, column + row, spread + own + row_P, VW)
    return sums


def _zero_sums(point: AttentionPoint) -> FirstOrder:
    like = (point.Q, point.K, point.V, point.P, point.P, point.VW)
    return FirstOrder(*(torch.zeros_like(t) for t in like))


def _local_images(bounds: AttentionBounds, stack: Tensor, through_norm: bool) -> tuple[Tensor, Tensor]:
    """Images of local tangents (S, n, d) in the branch: at their own token (S, n, d), and summed absolute values at the
    others (S, d)."""
    point, sloped = bounds.narrow, bounds.softmax.sloped
    own = torch.zeros_like(stack)
    crossed = bounds.norm.centre.new_zeros(stack.shape[0], stack.shape[2])
    start = 0
    for part in _parts(point, stack):
        n = part.shape[1]
        t = local_tangents(point, bounds.norm.jacobian(part) if through_norm else part)
        V_image = value_images(point, t.V)  # (S, n, H, d)
        for s in range(point.n_tokens):
            own[s, start : start + n] = own_images(point, s, V_image[s], t.row_P[s], sloped)
            queries = point.visible[:, s].nonzero().squeeze(1)
            queries = queries[queries != s]
            images = cross_images(point, s, queries, V_image[s], t.column[s], sloped)
            crossed[queries] += up(images.abs().sum(1), n).to(crossed.dtype)
        start += n
    return own, up(crossed, stack.shape[0] * stack.shape[1])
