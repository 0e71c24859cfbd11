"""How much memory a run will need, counted before it runs.

In the paper's methods everything large is a number of generators times S d. The plan walks through the blocks as
Algorithm 1 does and counts what is alive at the worst moment of each: the set before, the set after, and the pieces
just before they are joined. Method E keeps one state per block for its backward pass and a few Grams for the moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from zonogpt.domains.chunks import temporary_bytes
from zonogpt.model.ir import AttentionBlock, Model
from zonogpt.spec.spec import Spec
from zonogpt.transforms.ellipsoidal.attention import KEPT_CHUNKS


@dataclass(frozen=True)
class Sizes:
    n_tokens: int  # that are propagated
    length: int  # tokens in all: those before the first that moves are keys for the others
    width: int
    n_heads: int
    hidden: int
    n_blocks: int  # residual blocks, attention and MLP in turn
    n_inputs: int  # raw numbers that may move
    inputs_per_token: int
    device_type: str = "cpu"


def whole_sizes(model: Model, spec: Spec) -> Sizes:
    """Of a run that treats all tokens alike, whether they move or not."""
    box = spec.input
    return Sizes(
        box.n_tokens, box.n_tokens, model.width, model.n_heads, model.hidden, len(model.blocks), n_moving(spec),
        box.inputs_per_token, model.device.type,
    )  # fmt: skip


def n_moving(spec: Spec) -> int:
    return max(1, int((spec.input.upper > spec.input.lower).sum()))


@dataclass(frozen=True)
class Plan:
    limit: int | None  # generators a token may keep; None: no such limit
    shared: int | None  # symbols of the input; None: the method has none
    local: int | None  # the largest number kept; None: the method has no such generators
    peak_bytes: int  # of the generators and temporaries; the weights come on top
    tape_bytes: int = 0  # method E: the part of it that the backward pass needs, which grows with depth


def plan_structured(
    sizes: Sizes, fused_attention: bool, fused_mlp: bool, promoted: bool, limit: int, item: int
) -> Plan:
    """Predicted generator counts and peak bytes; `item` is the number of bytes per coefficient."""
    d, softmax = sizes.width, sizes.n_heads * sizes.n_tokens
    m = min(sizes.n_inputs, limit) if promoted else 0
    q = 0 if promoted else min(sizes.inputs_per_token, limit)
    most_local, peak = q, 0
    # An interval, which becomes d local generators: inputs beyond the pool, or what rounding leaves in float32.
    boxed = (sizes.n_inputs if promoted else sizes.inputs_per_token) > limit or item < 8
    for block in range(sizes.n_blocks):
        q_in = q + (d if boxed else 0)
        if block % 2 == 0:
            fresh = d + softmax if fused_attention else 0
            boxed = True
        else:
            fresh = 0 if fused_mlp else d + sizes.hidden
            boxed = fused_mlp or item < 8
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
    return Plan(limit, m, most_local, peak * bytes_each + 5 * temporary_bytes(sizes.device_type))


SMALLEST_CHUNK = 1 << 24


def largest_chunk(device_type: str) -> int:
    """A GPU wants few, large calls."""
    return 1 << 32 if device_type == "cuda" else 1 << 30


def most_kept_bytes(device_type: str) -> int:
    """Of a batch's tangents; with more they would be computed twice."""
    return KEPT_CHUNKS * largest_chunk(device_type)


def plan_ellipsoidal(sizes: Sizes, item: int, batch: int, budget_bytes: int | None) -> Plan:
    """Predicted peak of method E for `batch` inputs, each with `sizes.n_tokens` moving tokens."""
    attention, mlp, tape = _ellipsoidal_bytes(sizes, item, batch)
    chunk, kept = chunk_bytes(sizes, item, batch, budget_bytes), batch * kept_bytes(sizes, item)
    if kept <= KEPT_CHUNKS * chunk:
        attention += kept
    still = sizes.length - sizes.n_tokens
    alone = still * still_token_bytes(sizes.width, sizes.n_heads, sizes.hidden, still)  # before all else
    return Plan(None, sizes.n_inputs, None, max(tape + max(attention, mlp), alone) + chunk, tape)


def still_token_bytes(width: int, n_heads: int, hidden: int, length: int) -> int:
    """Of each token that does not move, among so many of them, on their way through the network."""
    d, attention = width, 8 * width * width + 6 * n_heads * length * length + 8 * length * width
    return 8 * (2 * d * (d + 10) + max(attention, d * (3 * hidden + 6 * d)))


def known_token_bytes(model: Model) -> int:
    """Of each such token, what is remembered; at a head that reads all tokens also its set."""
    d, attentions = model.width, sum(isinstance(block, AttentionBlock) for block in model.blocks)
    return 8 * d * (5 * max(1, attentions) + (d + 1 if model.head.pool == "mean" else 0))


def chunk_bytes(sizes: Sizes, item: int, batch: int, budget_bytes: int | None) -> int:
    """Bytes that temporaries over the input symbols may take: what the budget leaves, within sensible limits.

    What is kept of them takes no more than KEPT_CHUNKS as much again.
    """
    per_symbol = sizes.n_tokens * sizes.width + sizes.n_heads * sizes.n_tokens * sizes.length
    everything = item * batch * sizes.n_inputs * 10 * per_symbol
    largest = min(largest_chunk(sizes.device_type), max(SMALLEST_CHUNK, everything))
    if budget_bytes is None:
        return largest
    attention, mlp, tape = _ellipsoidal_bytes(sizes, item, batch)
    left = budget_bytes - tape - max(attention, mlp)
    return min(largest, max(SMALLEST_CHUNK, left // (1 + KEPT_CHUNKS)))


def kept_bytes(sizes: Sizes, item: int) -> int:
    """Tangents of queries, keys, values and scores of one input, between their two uses."""
    return item * sizes.n_inputs * sizes.n_tokens * (3 * sizes.width + sizes.n_heads * sizes.length)


def _ellipsoidal_bytes(sizes: Sizes, item: int, batch: int) -> tuple[int, int, int]:
    """Temporaries of an attention block and of an MLP block that are not chunked, and the tape."""
    n, S, d, m, H, f = sizes.n_tokens, sizes.length, sizes.width, sizes.n_inputs, sizes.n_heads, sizes.hidden
    # The tangents are of the dtype, all else of float64.
    state = 8 * n * d * (d + 10) + item * n * d * m  # a set, and what LayerNorm remembers of it
    per_layer = 8 * (2 * n * d * (d // H) + 10 * H * n * S + 6 * n * d + 2 * S * d + 2 * n * f + 5 * (S - n) * d)
    tape = (sizes.n_blocks + 1) * state + sizes.n_blocks // 2 * per_layer
    tape += 8 * n * d * m if item < 8 else 0  # the input's generators, before they are rounded
    attention = 8 * (8 * n * d * d + 6 * H * n * S * S + 8 * n * S * d) + item * n * d * m
    mlp = 8 * n * d * (3 * f + 6 * d) + item * n * d * m
    return batch * attention, batch * mlp, batch * tape
