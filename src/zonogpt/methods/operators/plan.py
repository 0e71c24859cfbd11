"""How much memory the operator-by-operator methods will need, counted before they run."""

from __future__ import annotations

from zonogpt.methods.plan import Plan, Sizes, rows_bytes
from zonogpt.model.nodes import Shape

FUNCTIONAL_BYTES = 1 << 28  # for CROWN's functionals that are pulled back together
COPIES = 8  # copies of the widest node for each functional that is pulled back: those held, and those being formed


def plan_intervals(sizes: Sizes, item: int) -> Plan:
    """Memory for the products' terms, (S, S, d) in four corners, and for weights split by sign."""
    S, d, f = sizes.n_tokens, sizes.width, sizes.hidden
    return Plan(None, None, None, item * (7 * S * S * d + 4 * d * max(f, d) + 10 * S * f) + rows_bytes(sizes, 5))


def plan_zonotopes(sizes: Sizes, item: int) -> Plan:
    """Symbols are counted operator by operator; each has a coefficient for every entry of every value alive."""
    S, d = sizes.n_tokens, sizes.width
    N, peak = sizes.n_inputs, 0
    for kind, shape in sizes.blocks:
        N, alive = SYMBOLS[kind](sizes, shape, N)
        peak = max(peak, alive)
    N, alive = _of_layer_norm(sizes, N)
    peak = max(peak, alive, N * (3 * S * d + 2 * min(sizes.n_rows, 1024)))
    return Plan(None, sizes.n_inputs, N, item * peak + rows_bytes(sizes, 5))


def _of_layer_norm(sizes: Sizes, N: int) -> tuple[int, int]:
    """Symbols behind a LayerNorm, with N before it: squares, a root and a reciprocal for each token, and products; and
    coefficients at its worst moment."""
    S, d = sizes.n_tokens, sizes.width
    N += 2 * S * (d + 1)
    return N, 5 * N * S * d


def _of_attention(sizes: Sizes, shape: Shape, N: int) -> tuple[int, int]:
    """Symbols behind the block, with N before it, and coefficients at its worst moment."""
    S, d = sizes.n_tokens, sizes.width
    N, normed = _of_layer_norm(sizes, N)
    scores = shape.heads * S * S
    N += 3 * scores + shape.heads * S  # products, exp, the product with the reciprocal; reciprocals
    N += S * d
    return N, max(normed, N * (8 * S * d + 2 * scores))


def _of_mlp(sizes: Sizes, shape: Shape, N: int) -> tuple[int, int]:
    S, d, f = sizes.n_tokens, sizes.width, shape.hidden
    N, normed = _of_layer_norm(sizes, N)
    after = N + S * f
    return after, max(normed, N * S * (f + 2 * d) + after * S * (f + d))


SYMBOLS = {"attention": _of_attention, "mlp": _of_mlp}


def functional_bytes(budget_bytes: int | None) -> int:
    return FUNCTIONAL_BYTES if budget_bytes is None else min(FUNCTIONAL_BYTES, max(1, budget_bytes // 2))


def plan_graph(sizes: Sizes, item: int, budget_bytes: int | None, blocks: int) -> Plan:
    """Memory for the functionals that are pulled back, at least one, and for what the nodes of `blocks` blocks keep."""
    S, d, f = sizes.n_tokens, sizes.width, sizes.hidden
    scores = sizes.n_heads * S * S
    widest = item * max(S * f, S * d, scores)
    nodes = item * blocks * (20 * S * d + 20 * scores + 8 * S * f)
    terms = plan_intervals(sizes, item).peak_bytes
    together = max(functional_bytes(budget_bytes), COPIES * widest)
    return Plan(None, sizes.n_inputs, None, nodes + terms + 3 * together // 2)  # half as much again was seen
