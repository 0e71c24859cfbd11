"""Method E: one forward pass of ellipsoidal zonotopes, then one backward pass for all rows of the claim.

The forward pass bounds the *sizes* of every step's error. The backward pass carries each row through the linear maps
that the forward pass left behind and meets each error where it was born, before any covering:

    margin >= value at the centre - (rows at the input over the input set) - sum over steps of (support of its error)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.arithmetic import Arithmetic
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, coordinate_radius, dual_norm, minkowski
from zonogpt.domains.finite import NonFiniteBoundError, require_finite
from zonogpt.domains.rounding import gamma, up
from zonogpt.errors import OptionError
from zonogpt.memory import free_bytes
from zonogpt.methods.method import Bounds, NonFiniteBlockError, OnBlock, Progress
from zonogpt.methods.plan import (
    Plan,
    Sizes,
    chunk_bytes,
    kept_bytes,
    most_kept_bytes,
    n_moving,
    plan_ellipsoidal,
    whole_sizes,
)
from zonogpt.model.ir import AttentionBlock, Model
from zonogpt.result import Ledger, LedgerEntry
from zonogpt.spec.inputs import InputBox, centre_and_noise
from zonogpt.spec.spec import Spec
from zonogpt.transforms.attention_rounding import Still
from zonogpt.transforms.ellipsoidal.attention import AttentionStep, attention_step
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep, layernorm_step, rounded_off
from zonogpt.transforms.ellipsoidal.mlp import MlpStep, mlp_step
from zonogpt.transforms.execution import embedding_rounding, output_error

ROWS = 64  # claim rows that go back together
MOST_ROWS = 1024  # rows that go back at all: of a language model's 50,256 only those that the forward bound leaves open

# Every spec of a batch has at least this part of the most moving tokens among them: the rest is work for nothing. A GPU
# waits for small calls longer than it works on them; a CPU gains nothing.
LEAST_MOVING = {"cuda": 0.75}
SHORT = 64  # up to so many tokens, sequences may be padded to twice their length; longer ones not at all

Where = tuple[int, str, str]  # block, kind, step
Step = AttentionStep | MlpStep


@dataclass(frozen=True)
class Start:
    """The input sets of a batch: tokens before the first that moves, and the others, as ellipsoidal zonotopes.

    Those before have no symbols, only what rounding does to them; each sequence of them is there once, however many
    inputs begin with it. Shorter sequences have padding in front, so that all end together, with the token that the
    head reads.
    """

    still: EllipsoidalZonotope | None  # a batch of its own
    which: Tensor  # (B,): in that batch, what each input begins with
    first: Tensor  # and for each of that batch, an input that begins with it
    z: EllipsoidalZonotope
    generators: Tensor  # (B, n, m, d) in float64: z.G before it is rounded to the tangents' type
    padding: Tensor | None  # (B,) tokens, as in AttentionBlock.visible; None: all are of one length


@dataclass(frozen=True)
class Tape:
    """What the backward pass needs of the forward pass. Its size is the only one that grows with depth."""

    start: Start
    steps: list[Step]
    head: LayerNormStep
    value: Tensor  # (B, K): the rows at the centre
    rounding: Tensor  # (B, K): by how much the rows may be off, at the centre and behind the final LayerNorm
    rows: Tensor  # (B, K, d)
    pool: Tensor  # (n,): weights of the moving tokens
    limit: int  # bytes of temporaries


@dataclass(frozen=True)
class EllipsoidalMethod:
    name: str = "E"
    summary: str = "error ellipsoids, adjoint claim pass"
    rounding_bounded: bool = True

    def sizes(self, model: Model, spec: Spec) -> Sizes:
        return sizes(model, spec)

    def plan(self, sizes: Sizes, dtype: torch.dtype, budget_bytes: int | None) -> Plan:
        return plan_ellipsoidal(sizes, dtype.itemsize, 1, budget_bytes)

    def batches(
        self, model: Model, specs: Sequence[Spec], dtype: torch.dtype, budget_bytes: int | None
    ) -> list[list[int]]:
        """Specs that are `alike`, with about as many moving tokens (LEAST_MOVING), as many as the budget holds."""
        groups: dict[object, list[int]] = {}
        for i, spec in enumerate(specs):
            groups.setdefault(alike(model, spec), []).append(i)
        budget = default_budget(model.device) if budget_bytes is None else budget_bytes
        least, item = LEAST_MOVING.get(model.device.type, 1.0), dtype.itemsize
        out = []
        for group in groups.values():
            size = {i: sizes(model, specs[i]) for i in group}
            length = max(size[i].length for i in group)
            left = sorted(group, key=lambda i: -size[i].n_tokens)
            while left:
                longest = dataclasses.replace(size[left[0]], length=length)
                each = plan_ellipsoidal(longest, item, 1, budget).peak_bytes
                if budget_bytes is not None and each > budget_bytes:
                    raise OptionError(
                        f"the budget is {budget_bytes / 2**20:,.0f} MiB,"
                        f" but method E needs {each / 2**20:,.0f} MiB here"
                    )
                most = max(1, min(budget // each, most_kept_bytes(model.device.type) // kept_bytes(longest, item)))
                batch = [i for i in left[:most] if size[i].n_tokens >= least * longest.n_tokens]
                out.append(batch)
                left = left[len(batch) :]
        return out

    def bound_many(
        self,
        model: Model,
        specs: Sequence[Spec],
        dtype: torch.dtype,
        budget_bytes: int | None,
        on_block: OnBlock | None,
        arithmetic: Arithmetic = "real",
    ) -> list[Bounds]:
        each = [sizes(model, spec) for spec in specs]
        longest = dataclasses.replace(
            each[0], n_tokens=max(size.n_tokens for size in each), length=max(size.length for size in each)
        )
        # A GPU's large chunks must leave room for the batch itself.
        budget = default_budget(model.device) if budget_bytes is None and model.device.type == "cuda" else budget_bytes
        limit = chunk_bytes(longest, dtype.itemsize, len(specs), budget)
        tape = forward(model, specs, dtype, limit, on_block, arithmetic)
        try:
            margins, losses = backward(tape)
        except NonFiniteBoundError as error:
            raise NonFiniteBlockError(len(model.blocks) + 1, "head", error.step) from error
        proved = (margins > 0).all(1).tolist()
        lost = ["" if proved[b] else where_lost(tape, b) for b in range(len(specs))]
        widths = torch.stack(list(losses.values()), dim=1).tolist()
        ledgers = [
            Ledger(tuple(LedgerEntry(*where, w) for where, w in zip(losses, row, strict=True))) for row in widths
        ]
        return [Bounds(*parts) for parts in zip(margins, ledgers, lost, strict=True)]


def default_budget(device: torch.device) -> int:
    """Bytes for a batch: much of a free GPU; on a CPU enough to fill the cores, and no more than the caches like."""
    if device.type == "cuda":
        return int(0.7 * free_bytes(device))
    return 1 << 30


def sizes(model: Model, spec: Spec) -> Sizes:
    """Of the tokens from the first that moves on: method E does not propagate the others."""
    return dataclasses.replace(whole_sizes(model, spec), n_tokens=spec.input.n_tokens - first_moving(model, spec))


def alike(model: Model, spec: Spec) -> object:
    """What specs of a batch have in common. Where the last token is read, short sequences may differ in length."""
    S = spec.input.n_tokens
    length = (S - 1).bit_length() if model.head.pool == "last" and S <= SHORT else -S
    return length, spec.claim.n_rows, spec.input.norm, n_moving(spec)


def first_moving(model: Model, spec: Spec) -> int:
    """The first token that can move; 0 without a causal mask, where every token sees every other."""
    causal = all(block.causal for block in model.blocks if isinstance(block, AttentionBlock))
    return spec.input.first_moving() if causal else 0


def start(
    model: Model, specs: Sequence[Spec], dtype: torch.dtype, arithmetic: Arithmetic = "real", every_token: bool = False
) -> Start:
    """The input sets, in each one symbol per raw number that moves, and a small box for what embedding rounds off.

    With `every_token`, those before the first that moves are not told apart.
    """
    sets = [embedded(spec.input, arithmetic) for spec in specs]
    B, S, d = len(specs), max(spec.input.n_tokens for spec in specs), model.width
    n = S if every_token else max(sizes(model, spec).n_tokens for spec in specs)
    m = max(1, *(len(symbols.generators) for symbols in sets))  # one that moves nothing, if none does: no empty sums
    c = torch.empty(B, S, d, dtype=torch.float64, device=model.device)
    G, box = c.new_zeros(B, n, m, d), torch.zeros_like(c)
    padding = [S - len(symbols.tokens) for symbols in sets]
    for b, symbols in enumerate(sets):
        c[b, : padding[b]] = symbols.tokens[0]  # as finite as the first token, and nobody sees it
        c[b, padding[b] :], box[b, padding[b] :] = symbols.tokens, symbols.rounding
        at = symbols.token - len(symbols.tokens)
        G[b, at, torch.arange(len(at), device=G.device)] = symbols.generators
    p, rounded, tangents = specs[0].input.norm, c.to(model.dtype), G.to(dtype)
    # Generators are products, off by a unit; then whatever the two casts change.
    box[:, S - n :] += dual_norm(gamma(2, G.dtype) * G, p, 2) + dual_norm(G - tangents.to(G), p, 2)
    box = up(box + (c - rounded.to(c)).abs(), m + 8).to(model.dtype)
    Q = minkowski(rounded.new_zeros(B, S, d, d), box=up(box))
    z = EllipsoidalZonotope(rounded[:, S - n :], tangents, Q[:, S - n :], p)
    before = slice(0, S - n)
    first, which = _distinct(torch.stack([rounded, box], dim=1)[:, :, before], padding)
    still = EllipsoidalZonotope(
        rounded[first, before], tangents.new_zeros(len(first), S - n, 1, d), Q[first, before], p
    )
    return Start(
        still=still if n < S else None,
        which=torch.tensor(which, device=model.device),
        first=torch.tensor(first, device=model.device),
        z=z,
        generators=G,
        padding=torch.tensor(padding, device=model.device) if any(padding) else None,
    )


def _distinct(tokens: Tensor, padding: Sequence[int]) -> tuple[list[int], list[int]]:
    """Where each beginning (B, ...) occurs first, and for every input which of these it has."""
    keys = [(pad, x.tobytes()) for pad, x in zip(padding, tokens.cpu().numpy(), strict=True)]
    first = {key: b for b, key in reversed(list(enumerate(keys)))}
    places = {key: place for place, key in enumerate(first)}
    return list(first.values()), [places[key] for key in keys]


@dataclass(frozen=True)
class Symbols:
    """An input set, embedded: the centre's tokens, and of every raw number that moves its token and its generator."""

    tokens: Tensor  # (S, d)
    rounding: Tensor  # (S, d): by how much they are off
    token: Tensor  # (m,)
    generators: Tensor  # (m, d)


