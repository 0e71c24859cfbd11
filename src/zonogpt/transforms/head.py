"""Final LayerNorm, pooling and the claim's rows in one step: outputs are never boxed first."""

from __future__ import annotations

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks, temporary_bytes
from zonogpt.domains.finite import require_finite
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.model.ir import Head
from zonogpt.transforms.layernorm import layernorm_bounds


def claim_lower_bounds(
    head: Head, z: StructuredZonotope, rows: Tensor, offset: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """(K,): lower bounds over z of `rows_k . pool(LN(x)) + offset_k`, and their mean loss by origin.

    rows (K, d) and offset (K,) come from Claim.fold. Each symbol meets the whole functional before |.| is taken.
    z's interval must be zero.
    """
    pool = head.pool_weights(z.n_tokens)
    read = pool.nonzero().squeeze(1)  # tokens the head looks at
    pool, z = pool[read], StructuredZonotope(z.c[read], z.G[:, read], z.L[read], z.b[read])
    norm = layernorm_bounds(head.norm, z)
    value = offset + rows @ (pool @ norm.centre)

    weighted = rows * head.norm.gamma  # LayerNorm's error is gamma * ehat with ehat mean-free
    from_norm = (weighted - weighted.mean(-1, keepdim=True)).abs() @ (pool @ norm.R_hat)
    carried = torch.zeros_like(value)
    G, L = z.generator_stacks()
    limit = temporary_bytes(z.c.device.type)
    for part in chunks(G.shape[1], _bytes(G, rows), limit):  # a shared symbol adds up over the tokens, then |.|
        pooled = torch.einsum("s,snd->nd", pool, norm.jacobian(G[:, part]))
        carried += (pooled @ rows.T).abs().sum(0)
    for part in chunks(L.shape[1], _bytes(L, rows), limit):  # a local symbol is alone at its token
        carried += torch.einsum("s,snk->k", pool, (norm.jacobian(L[:, part]) @ rows.T).abs())
    lower = value - carried - from_norm
    require_finite("head", lower)
    return lower, {"carried": float(carried.mean()), "layernorm": float(from_norm.mean())}


def _bytes(stack: Tensor, rows: Tensor) -> int:
    """Bytes that one generator per token needs on its way to the rows."""
    return stack.shape[0] * (2 * stack.shape[2] + rows.shape[0]) * stack.element_size()
