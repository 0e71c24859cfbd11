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

from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, coordinate_radius
from zonogpt.domains.finite import NonFiniteBoundError, require_finite
from zonogpt.domains.symbols import dual_norm
from zonogpt.errors import OptionError
from zonogpt.memory import free_bytes
from zonogpt.methods.method import Bounds, NonFiniteBlockError, OnBlock, Progress
from zonogpt.methods.plan import MOST_KEPT_BYTES, Plan, Sizes, chunk_bytes, kept_bytes, plan_ellipsoidal, whole_sizes
from zonogpt.model.ir import AttentionBlock, Model
from zonogpt.result import Ledger, LedgerEntry
from zonogpt.spec.inputs import centre_and_noise
from zonogpt.spec.spec import Spec
from zonogpt.transforms.ellipsoidal.attention import AttentionStep, attention_step
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep, layernorm_step
from zonogpt.transforms.ellipsoidal.mlp import MlpStep, mlp_step

ROWS = 64  # claim rows that go back together
MOST_ROWS = 1024  # rows that go back at all: of a language model's 50,256 only those that the forward bound leaves open

Where = tuple[int, str, str]  # block, kind, step
Step = AttentionStep | MlpStep


@dataclass(frozen=True)
class Start:
    """The input sets of a batch: tokens before the first that moves, and the others as ellipsoidal zonotopes."""

    still: Tensor  # (B, p, d)
    z: EllipsoidalZonotope


@dataclass(frozen=True)
class Tape:
    """What the backward pass needs of the forward pass. Its size is the only one that grows with depth."""

    start: Start
    steps: list[Step]
    head: LayerNormStep
    value: Tensor  # (B, K): the rows at the centre
    rows: Tensor  # (B, K, d)
    pool: Tensor  # (n,): weights of the moving tokens
    limit: int  # bytes of temporaries