def embedded(box: InputBox, arithmetic: Arithmetic) -> Symbols:
    centre, scale, _ = centre_and_noise(box)
    local = box.local_generators(scale)  # (S, q, d)
    token, index = (local.abs().amax(-1) > 0).nonzero().unbind(1)
    return Symbols(box.embed(centre), embedding_rounding(box, centre, arithmetic), token, local[token, index])


def forward(
    model: Model,
    specs: Sequence[Spec],
    dtype: torch.dtype,
    limit: int,
    on_block: OnBlock | None,
    arithmetic: Arithmetic = "real",
    every_token: bool = False,
) -> Tape:
    """Centre and ellipsoids in the model's type, the symbols' tangents in `dtype`.

    With `every_token` no token is left out of any block: more work, and one way to look at all of them.
    """
    begin = start(model, specs, dtype, arithmetic, every_token)
    still, z = begin.still, begin.z
    blocks = len(model.blocks)
    last_attention = max((t for t, block in enumerate(model.blocks) if isinstance(block, AttentionBlock)), default=-1)
    steps: list[Step] = []
    for t, block in enumerate(model.blocks):
        if on_block is not None:
            on_block(Progress(t + 1, blocks, block.kind))
        step: Step
        try:
            if isinstance(block, AttentionBlock):
                # Behind the last attention only the tokens that the head reads matter.
                one = t == last_attention and model.head.pool == "last" and not every_token
                seen = Still.none(z.c, block.n_heads)
                if still is not None:
                    queries, nothing = 1 if one else still.n_tokens, Still.none(still.c, block.n_heads)
                    padding = None if begin.padding is None else begin.padding[begin.first]
                    still, before = attention_step(block, still, nothing, queries, limit, padding, arithmetic)
                    seen = before.still.of(begin.which)
                queries = 1 if one else z.n_tokens
                z, step = attention_step(block, z, seen, queries, limit, begin.padding, arithmetic)
            else:
                if still is not None:
                    still, _ = mlp_step(block, still, limit, arithmetic)
                z, step = mlp_step(block, z, limit, arithmetic)
        except NonFiniteBoundError as error:
            raise NonFiniteBlockError(t + 1, block.kind, error.step) from error
        steps.append(step)
    try:
        return _at_the_head(model, specs, begin, steps, still, z, limit, arithmetic)
    except NonFiniteBoundError as error:
        raise NonFiniteBlockError(blocks + 1, "head", error.step) from error


