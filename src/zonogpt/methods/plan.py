"""How much memory a run will need, counted before it runs.

In the paper's methods everything large is a number of generators times S d. The plan walks through the blocks as
Algorithm 1 does and counts what is alive at the worst moment of each: the set before, the set after, and the pieces
just before they are joined. Method E keeps one state per block for its backward pass and a few Grams for the moment.
At the head the claim's rows come on top: a language model has one, of width d, for every other token it could say.
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
    n_rows: int  # of the claim
    device_type: str = "cpu"


def whole_sizes(model: Model, spec: Spec) -> Sizes:
    """Of a run that treats all tokens alike, whether they move or not."""
    box = spec.input
    return Sizes(
        box.n_tokens, box.n_tokens, model.width, model.n_heads, model.hidden, len(model.blocks), n_moving(spec),
        box.embed.inputs_per_token, spec.claim.n_rows, model.device.type,
    )  # fmt: skip


def n_moving(spec: Spec) -> int:
    return max(1, int((spec.input.upper > spec.input.lower).sum()))


@dataclass(frozen=True)
class Plan:
    limit: int | None  # generators a token may keep; None: no such limit
    shared: int | None  # symbols of the input; None: the method has none
    local: int | None  # the largest number kept; None: the method has no such generators
    peak_bytes: int  # of generators, claim rows and temporaries; the weights come on top (held_bytes)
    tape_bytes: int = 0  # method E: the part of it that the backward pass needs, which grows with depth


def held_bytes(n_parameters: int, run_parameters: int, model_item: int, item: int, judged: bool) -> int:
    """Weights: the model as loaded, its blocks and head (`run_parameters`) in float64, in which every run works, and in
    the types of tangents and of rounding, where these are others; the judge in float64, and in float32 once it has
    replayed an input."""
    others = {item, 4} - {8, model_item}
    return n_parameters * (model_item + (12 if judged else 0)) + run_parameters * (8 + sum(others))


def rows_bytes(sizes: Sizes, copies: int) -> int:
    """So many arrays of all rows of the claim, or of the head's weights, in float64."""
    return copies * 8 * sizes.n_rows * sizes.width


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
    at_head = (m + q + d) * bytes_each + rows_bytes(sizes, 6)
    return Plan(limit, m, most_local, max(peak * bytes_each, at_head) + 5 * temporary_bytes(sizes.device_type))


SMALLEST_CHUNK = 1 << 24


def largest_chunk(device_type: str) -> int:
    """A GPU wants few, large calls; with 4 GiB it was no faster than with 2."""
    return 1 << 31 if device_type == "cuda" else 1 << 30


def most_kept_bytes(device_type: str) -> int:
    """Of a batch's tangents; with more they would be computed twice."""
    return KEPT_CHUNKS * largest_chunk(device_type)


FULL = {"cuda": 1 << 30}  # bytes of ellipsoids of a batch


def filling_batch(sizes: Sizes) -> int:
    """How many such inputs fill the device, so that more of them together would take more memory and no less time.

    Ellipsoids of a gigabyte: 11 texts of 20 moving tokens at width 768. On an H200 half of that took a quarter more
    time, and twice as much no less (benchmarks/batches.py).
    """
    return max(1, FULL.get(sizes.device_type, 1 << 62) // (8 * sizes.n_tokens * sizes.width**2))


def plan_ellipsoidal(sizes: Sizes, item: int, batch: int, budget_bytes: int | None) -> Plan:
    """Predicted peak of method E for `batch` inputs, each with `sizes.n_tokens` moving tokens."""
    attention, others, tape = _ellipsoidal_bytes(sizes, item, batch)
    chunk, kept = chunk_bytes(sizes, item, batch, budget_bytes), batch * kept_bytes(sizes, item)
    if kept <= KEPT_CHUNKS * chunk:
        attention += kept
    still = sizes.length - sizes.n_tokens
    alone = still * still_token_bytes(sizes.width, sizes.n_heads, sizes.hidden, still)  # before all else
    return Plan(None, sizes.n_inputs, None, max(tape + max(attention, others), alone) + chunk, tape)


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
    attention, others, tape = _ellipsoidal_bytes(sizes, item, batch)
    left = budget_bytes - tape - max(attention, others)
    return min(largest, max(SMALLEST_CHUNK, left // (1 + KEPT_CHUNKS)))


def kept_bytes(sizes: Sizes, item: int) -> int:
    """Tangents of queries, keys, values and scores of one input, between their two uses."""
    return item * sizes.n_inputs * sizes.n_tokens * (3 * sizes.width + sizes.n_heads * sizes.length)


def _ellipsoidal_bytes(sizes: Sizes, item: int, batch: int) -> tuple[int, int, int]:
    """Temporaries that are not chunked: of an attention block, of an MLP block or the head; and the tape."""
    n, S, d, m, H, f = sizes.n_tokens, sizes.length, sizes.width, sizes.n_inputs, sizes.n_heads, sizes.hidden
    # The tangents are of the dtype, all else of float64.
    state = 8 * n * d * (d + 10) + item * n * d * m  # a set, and what LayerNorm remembers of it
    per_layer = 8 * (2 * n * d * (d // H) + 10 * H * n * S + 6 * n * d + 2 * S * d + 2 * n * f + 5 * (S - n) * d)
    tape = (sizes.n_blocks + 1) * state + sizes.n_blocks // 2 * per_layer
    tape += 8 * n * d * m if item < 8 else 0  # the input's generators, before they are rounded
    attention = 8 * (8 * n * d * d + 6 * H * n * S * S + 8 * n * S * d) + item * n * d * m
    mlp = 8 * n * d * (3 * f + 6 * d) + item * n * d * m
    # Each input's rows once more while they are put together, those of one in the making, and the head's weights.
    head = rows_bytes(sizes, batch + 2)
    return batch * attention, max(batch * mlp, head), batch * tape + rows_bytes(sizes, batch)
