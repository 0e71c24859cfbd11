"""Tokens as the queries of an attention block see them: keys and values at the centre, and the Grams of their errors.

This is a key/value cache of sets: it does not depend on the queries. The symbols' tangents of keys and values are not
in it; `attend` computes them chunk by chunk. Axes as in attention_point.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from zonogpt.domains.choices import Choices
from zonogpt.domains.ellipsoidal import (
    EllipsoidalZonotope,
    image_rounding,
    minkowski,
    sandwich,
    symmetric_product,
    widened,
)
from zonogpt.model.nodes import Attention, Block, dense
from zonogpt.transforms.ellipsoidal.norm import NormStep, norm_step
from zonogpt.transforms.prefix import Prefix


@dataclass(frozen=True)
class Sources:
    """p tokens that do not move, followed by n that do.

    `merged` covers, at LayerNorm's output of a moving token, its old error (through the Jacobian) and LayerNorm's own
    error together; KK_heads and VV are the images of `merged` in keys and values.
    """

    attention: Attention
    prefix: Prefix
    z: EllipsoidalZonotope  # the moving tokens, before the block
    norm: NormStep  # of these
    K: Tensor  # (B, H, S, e): at the centre
    V: Tensor
    merged: Tensor  # (B, n, d, d)
    KK_heads: Tensor  # (B, H, n, e, e): keys meet queries head by head, so no Gram over all heads is formed
    VV: Tensor  # (B, n, H e, H e), all pairs of heads
    choices: Choices

    @property
    def n_tokens(self) -> int:
        return self.K.shape[2]

    @property
    def VV_heads(self) -> Tensor:
        return head_blocks(self.VV, self.attention.n_heads)


def sources(block: Block[Attention], z: EllipsoidalZonotope, prefix: Prefix, limit: int) -> Sources:
    """The tokens z, and those before them, as the block's queries see them. Time O(n d^3 + n S d)."""
    attention, choices = block.branch, Choices()
    norm = norm_step(block.norm, z, limit)
    n = prefix.before(norm.centre)
    _, of_key, of_value = attention.projections
    merged = minkowski(norm.jacobian_gram(z.Q), norm.error_gram, note=choices.at("t_merged"))
    return Sources(
        attention=attention,
        prefix=prefix,
        z=z,
        norm=norm,
        K=attention.split_heads(dense(n, *of_key)),
        V=attention.split_heads(dense(n, *of_value)),
        merged=merged,
        KK_heads=head_grams(merged, attention.w_k, attention.n_heads),
        VV=sandwich(merged, attention.w_v),
        choices=choices,
    )


def by_head(w: Tensor, n_heads: int) -> Tensor:
    """(d, H e) -> (H, d, e)."""
    return w.unflatten(-1, (n_heads, -1)).transpose(0, 1)


def head_grams(merged: Tensor, w: Tensor, n_heads: int) -> Tensor:
    """(B, H, n, e, e): W_h^T merged W_h for every head, and its rounding."""
    wide = (merged @ w).unflatten(-1, (n_heads, -1)).permute(0, 3, 1, 2, 4)  # (B, H, n, d, e)
    w_heads = by_head(w, n_heads)[:, None]
    out = symmetric_product(w_heads.mT, wide)
    return widened(out, image_rounding(merged[:, None], w_heads.square().sum((-1, -2))))


def head_blocks(gram: Tensor, n_heads: int) -> Tensor:
    """The diagonal blocks of (B, n, H e, H e), one per head: (B, H, n, e, e), a view."""
    blocks = gram.unflatten(-1, (n_heads, -1)).unflatten(-3, (n_heads, -1))  # (B, n, H, e, H, e)
    return blocks.diagonal(dim1=2, dim2=4).permute(0, 4, 1, 2, 3)