def _at_the_head(
    model: Model,
    specs: Sequence[Spec],
    begin: Start,
    steps: list[Step],
    still: EllipsoidalZonotope | None,
    z: EllipsoidalZonotope,
    limit: int,
    arithmetic: Arithmetic,
) -> Tape:
    """The rows at the centre, and what is lost behind the final LayerNorm."""
    head, wide, d = model.head, model.dtype, model.width
    bias = None if head.bias is None else head.bias.double()
    folded = [spec.claim.fold(head.weight.double(), bias) for spec in specs]
    rows, offset = (torch.stack(part).to(wide) for part in zip(*folded, strict=True))
    S = begin.z.n_tokens + (0 if begin.still is None else begin.still.n_tokens)
    pool = head.pool_weights(S)
    norm = layernorm_step(head.norm, z, limit).for_the_tape()
    pooled = torch.einsum("s,bsd->bd", pool[-z.n_tokens :], norm.centre)
    size = torch.einsum("s,bsd->bd", pool[-z.n_tokens :], norm.centre.abs() + norm.reach)
    lost = torch.zeros_like(offset)
    read = [norm]
    if still is not None and head.pool == "mean":
        still = EllipsoidalZonotope(still.c[begin.which], still.G[begin.which], still.Q[begin.which], still.p)
        before = layernorm_step(head.norm, still, limit)
        pooled = pooled + torch.einsum("s,bsd->bd", pool[: still.n_tokens], before.centre)
        size = size + torch.einsum("s,bsd->bd", pool[: still.n_tokens], before.centre.abs() + before.reach)
        lost = before.loss(rows[:, :, None] * pool[: still.n_tokens, None], limit)
        read = [before, norm]
    value = offset + (rows @ pooled[..., None]).squeeze(-1)
    # Rows are differences of the head's columns, rounded; what they are formed from is larger.
    outputs = size @ head.weight.abs() + (0 if head.bias is None else head.bias.abs())  # (B, outputs)
    magnitude = torch.stack([spec.claim.magnitude(x) for spec, x in zip(specs, outputs.double(), strict=True)]).to(wide)
    rounding = up(gamma(2 * (d + S) + model.n_outputs + 16, wide) * magnitude + lost, d + S)
    if arithmetic == "float32":
        n = torch.cat([up(part.centre.abs() + part.reach) for part in read], dim=1)
        off = output_error(head, pool[-n.shape[1] :], n, torch.cat([part.execution_error() for part in read], dim=1))
        moved = torch.stack([spec.claim.spread(x) for spec, x in zip(specs, off.double(), strict=True)])
        rounding = up(rounding + moved.to(wide), model.n_outputs)
    return Tape(begin, steps, norm, value, rounding, rows, pool[-z.n_tokens :], limit)


