"""How much memory a structured method will need, counted before it runs.

Everything large is a number of generators times S d. The plan walks through the blocks as Algorithm 1 does and counts
what is alive at the worst moment of each: the set before, the set after, and the pieces just before they are joined.
"""

from __future__ import annotations

from dataclasses import dataclass

from zonogpt.domains.chunks import CHUNK_BYTES


@dataclass(frozen=True)
class Sizes:
    n_tokens: int
    width: int
    n_heads: int
    hidden: int
    n_blocks: int  # residual blocks, attention and MLP in turn
    n_inputs: int  # raw numbers that may move
    inputs_per_token: int


@dataclass(frozen=True)
class Plan:
    limit: int  # generators a token may keep
    shared: int
    local: int  # the largest number kept between blocks
    peak_bytes: int  # of the generators and temporaries; the weights come on top


def plan_structured(
    sizes: Sizes, fused_attention: bool, fused_mlp: bool, promoted: bool, limit: int, item: int
) -> Plan:
    """Predicted generator counts and peak bytes; `item` is the number of bytes per coefficient."""
    d, softmax = sizes.width, sizes.n_heads * sizes.n_tokens
    m = min(sizes.n_inputs, limit) if promoted else 0
    q = 0 if promoted else min(sizes.inputs_per_token, limit)
    most_local, peak = q, 0
    # An interval at the start, which becomes d local generators: inputs beyond the pool, or what a cast rounded off.
    boxed = (sizes.n_inputs if promoted else sizes.inputs_per_token) > limit or item < 8
    for block in range(sizes.n_blocks):
        q_in = q + (d if boxed else 0)
        if block % 2 == 0:
            fresh = d + softmax if fused_attention else 0
            boxed = True
        else:
            fresh = 0 if fused_mlp else d + sizes.hidden
            boxed = fused_mlp
        q_out = q_in + fresh
        # Shared before and after; local before, their images, the fresh ones, and all of these joined.
        alive = 2 * m + 2 * q_in + fresh + q_out
        peak = max(peak, alive)
        q = min(q_out, limit - m)
        if q < q_out:
            boxed = True
            peak = max(peak, m + q_out + q + (q_out - q), m + 2 * q + d)  # while reducing, while converting
        most_local = max(most_local, q)
    bytes_each = sizes.n_tokens * d * item
    return Plan(limit, m, most_local, peak * bytes_each + 5 * CHUNK_BYTES)
