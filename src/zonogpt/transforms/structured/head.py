"""Final LayerNorm, pooling and the claim's rows in one step: outputs are never boxed first."""

from __future__ import annotations

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, temporary_bytes
from zonogpt.domains.finite import require_finite
from zonogpt.domains.rounding import gamma, up
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.model.arithmetic import Arithmetic
from zonogpt.model.nodes import Head, size_of
from zonogpt.spec.claims import Claim
from zonogpt.transforms.execution import output_error
from zonogpt.transforms.structured.layernorm import layernorm_bounds


def claim_lower_bounds(
    head: Head, z: StructuredZonotope, rows: Tensor, offset: Tensor, claim: Claim, arithmetic: Arithmetic = "real"
) -> tuple[Tensor, dict[str, float]]:
    """(K,): lower bounds over z of `rows_k . pool(LN(x)) + offset_k`, and their mean loss by origin.

    rows (K, d) and offset (K,) are `claim.functionals`. Each symbol meets the whole functional before |.| is taken.
    """
    pool = head.read_weights(z.n_tokens)
    read = pool.nonzero().squeeze(1)  # tokens the head looks at
    pool, z = pool[read], StructuredZonotope(z.c[read], z.G[:, read], z.L[read], z.b[read])
    norm, size_of_pool = layernorm_bounds(head.layer_norm, z), pool.abs()
    value = offset + rows @ (pool @ norm.centre)

    weighted = rows * norm.norm.gamma  # LayerNorm's error is gamma * ehat with ehat mean-free
    from_norm = norm.norm.centre(weighted).abs() @ (size_of_pool @ norm.R_hat)
    carried = torch.zeros_like(value)
    G, L = z.generator_stacks()
    limit, narrow = temporary_bytes(z.c.device.type), z.G.dtype
    pool_G, rows_G = pool.to(narrow), rows.to(narrow)
    for part in chunks(G.shape[1], _bytes(G, rows), limit):  # a shared symbol adds up over the tokens, then |.|
        pooled = torch.einsum("s,snd->nd", pool_G, norm.jacobian(G[:, part]))
        carried += up((pooled @ rows_G.T).abs().sum(0), len(pooled))
    for part in chunks(L.shape[1], _bytes(L, rows), limit):  # a local symbol is alone at its token
        moved = (norm.jacobian(L[:, part]) @ rows_G.T).abs()
        carried += up(torch.einsum("s,snk->k", pool_G.abs(), moved), moved.shape[0] * moved.shape[1])
    carried = up(carried, z.m + z.q * z.n_tokens)
    # Rows are rounded differences of the head's columns: their rounding is relative to these, which are larger.
    S, d = z.c.shape
    units = 2 * (d + S) + head.weight.shape[1] + 16
    rounding = torch.zeros_like(value)
    for dtype, size in ((z.c.dtype, norm.centre.abs() + norm.reach), (narrow, norm.reach)):
        outputs = (size_of_pool @ size) @ head.weight.abs() + size_of(head.bias)
        rounding = rounding + gamma(units, dtype) * claim.magnitude(outputs)
    underflow = (z.m + z.q) * S * d * torch.finfo(narrow).tiny
    rounding = up(rounding + rows.abs() @ (size_of_pool @ norm.rounding) + underflow, d + S)
    if arithmetic == "float32":
        off = output_error(head, pool, norm.size, norm.execution_error(z))
        rounding = up(rounding + claim.spread(off), head.weight.shape[1])
    loss = up(carried + up(from_norm, d + S) + rounding)
    lower = value - loss - gamma(2, value.dtype) * (value.abs() + loss)
    require_finite("head", lower)
    taken = {"carried": carried, "layernorm": from_norm, "rounding": rounding}
    return lower, {name: float(part.mean()) for name, part in taken.items()}


def _bytes(stack: Tensor, rows: Tensor) -> int:
    """Bytes that one generator per token needs on its way to the rows."""
    return stack.shape[0] * (2 * stack.shape[2] + rows.shape[0]) * stack.element_size()