def backward(tape: Tape) -> tuple[Tensor, dict[Where, Tensor]]:
    """Margins (B, K), and what each step takes from them, averaged over the rows (B,)."""
    margins, _, losses = adjoint(tape)
    return margins, {where: loss.mean(1) for where, loss in losses.items()}


def adjoint(tape: Tape) -> tuple[Tensor, Tensor, dict[Where, Tensor]]:
    """Margins (B, K); which rows went back through all blocks (B, R); and what each step takes from these (B, R)."""
    B, K = tape.value.shape
    every = torch.arange(K, device=tape.value.device).expand(B, -1)
    if K <= MOST_ROWS:
        lowest = every
        pieces = [_go_back(tape, rows) for rows in every.split(ROWS, dim=1)]
        margins = torch.cat([margins for margins, _ in pieces], dim=1)
    else:
        lost = [tape.head.loss(_pooled_rows(tape, rows), tape.limit) for rows in every.split(ROWS, dim=1)]
        margins = below(tape.value, torch.cat(lost, dim=1) + tape.rounding)
        require_finite("head", margins)
        lowest = margins.argsort(1)[:, :MOST_ROWS].sort(1).values  # of each input its own: their rows have other rivals
        pieces = [_go_back(tape, rows) for rows in lowest.split(ROWS, dim=1)]
        better = torch.maximum(margins.gather(1, lowest), torch.cat([margins for margins, _ in pieces], dim=1))
        margins.scatter_(1, lowest, better)
    losses = {where: torch.cat([loss[where] for _, loss in pieces], dim=1) for where in pieces[0][1]}
    return margins, lowest, losses


