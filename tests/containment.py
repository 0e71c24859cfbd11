"""The main oracle: symbolic containment, at sign vertices and under a gradient search for the worst noise.

A transform keeps the symbols of its input. So for the *same* noise in and out, f(x) minus the kept symbols' part must
lie in what the transform appended. Comparing sets alone would accept scrambled symbols; this does not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zonogpt.domains.structured import StructuredZonotope

Noise = tuple[Tensor, Tensor]  # shared (B, m) and local (B, S, q)
BATCH, STEPS = 96, 25


def point(z: StructuredZonotope, noise: Noise) -> Tensor:  # (B, S, d)
    shared, local = noise
    return z.c + torch.einsum("bm,msd->bsd", shared, z.G) + torch.einsum("bsq,sqd->bsd", local, z.L)


def random_noise(z: StructuredZonotope, seed: int) -> Noise:
    """Uniform noise, sign vertices, and sparse sign vertices, a third each."""
    g = torch.Generator().manual_seed(seed)
    noise = []
    for shape in ((BATCH, z.m), (BATCH, z.n_tokens, z.q)):
        uniform = 2 * torch.rand(shape, generator=g, dtype=torch.float64) - 1
        kind = torch.arange(BATCH).reshape(-1, *[1] * (len(shape) - 1)) % 3
        sparse = uniform.sign() * (torch.rand(shape, generator=g, dtype=torch.float64) < 0.3)
        noise.append(torch.where(kind == 0, uniform, torch.where(kind == 1, uniform.sign(), sparse)))
    return noise[0], noise[1]


def searched_noise(z: StructuredZonotope, score: Callable[[Noise], Tensor], seed: int) -> Noise:
    """Noise that makes each entry of `score` (B,) large, by signed gradient steps that shrink."""
    noise = random_noise(z, seed)
    best, best_score = tuple(n.clone() for n in noise), torch.full((BATCH,), -torch.inf, dtype=torch.float64)
    for step in range(STEPS):
        shared, local = (n.detach().requires_grad_(True) for n in noise)
        value = score((shared, local))
        grads = torch.autograd.grad(value.sum(), (shared, local), allow_unused=True)
        better = value.detach() > best_score
        best_score = torch.where(better, value.detach(), best_score)
        size, stepped = 0.7 * 0.88**step, []
        for old, kept, grad in zip((shared.detach(), local.detach()), best, grads, strict=True):
            kept[better] = old[better]
            stepped.append((old + size * (torch.zeros_like(old) if grad is None else grad.sign())).clamp(-1, 1))
        noise = (stepped[0], stepped[1])
    return best[0], best[1]


def assert_never_positive(z: StructuredZonotope, excess: Callable[[Noise], Tensor], scale: Tensor, seed: int) -> None:
    """excess(noise) (B,) stays below rounding (1e-9 of scale) at random, vertex and searched noise."""
    for noise in (random_noise(z, seed), searched_noise(z, excess, seed + 1)):
        worst = (excess(noise).detach() - 1e-9 * (1e-3 + scale)).max()
        assert worst <= 0, f"the bound is exceeded by {float(worst):.3g}"


def assert_symbolic_containment(
    f: Callable[[Tensor], Tensor], z: StructuredZonotope, out: StructuredZonotope, seed: int = 0
) -> None:
    """f(x) minus the kept symbols is inside the appended part, in coordinate and dense directions."""
    w = directions(*z.c.shape, seed)
    shared = torch.einsum("bsd,msd->bm", w, out.G[z.m :]).abs().sum(-1)
    local = torch.einsum("bsd,sqd->bsq", w, out.L[:, z.q :]).abs().sum((1, 2))
    support = shared + local + (w.abs() * out.b).sum((1, 2))

    def excess(noise: Noise) -> Tensor:
        kept = StructuredZonotope(out.c, out.G[: z.m], out.L[:, : z.q], out.b)
        return ((f(point(z, noise)) - point(kept, noise)) * w).sum((1, 2)) - support

    assert_never_positive(z, excess, scale=support + (w.abs() * out.c.abs()).sum((1, 2)), seed=seed)


def assert_bounded(
    quantity: Callable[[Noise], Tensor],
    bound: Tensor,
    z: StructuredZonotope,
    seed: int = 0,
    size: float = 1.0,
) -> None:
    """|quantity(noise)| <= bound entry by entry; quantity maps noise to (B, *bound.shape), `size` is its natural scale.

    Each of the batch searches for its own entry and sign.
    """
    g = torch.Generator().manual_seed(seed)
    entry = torch.randint(bound.numel(), (BATCH,), generator=g)
    sign = torch.where(torch.rand(BATCH, generator=g) < 0.5, -1.0, 1.0).double()
    limit = bound.flatten()[entry]

    def excess(noise: Noise) -> Tensor:
        return quantity(noise).flatten(1).gather(1, entry[:, None])[:, 0] * sign - limit

    assert_never_positive(z, excess, scale=limit + size, seed=seed)
    everywhere = quantity(random_noise(z, seed)).abs().amax(0) - bound
    assert everywhere.max() <= 1e-9 * (size + float(bound.max())), f"exceeded by {float(everywhere.max()):.3g}"


def directions(S: int, d: int, seed: int) -> Tensor:
    """(B, S, d): signed coordinate directions, at most two thirds of the batch, then dense random ones."""
    g = torch.Generator().manual_seed(seed)
    eye = torch.eye(S * d, dtype=torch.float64).reshape(-1, S, d)
    coordinates = torch.cat([eye, -eye])[torch.randperm(2 * S * d, generator=g)][: 2 * BATCH // 3]
    dense = torch.randn(BATCH - len(coordinates), S, d, generator=g, dtype=torch.float64)
    return torch.cat([coordinates, dense])
