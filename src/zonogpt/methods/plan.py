"""How much memory a run will need, counted before it runs.

In the paper's methods everything large is a number of generators times S d. The plan walks through the blocks as
Algorithm 1 does and counts what is alive at the worst moment of each: the set before, the set after, and the pieces
just before they are joined. Method E keeps one state per block for its backward pass and a few Grams for the moment.
At the head the claim's rows come on top: a language model has one, of width d, for every other token it could say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zonogpt.domains.chunks import temporary_bytes
from zonogpt.model.ir import Model
from zonogpt.model.nodes import Shape
from zonogpt.spec.spec import Spec
from zonogpt.transforms.ellipsoidal.attention import KEPT_CHUNKS


@dataclass(frozen=True)
class Sizes:
    n_tokens: int  # tokens that are propagated
    length: int  # tokens in all: those before the first that moves are keys of the others
    width: int
    blocks: tuple[tuple[str, Shape], ...]  # the kind and the sizes of every block
    n_inputs: int  # raw numbers that may move
    inputs_per_token: int
    n_rows: int  # of the claim
    device_type: str = "cpu"

    @property
    def n_heads(self) -> int:
        return max([1, *(shape.heads for _, shape in self.blocks)])

    @property
    def hidden(self) -> int:
        return max([0, *(shape.hidden for _, shape in self.blocks)])


def block_sizes(model: Model) -> tuple[tuple[str, Shape], ...]:
    return tuple((block.kind, block.shape) for block in model.blocks)


def whole_sizes(model: Model, spec: Spec) -> Sizes:
    """The sizes of a run that treats all tokens alike, whether they move or not."""
    box = spec.input
    return Sizes(
        box.n_tokens, box.n_tokens, model.width, block_sizes(model), n_moving(spec), box.embed.inputs_per_token,
        spec.claim.n_rows, model.device.type,
    )  # fmt: skip


def n_moving(spec: Spec) -> int:
    return max(1, int((spec.input.upper > spec.input.lower).sum()))


@dataclass(frozen=True)
class Plan:
    pool: int | None  # generators a token may keep; None: there is no pool
    shared: int | None  # symbols of the input; None: the method has none
    local: int | None  # the largest number kept; None: the method has no such generators
    peak_bytes: int  # of generators, claim rows and temporaries; the weights come on top (held_bytes)
    tape_bytes: int = 0  # method E: the part of `peak_bytes` that the backward pass needs, which grows with depth


def held_bytes(n_parameters: int, run_parameters: int, model_item: int, item: int, judged: bool) -> int:
    """Bytes of weights: of the model as loaded; of its blocks and head (`run_parameters`) in float64, in which every
    run works, and in the types of tangents and of rounding if these differ; of the judge in float64, and in float32
    once it has replayed an input."""
    others = {item, 4} - {8, model_item}
    return n_parameters * (model_item + (12 if judged else 0)) + run_parameters * (8 + sum(others))


def rows_bytes(sizes: Sizes, copies: int) -> int:
    """Bytes of `copies` arrays of all rows of the claim, or of the head's weights, in float64."""
    return copies * 8 * sizes.n_rows * sizes.width


@dataclass(frozen=True)
class Growth:
    """How a structured transform changes the number of generators."""

    fresh: Callable[[Sizes, Shape], int]  # local generators that it appends to a token
    boxes: bool  # whether it leaves an interval, which becomes d local generators


def plan_structured(sizes: Sizes, growth: Mapping[str, Growth], promoted: bool, pool: int, item: int) -> Plan:
    """Predicted generator counts and peak bytes; `item` is the number of bytes per coefficient."""
    d = sizes.width
    m = min(sizes.n_inputs, pool) if promoted else 0
    q = 0 if promoted else min(sizes.inputs_per_token, pool)
    most_local, peak = q, 0
    # Whether there is an interval: from inputs beyond the pool, or from rounding in float32.
    boxed = (sizes.n_inputs if promoted else sizes.inputs_per_token) > pool or item < 8
    for kind, shape in sizes.blocks:
        q_in = q + (d if boxed else 0)
        fresh = growth[kind].fresh(sizes, shape)
        boxed = growth[kind].boxes or item < 8
        q_out = q_in + fresh
        # Shared ones before and after; local ones before, their images, the fresh ones, and all local ones joined.
        alive = 2 * m + 2 * q_in + fresh + q_out
        peak = max(peak, alive)
        q = min(q_out, pool - m)
        if q < q_out:
            boxed = True
            peak = max(peak, m + q_out + q + (q_out - q), m + 2 * q + d)  # while reducing, while converting
        most_local = max(most_local, q)
    bytes_each = sizes.n_tokens * d * item
    at_head = (m + q + d) * bytes_each + rows_bytes(sizes, 6)
    return Plan(pool, m, most_local, max(peak * bytes_each, at_head) + 5 * temporary_bytes(sizes.device_type))


