"""LayerNorm over an ellipsoidal zonotope: its error is a line and a scaled copy of the deviation, not a box.

With z0 the centred centre, Dbar the centred deviation, a = tau + |z0 + Dbar|^2 / d and rho(a) = 1 / sqrt(a),

    LN(x) = LN(c) + J (x - c) + gamma * ( z0 e_rho + Dbar d_rho ),    e_rho in [-A, B],  |d_rho| <= delta

for two *scalars* per token. The middle of e_rho's interval moves the centre. Where this error is larger than LayerNorm's
own range (|xhat| <= sqrt(d)), slope and centre are dropped and the range's ball is all that is said.
Derivations: docs/math.md, section "Method E: LayerNorm".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.domains.chunks import chunks
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, lambda_max, minkowski, support, trace
from zonogpt.domains.finite import require_finite
from zonogpt.domains.symbols import SymbolSums, dual_norm
from zonogpt.model.ir import LayerNorm


@dataclass(frozen=True)
class LayerNormStep:
    """For every x in Z:  LN(x) = centre + J (x - c) + e, and e lies in the set with this `support` and `error_gram`.

    J is LayerNorm's Jacobian at c where `sloped`, zero elsewhere.
    """

    norm: LayerNorm
    z: EllipsoidalZonotope  # before the step; kept because e contains a scaled copy of its deviation
    centre: Tensor  # (B, n, d)
    x_hat: Tensor  # (B, n, d): (centre - beta) / gamma
    sloped: Tensor  # (B, n) booleans
    z0: Tensor  # (B, n, d)
    a0: Tensor  # (B, n)
    half: Tensor  # (B, n): half-width of e_rho
    delta: Tensor  # (B, n): bound of |d_rho|; 0 where not sloped
    ball: Tensor  # (B, n): |(LN(x) - beta) / gamma|_2 <= ball
    error_gram: Tensor  # (B, n, d, d)

    def jacobian(self, v: Tensor) -> Tensor:
        """J v for tangents (B, n, k, d)."""
        return self.norm.gamma * self._normalised(v)

    def jacobian_gram(self, Q: Tensor) -> Tensor:
        """J Q J^T, (B, n, d, d)."""
        return self.jacobian(self.jacobian(Q).mT)

    def jacobian_adjoint(self, A: Tensor) -> Tensor:
        """The matrix (B, n, d, k) of v -> (J v) @ A, for A (B, n, d, k)."""
        return self._normalised((self.norm.gamma[:, None] * A).mT).mT  # the normalised Jacobian is symmetric

    def _normalised(self, v: Tensor) -> Tensor:
        rho = self.sloped * self.a0.rsqrt()  # (B, n)
        along = self.z0 / (v.shape[-1] * self.a0[..., None])
        vbar = v - v.mean(-1, keepdim=True)
        return rho[..., None, None] * (vbar - (vbar @ self.z0[..., None]) * along[..., None, :])

    def pull(self, functionals: Tensor) -> tuple[Tensor, Tensor]:
        """Functionals of LayerNorm's output (B, K, n, d) as functionals of its input, and the error's part (B, K).

        For each functional and token the better of two enclosures of LN(x) - centre: slope and error, or the range.
        """
        w = (functionals * self.norm.gamma).transpose(1, 2)  # (B, n, K, d)
        w = w - w.mean(-1, keepdim=True)
        before = self._normalised(w)
        error = self.support(w)
        range_ = self.ball[..., None] * torch.linalg.vector_norm(w, dim=-1) + (w @ self.x_hat[..., None]).squeeze(-1)
        # The slope's part is lost further back; what it amounts to is bounded here.
        linear = self._deviation(before)
        flat = ~self.sloped[..., None] | ~(error + linear < range_)  # (B, n, K)
        before = before.masked_fill(flat[..., None], 0.0)
        return before.transpose(1, 2), torch.where(flat, range_, error).sum(1)

    def support(self, w: Tensor) -> Tensor:
        """(B, n, K): the largest value of the sloped error in directions w (B, n, K, d), mean-free, gamma included."""
        line = (w @ self.z0[..., None]).squeeze(-1).abs() * self.half[..., None]
        return line + self.delta[..., None] * self._deviation(w)

    def _deviation(self, w: Tensor) -> Tensor:
        """(B, n, K): the largest value of w . (x - c)."""
        shared = torch.cat(
            [dual_norm(w[:, [s]] @ self.z.G[:, [s]].mT, self.z.p, -1) for s in range(w.shape[1])], dim=1
        )  # token by token: (B, 1, K, m) is the largest temporary
        return shared + support(self.z.Q, w)


def layernorm_step(norm: LayerNorm, z: EllipsoidalZonotope) -> LayerNormStep:
    """The contract of LayerNormStep over z. Memory O(B n d^2) and one chunk of centred tangents."""
    d = z.c.shape[-1]
    z0 = z.c - z.c.mean(-1, keepdim=True)
    norm2 = z0.square().sum(-1)
    a0 = norm.tau + norm2 / d
    along, spread = SymbolSums(z.p, with_cover=False), SymbolSums(z.p)
    for part in chunks(z.m, 3 * z.c.numel() * z.c.element_size()):
        T = z.G[:, :, part] - z.G[:, :, part].mean(-1, keepdim=True)
        along.add(T @ z0[..., None])
        spread.add(T)
    Q = centred_gram(z.Q)
    # Everything below is about |z0 . Dbar| and |Dbar|, symbols and ellipsoid together.
    z0_dot = along.radius[..., 0] + support(Q, z0[..., None, :])[..., 0]
    rho = spread.square().sqrt() + lambda_max(Q).sqrt()  # |Dbar| <= rho
    require_finite("LayerNorm input", z0, z0_dot, rho)

    A, B, delta = scalar_remainders(norm2, a0, norm.tau, d, z0_dot, rho)
    half, shift = (A + B) / 2, (B - A) / 2
    line = z0 * half[..., None]
    taylor = minkowski(line[..., :, None] * line[..., None, :], delta.square()[..., None, None] * minkowski(spread.cover, Q))
    # |xhat|^2 = d (a - tau) / a grows with a, and sqrt(d (a - tau)) <= |z0| + rho.
    reach = norm2.sqrt() + rho
    ball = reach / (norm.tau + reach.square() / d).sqrt()
    sphere = torch.eye(d, dtype=Q.dtype, device=Q.device) - 1 / d
    # Any slope is sound, zero too: where it leaves the smaller error there is nothing to gain from the Jacobian.
    sloped = trace(taylor) < ball.square() * trace(sphere)  # NaN or inf: not sloped
    error = torch.where(sloped[..., None, None], taylor, ball.square()[..., None, None] * sphere)
    half, delta, shift = (torch.where(sloped, x, torch.zeros_like(x)) for x in (half, delta, shift))
    x_hat = z0 * (a0.rsqrt() * sloped + shift)[..., None]
    gamma = norm.gamma
    return LayerNormStep(
        norm=norm,
        z=z,
        centre=gamma * x_hat + norm.beta,
        x_hat=x_hat,
        sloped=sloped,
        z0=z0,
        a0=a0,
        half=half,
        delta=delta,
        ball=ball,
        error_gram=gamma[:, None] * error * gamma,
    )


def centred_gram(Q: Tensor) -> Tensor:
    """The Gram of y - mean(y)."""
    Q = Q - Q.mean(-1, keepdim=True)
    return Q - Q.mean(-2, keepdim=True)


def scalar_remainders(
    norm2: Tensor, a0: Tensor, tau: float, d: int, z0_dot: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(A, B, delta): rho(a) - rho(a0) - rho'(a0) lin is in [-A, B] and |rho(a) - rho(a0)| <= delta, rho(a) = 1/sqrt(a).

    a = a0 + lin + quad with lin = 2 z0.Dbar / d and quad = |Dbar|^2 / d, over all Dbar with |z0 . Dbar| <= z0_dot and
    |Dbar| <= rho. The three are exact over that range of (lin, quad), in forms that do not cancel.
    """
    length = norm2.sqrt()
    r_lin, r_quad = 2 * z0_dot / d, rho.square() / d
    r_par = torch.where(length > 0, z0_dot / length, torch.zeros_like(length))
    # a is least when Dbar points against z0: a_min = tau + (|z0| - r_par)^2 / d, x = 1 - a_min / a0.
    inside = r_par < length
    a_min = tau + (length - r_par).clamp(min=0).square() / d
    x = torch.where(inside, r_lin - r_par.square() / d, norm2 / d) / a0
    s = (a_min / a0).sqrt()
    y = (r_lin + r_quad) / a0
    t = (1 + y).sqrt()
    unit = a0.rsqrt()
    A = 0.5 * (r_quad / a0) * unit
    B = unit * x.square() * (2 + s) / (2 * s * (1 + s).square())
    return A, B, unit * torch.maximum(x / (s * (1 + s)), y / (t * (1 + t)))