@dataclass(frozen=True)
class EllipsoidalMethod:
    name: str = "E"
    summary: str = "error ellipsoids, adjoint claim pass"

    def sizes(self, model: Model, spec: Spec) -> Sizes:
        return sizes(model, spec)

    def plan(self, sizes: Sizes, dtype: torch.dtype, budget_bytes: int | None) -> Plan:
        return plan_ellipsoidal(sizes, dtype.itemsize, 1, budget_bytes)

    def batches(self, model: Model, specs: Sequence[Spec], budget_bytes: int | None) -> list[list[int]]:
        """Specs of one shape, as many together as the budget holds."""
        groups: dict[object, list[int]] = {}
        for i, spec in enumerate(specs):
            shape = (spec.input.n_tokens, spec.claim.n_rows, spec.input.norm, sizes(model, spec))
            groups.setdefault(shape, []).append(i)
        budget = default_budget(model.device) if budget_bytes is None else budget_bytes
        out = []
        for group in groups.values():
            size, item = sizes(model, specs[group[0]]), model.dtype.itemsize
            each = plan_ellipsoidal(size, item, 1, budget).peak_bytes
            if budget_bytes is not None and each > budget_bytes:
                raise OptionError(
                    f"the budget is {budget_bytes / 2**20:,.0f} MiB, but method E needs {each / 2**20:,.0f} MiB here"
                )
            step = max(1, min(budget // each, MOST_KEPT_BYTES // kept_bytes(size, item)))
            out += [group[k : k + step] for k in range(0, len(group), step)]
        return out

    def bound_many(
        self, model: Model, specs: Sequence[Spec], budget_bytes: int | None, on_block: OnBlock | None
    ) -> list[Bounds]:
        limit = chunk_bytes(sizes(model, specs[0]), model.dtype.itemsize, len(specs), budget_bytes)
        tape = forward(model, specs, limit, on_block)
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


def first_moving(model: Model, spec: Spec) -> int:
    """The first token that can move; 0 without a causal mask, where every token sees every other."""
    causal = all(block.causal for block in model.blocks if isinstance(block, AttentionBlock))
    return spec.input.first_moving() if causal else 0


def start(model: Model, specs: Sequence[Spec]) -> Start:
    """The input sets, one symbol per raw number that moves in any of them; exact up to the model's dtype."""
    noises = [centre_and_noise(spec.input) for spec in specs]
    c = torch.stack([spec.input.embed(centre) for spec, (centre, _, _) in zip(specs, noises, strict=True)])
    local = torch.stack(
        [spec.input.local_generators(scale) for spec, (_, scale, _) in zip(specs, noises, strict=True)]
    )  # (B, S, q, d)
    first = min(first_moving(model, spec) for spec in specs)
    where = (local.abs().amax((0, 3)) > 0).nonzero()  # (m, 2)
    if not len(where):
        where = torch.tensor([[c.shape[1] - 1, 0]], device=c.device)  # one symbol that moves nothing: no empty sums
    token, index = where.unbind(1)
    B, S, d = c.shape
    G = torch.zeros(B, S - first, len(where), d, dtype=model.dtype, device=c.device)
    G[:, token - first, torch.arange(len(where), device=c.device)] = local[:, token, index].to(model.dtype)
    Q = torch.zeros(B, S - first, d, d, dtype=model.dtype, device=c.device)
    z = EllipsoidalZonotope(c[:, first:].to(model.dtype), G, Q, noises[0][2])
    return Start(c[:, :first].to(model.dtype), z)


def forward(model: Model, specs: Sequence[Spec], limit: int, on_block: OnBlock | None) -> Tape:
    begin = start(model, specs)
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
                one = t == last_attention and model.head.pool == "last"
                z, step = attention_step(block, z, still, 1 if one else z.n_tokens, limit)
            else:
                z, step = mlp_step(block, z, limit)
        except NonFiniteBoundError as error:
            raise NonFiniteBlockError(t + 1, block.kind, error.step) from error
        steps.append(step)
        still = block(still) if still.shape[1] else still
    try:
        head = layernorm_step(model.head.norm, z, limit).for_the_tape()
    except NonFiniteBoundError as error:
        raise NonFiniteBlockError(blocks + 1, "head", error.step) from error
    bias = None if model.head.bias is None else model.head.bias.double()
    folded = [spec.claim.fold(model.head.weight.double(), bias) for spec in specs]
    rows, offset = (torch.stack(part).to(model.dtype) for part in zip(*folded, strict=True))
    pool = model.head.pool_weights(specs[0].input.n_tokens)
    p = still.shape[1]
    pooled = torch.einsum("s,bsd->bd", pool[:p], model.head.norm(still))
    pooled = pooled + torch.einsum("s,bsd->bd", pool[-z.n_tokens :], head.centre)
    value = offset + (rows @ pooled[..., None]).squeeze(-1)
    return Tape(begin, steps, head, value, rows, pool[-z.n_tokens :], limit)


def backward(tape: Tape) -> tuple[Tensor, dict[Where, Tensor]]:
    """Margins (B, K), and what each step takes from them, averaged over the rows (B,)."""
    K = tape.rows.shape[1]
    if K <= MOST_ROWS:
        pieces = [_go_back(tape, rows) for rows in torch.arange(K).split(ROWS)]
        margins = torch.cat([margins for margins, _ in pieces], dim=1)
    else:
        margins = tape.value - torch.cat(
            [tape.head.loss(_pooled_rows(tape, rows), tape.limit) for rows in torch.arange(K).split(ROWS)], dim=1
        )
        require_finite("head", margins)
        lowest = margins.amin(0).argsort()[:MOST_ROWS].sort().values
        pieces = [_go_back(tape, rows) for rows in lowest.split(ROWS)]
        margins[:, lowest] = torch.maximum(margins[:, lowest], torch.cat([margins for margins, _ in pieces], dim=1))
    losses = {where: torch.cat([loss[where] for _, loss in pieces], dim=1).mean(1) for where in pieces[0][1]}
    return margins, losses


def _pooled_rows(tape: Tape, rows: Tensor) -> Tensor:
    """(B, K, n, d): these rows as functionals of the final LayerNorm's output."""
    return tape.rows[:, rows, None, :] * tape.pool[:, None]


def _go_back(tape: Tape, rows: Tensor) -> tuple[Tensor, dict[Where, Tensor]]:
    blocks = len(tape.steps)
    functionals, loss = tape.head.pull(_pooled_rows(tape, rows), tape.limit)
    losses: dict[Where, Tensor] = {(blocks + 1, "head", "layernorm"): loss}
    for t in range(blocks, 0, -1):
        step = tape.steps[t - 1]
        functionals, taken = step.pull(functionals, tape.limit)
        losses |= {(t, step.kind, name): loss for name, loss in taken.items()}
    z = tape.start.z
    losses[(0, "input", "input")] = dual_norm(torch.einsum("bknd,bnmd->bkm", functionals, z.G), z.p, -1)
    margins = tape.value[:, rows] - torch.stack(list(losses.values())).sum(0)
    require_finite("adjoint", margins)
    return margins, dict(sorted(losses.items()))


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