SMALLEST_CHUNK = 1 << 24


def largest_chunk(device_type: str) -> int:
    """The most bytes of a chunk. A GPU wants few, large calls; with 4 GiB it was no faster than with 2."""
    return 1 << 31 if device_type == "cuda" else 1 << 30


def most_kept_bytes(device_type: str) -> int:
    """The most bytes of a batch's tangents that are kept; beyond that they are computed twice."""
    return KEPT_CHUNKS * largest_chunk(device_type)


FULL = {"cuda": 1 << 30}  # bytes of a batch's ellipsoids


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
    """The most bytes that one of `length` tokens that do not move takes while they go through the network."""
    d, attention = width, 8 * width * width + 6 * n_heads * length * length + 8 * length * width
    return 8 * (2 * d * (d + 10) + max(attention, d * (3 * hidden + 6 * d)))


def known_token_bytes(model: Model) -> int:
    """The bytes cached for such a token, with its set if the head reads more than the last token."""
    d = model.width
    return 8 * d * (5 * max(1, model.n_layers) + (0 if model.head.reads_last else d + 1))


def chunk_bytes(sizes: Sizes, item: int, batch: int, budget_bytes: int | None) -> int:
    """Bytes that temporaries over the input symbols may take: what the budget leaves, within sensible limits.

    Kept tangents take at most KEPT_CHUNKS times as much besides.
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
    """Bytes of the tangents of queries, keys, values and scores of one input, kept between their two uses."""
    return item * sizes.n_inputs * sizes.n_tokens * (3 * sizes.width + sizes.n_heads * sizes.length)


def _ellipsoidal_bytes(sizes: Sizes, item: int, batch: int) -> tuple[int, int, int]:
    """Temporaries that are not chunked: of an attention block, of an MLP block or the head; and the tape."""
    n, S, d, m, H, f = sizes.n_tokens, sizes.length, sizes.width, sizes.n_inputs, sizes.n_heads, sizes.hidden
    # Tangents have `item` bytes a number, everything else 8.
    state = 8 * n * d * (d + 10) + item * n * d * m  # a set, and what LayerNorm keeps of it
    tape = (len(sizes.blocks) + 1) * state + 8 * sum(_step_numbers(sizes, shape) for _, shape in sizes.blocks)
    tape += 8 * n * d * m if item < 8 else 0  # the input's generators, before they are rounded
    attention = 8 * (8 * n * d * d + 6 * H * n * S * S + 8 * n * S * d) + item * n * d * m
    mlp = 8 * n * d * (3 * f + 6 * d) + item * n * d * m
    # All inputs' rows once more while they are stacked, those of the input in the making, and the head's weights.
    head = rows_bytes(sizes, batch + 2)
    return batch * attention, max(batch * mlp, head), batch * tape + rows_bytes(sizes, batch)


def _step_numbers(sizes: Sizes, shape: Shape) -> int:
    """How many numbers a block's step keeps for the backward pass besides its set. Attention: Grams of values and
    products, rows of scores, queries, keys and values, the prefix. Hidden units: the strip around the activation."""
    n, S, d = sizes.n_tokens, sizes.length, sizes.width
    kept = 2 * n * shape.hidden
    if shape.heads:
        kept += 2 * n * d * (shape.inner // shape.heads) + 10 * shape.heads * n * S + 6 * n * d + 2 * S * d
        kept += 5 * (S - n) * d
    return kept