def _pooled_rows(tape: Tape, rows: Tensor) -> Tensor:
    """(B, K, n, d): these rows (B, K) as functionals of the final LayerNorm's output."""
    return torch.take_along_dim(tape.rows, rows[..., None], dim=1)[:, :, None] * tape.pool[:, None]


def _go_back(tape: Tape, rows: Tensor) -> tuple[Tensor, dict[Where, Tensor]]:
    blocks = len(tape.steps)
    functionals, loss = tape.head.pull(_pooled_rows(tape, rows), tape.limit)
    losses: dict[Where, Tensor] = {
        (blocks + 1, "head", "layernorm"): loss,
        (blocks + 1, "head", "rounding"): tape.rounding.gather(1, rows),
    }
    for t in range(blocks, 0, -1):
        step = tape.steps[t - 1]
        functionals, taken = step.pull(functionals, tape.limit)
        losses |= {(t, step.kind, name): loss for name, loss in taken.items()}
    z, generators = tape.start.z, tape.start.generators
    moved = dual_norm(torch.einsum("bknd,bnmd->bkm", functionals.to(generators), generators), z.p, -1).to(functionals)
    losses[(0, "input", "input")] = up(moved, z.m)
    # The box of rounding that the input starts with, and what the products just above round.
    start = coordinate_radius(z.Q) + gamma(z.n_tokens * z.c.shape[-1] + 4, z.c.dtype) * z.symbol_radius
    losses[(0, "input", "rounding")] = rounded_off(functionals, up(start))
    margins = below(tape.value.gather(1, rows), torch.stack(list(losses.values())).sum(0), len(losses))
    require_finite("adjoint", margins)
    return margins, dict(sorted(losses.items()))


def below(value: Tensor, loss: Tensor, terms: int = 1) -> Tensor:
    """value - loss, rounded down, for losses that are sums of so many."""
    loss = up(loss, terms)
    return value - loss - up(gamma(2, value.dtype) * (value.abs() + loss))


def where_lost(tape: Tape, b: int) -> str:
    """The first block behind which the errors are larger than what the input's symbols do linearly."""
    states = [step.norm.z for step in tape.steps[1:]] + [tape.head.z]
    for step, (t, z) in zip(tape.steps, enumerate(states, start=1), strict=True):
        linear = float(dual_norm(z.G[b], z.p, -2).mean())
        error = float(coordinate_radius(z.Q[b]).mean())
        if error > linear > 0:
            return f"precision is lost in block {t} ({step.kind}): error {error / linear:.2g} times the linear part"
    return ""


METHOD_E = EllipsoidalMethod()
