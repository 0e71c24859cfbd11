"""The containment oracle for ellipsoidal zonotopes: the same noise in and out, at vertices and under a gradient search.

A point of the set is c + sum_j G_j eps_j + F phi, with F a factor of Q, ||eps||_p <= 1 and ||phi_s||_2 <= 1 per token.
The oracle searches noise (eps, phi) that makes a violation as large as it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from builders import generator, randn
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope

Noise = tuple[Tensor, Tensor]  # eps (N, m), phi (N, n, d)
BATCH, STEPS = 64, 25


def ellipsoidal(
    seed: int, n: int = 3, d: int = 4, m: int = 3, radius: float = 0.05, error: float = 0.02, p: float = math.inf
) -> EllipsoidalZonotope:
    """A random set, batch of one, whose symbols reach about `radius` and whose ellipsoids about `error`."""
    g = generator(seed)
    c, G, F = randn(g, 1, n, d), randn(g, 1, n, m, d), randn(g, 1, n, d, d)
    G = G * radius / G.abs().sum(2).mean()
    F = F * error / F.square().sum(-1).sqrt().mean()
    return EllipsoidalZonotope(c, G, F @ F.mT, p)


def factor(Q: Tensor) -> Tensor:
    """F with F F^T = Q, whatever the rank."""
    values, vectors = torch.linalg.eigh(Q)
    return vectors * values.clamp(min=0).sqrt()[..., None, :]


def point(z: EllipsoidalZonotope, noise: Noise) -> Tensor:  # (N, n, d)
    eps, phi = noise
    return z.c[0] + torch.einsum("Nm,nmd->Nnd", eps, z.G[0]) + torch.einsum("nde,Nne->Nnd", factor(z.Q[0]), phi)


def project(noise: Noise, p: float) -> Noise:
    """The noise projected into its unit balls, eps and phi apart."""
    eps, phi = noise
    phi = phi / torch.linalg.vector_norm(phi, dim=-1, keepdim=True).clamp(min=1)
    if p == math.inf:
        return eps.clamp(-1, 1), phi
    return eps / torch.linalg.vector_norm(eps, ord=p, dim=-1, keepdim=True).clamp(min=1), phi


def random_noise(z: EllipsoidalZonotope, seed: int) -> Noise:
    """A third each: vertices of the balls, single symbols, uniform."""
    g = generator(seed)
    eps, phi = randn(g, BATCH, z.m), randn(g, BATCH, z.n_tokens, z.c.shape[-1])
    single = torch.nn.functional.one_hot(eps.abs().argmax(-1), z.m) * eps.sign()
    kind = torch.arange(BATCH)[:, None] % 3
    vertex = eps.sign() if z.p == math.inf else 1e6 * eps
    eps = torch.where(kind == 0, vertex, torch.where(kind == 1, single, 0.4 * eps))
    return project((eps, torch.where(kind[..., None] == 2, 0.3 * phi, 1e6 * phi)), z.p)


def searched_noise(z: EllipsoidalZonotope, score: Callable[[Noise], Tensor], seed: int) -> Noise:
    """Noise that makes each entry of `score` (N,) large."""
    noise = random_noise(z, seed)
    best, best_score = noise, torch.full((BATCH,), -torch.inf, dtype=torch.float64)
    for step in range(STEPS):
        eps, phi = (x.detach().requires_grad_(True) for x in noise)
        value = score((eps, phi))
        grads = torch.autograd.grad(value.sum(), (eps, phi), allow_unused=True)
        better = value.detach() > best_score
        best_score = torch.where(better, value.detach(), best_score)
        best = (
            torch.where(better[:, None], eps.detach(), best[0]),
            torch.where(better[:, None, None], phi.detach(), best[1]),
        )
        size = 0.7 * 0.88**step
        d_eps, d_phi = (torch.zeros_like(x) if g is None else g for x, g in zip((eps, phi), grads, strict=True))
        if z.p == math.inf:
            moved = eps.detach() + size * d_eps.sign()
        else:
            moved = eps.detach() + size * d_eps / (d_eps.norm(dim=-1, keepdim=True) + 1e-30)
        turned = phi.detach() + size * d_phi / (d_phi.norm(dim=-1, keepdim=True) + 1e-30)
        noise = project((moved, turned), z.p)
    return best


def assert_never_positive(
    z: EllipsoidalZonotope, excess: Callable[[Noise], Tensor], seed: int = 0, scale: float = 1.0
) -> None:
    """excess(noise) (N,) stays below rounding at random, vertex and searched noise."""
    for noise in (random_noise(z, seed), searched_noise(z, excess, seed + 1)):
        worst = float(excess(noise).detach().max())
        assert worst <= 1e-9 * scale, f"the bound is exceeded by {worst:.3g}"


def assert_in_ellipsoid(
    f: Callable[[Noise], Tensor], Q: Tensor, z: EllipsoidalZonotope, seed: int = 0, scale: float = 1.0
) -> None:
    """f(noise) (N, ..., d) lies in the ellipsoids Q (..., d, d), in coordinate, dense and principal directions."""
    g = generator(seed)
    items, d = Q.flatten(0, -3).shape[0], Q.shape[-1]
    which = torch.randint(items, (BATCH,), generator=g)
    w = randn(g, BATCH, d)
    w = torch.where(torch.arange(BATCH)[:, None] % 2 == 0, w, torch.eye(d, dtype=w.dtype)[torch.arange(BATCH) % d])
    w = torch.where(torch.arange(BATCH)[:, None] % 4 == 3, torch.linalg.eigh(Q.flatten(0, -3))[1][which, :, 0], w)
    limit = torch.einsum("Nd,Nde,Ne->N", w, Q.flatten(0, -3)[which], w).clamp(min=0).sqrt()

    def excess(noise: Noise) -> Tensor:
        value = f(noise).flatten(1, -2)[torch.arange(BATCH), which]
        return (value * w).sum(-1).abs() - limit

    assert_never_positive(z, excess, seed, scale)
