"""Method E: one forward pass of ellipsoidal zonotopes, then one backward pass for all rows of the claim.

The forward pass bounds the *sizes* of every step's error. The backward pass carries each row through the linear maps the
forward pass left behind and meets each error where it was born, before any covering:

    margin >= value at the centre - (rows at the input over the input set) - sum over steps of (support of its error)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, coordinate_radius
from zonogpt.domains.finite import NonFiniteBoundError, require_finite
from zonogpt.domains.symbols import dual_norm
from zonogpt.methods.method import Bounds, NonFiniteBlockError, OnBlock, Progress
from zonogpt.model.ir import AttentionBlock, Model
from zonogpt.result import Ledger, LedgerEntry
from zonogpt.spec.inputs import centre_and_radius
from zonogpt.spec.spec import Spec
from zonogpt.transforms.ellipsoidal.attention import AttentionStep, attention_step
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep, layernorm_step
from zonogpt.transforms.ellipsoidal.mlp import MlpStep, mlp_step

ROWS = 64  # claim rows that go back together


@dataclass(frozen=True)
class Start:
    """The input sets of a batch: tokens before the first that moves, and the others as ellipsoidal zonotopes."""

    prefix: Tensor  # (B, p, d)
    z: EllipsoidalZonotope


@dataclass(frozen=True)
class Tape:
    """What the backward pass needs of the forward pass."""

    start: Start
    steps: list[AttentionStep | MlpStep]
    head: LayerNormStep
    value: Tensor  # (B, K): the rows at the centre
    rows: Tensor  # (B, K, d)
    pool: Tensor  # (n,): weights of the moving tokens


@dataclass(frozen=True)
class EllipsoidalMethod:
    name: str = "E"
    summary: str = "error ellipsoids, adjoint claim pass"

    def bound(self, model: Model, spec: Spec, budget_bytes: int | None, on_block: OnBlock | None) -> Bounds:
        return self.bound_many(model, [spec], budget_bytes, on_block)[0]

    def bound_many(
        self, model: Model, specs: Sequence[Spec], budget_bytes: int | None, on_block: OnBlock | None
    ) -> list[Bounds]:
        """Bounds of several specs of one model in one batch; they agree in the number of tokens and of claim rows."""
        tape = forward(model, specs, on_block)
        margins, losses = backward(tape)
        return [
            Bounds(margins[b], Ledger(tuple(LedgerEntry(*key, float(loss[b])) for key, loss in losses.items())))
            for b in range(len(specs))
        ]


def start(model: Model, specs: Sequence[Spec]) -> Start:
    centres, stacks = [], []
    for spec in specs:
        centre, radius = centre_and_radius(spec.input)
        centres.append(spec.input.embed(centre))
        stacks.append(spec.input.local_generators(radius))
    c, local = torch.stack(centres), torch.stack(stacks)  # (B, S, d), (B, S, q, d)
    S, q, d = local.shape[1:]
    moves = local.abs().amax((0, 3)) > 0  # (S, q)
    tokens = moves.any(1).nonzero()
    causal = all(block.causal for block in model.blocks if isinstance(block, AttentionBlock))
    first = 0 if not causal else int(tokens[0]) if len(tokens) else S - 1
    where = moves.nonzero()  # (m, 2)
    if not len(where):
        where = torch.tensor([[S - 1, 0]], device=c.device)  # one symbol that moves nothing, so that no sum is empty
    token, index = where.unbind(1)
    G = c.new_zeros(len(specs), S - first, len(where), d)
    G[:, token - first, torch.arange(len(where), device=c.device)] = local[:, token, index]
    return Start(
        c[:, :first].to(model.dtype),
        EllipsoidalZonotope(
            c=c[:, first:].to(model.dtype),
            G=G.to(model.dtype),
            Q=torch.zeros(len(specs), S - first, d, d, dtype=model.dtype, device=c.device),
            p=float("inf"),
        ),
    )


def forward(model: Model, specs: Sequence[Spec], on_block: OnBlock | None) -> Tape:
    begin = start(model, specs)
    prefix, z = begin.prefix, begin.z
    blocks = len(model.blocks)
    steps: list[AttentionStep | MlpStep] = []
    last_attention = max(t for t, block in enumerate(model.blocks) if isinstance(block, AttentionBlock))
    for t, block in enumerate(model.blocks):
        if on_block is not None:
            on_block(Progress(t + 1, blocks, block.kind))
        try:
            step: AttentionStep | MlpStep
            if isinstance(block, AttentionBlock):
                single = t == last_attention and model.head.pool == "last"
                z, step = attention_step(block, z, prefix, 1 if single else z.n_tokens)
            else:
                z, step = mlp_step(block, z)
        except NonFiniteBoundError as error:
            raise NonFiniteBlockError(t + 1, block.kind, error.step) from error
        steps.append(step)
        prefix = block(prefix) if prefix.shape[1] else prefix
    bias = None if model.head.bias is None else model.head.bias.double()
    folded = [spec.claim.fold(model.head.weight.double(), bias) for spec in specs]
    rows, offset = (torch.stack(part).to(model.dtype) for part in zip(*folded, strict=True))
    pool = model.head.pool_weights(prefix.shape[1] + z.n_tokens)
    try:
        head = layernorm_step(model.head.norm, z)
    except NonFiniteBoundError as error:
        raise NonFiniteBlockError(blocks + 1, "head", error.step) from error
    n = z.n_tokens
    still = torch.einsum("s,bsd->bd", pool[: len(pool) - n], model.head.norm(prefix))
    pooled = still + torch.einsum("s,bsd->bd", pool[-n:], head.centre)
    value = offset + (rows @ pooled[..., None]).squeeze(-1)
    return Tape(begin, steps, head, value, rows, pool[-n:])


def backward(tape: Tape) -> tuple[Tensor, dict[tuple[int, str, str], Tensor]]:
    """Margins (B, K), and by block, kind and step what it takes from them, averaged over the rows (B,)."""
    pieces = [_backward(tape, part) for part in torch.arange(tape.rows.shape[1]).split(ROWS)]
    margins = torch.cat([margins for margins, _ in pieces], dim=1)
    losses = {key: torch.cat([loss[key] for _, loss in pieces], dim=1).mean(1) for key in pieces[0][1]}
    return margins, losses


def _backward(tape: Tape, part: Tensor) -> tuple[Tensor, dict[tuple[int, str, str], Tensor]]:
    blocks = len(tape.steps)
    functionals = tape.rows[:, part, None, :] * tape.pool[:, None]  # (B, K, n, d)
    functionals, loss = tape.head.pull(functionals)
    losses = {(blocks + 1, "head", "layernorm"): loss}
    for t in range(blocks, 0, -1):
        step = tape.steps[t - 1]
        functionals, taken = step.pull(functionals)
        kind = "attention" if isinstance(step, AttentionStep) else "mlp"
        losses |= {(t, kind, name): loss for name, loss in taken.items()}
    z = tape.start.z
    linear = torch.einsum("bknd,bnmd->bkm", functionals, z.G)
    losses[(0, "input", "input")] = dual_norm(linear, z.p, -1)
    margins = tape.value[:, part] - torch.stack(list(losses.values())).sum(0)
    require_finite("adjoint", margins)
    return margins, dict(sorted(losses.items()))


METHOD_E = EllipsoidalMethod()
