"""Method E in its first, plainer and looser form: float64, one input, loops over tokens and heads.

LayerNorm by Taylor remainders, softmax by curvature and drift, one cover per step. It shares the input set and GELU's
affine bounds with the package and nothing else. The fast code must give the same margins or better ones: this guards
against loss of precision; soundness has its own tests.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zonogpt import Model, Spec
from zonogpt.model.nodes import Attention as AttentionNode
from zonogpt.model.nodes import Block
from zonogpt.model.nodes import Norm as NormNode
from zonogpt.spec.inputs import centre_and_radius
from zonogpt.support.tensors import moved
from zonogpt.transforms.gelu import affine_gelu


def minkowski(*grams: Tensor) -> Tensor:
    t = [float(Q.diagonal().sum().clamp(min=0).sqrt()) for Q in grams]
    return sum((sum(t) / ti * Q for ti, Q in zip(t, grams, strict=True) if ti > 0), torch.zeros_like(grams[0]))


def box_cover(A: Tensor, R: Tensor) -> Tensor:
    """A Gram that covers {A e: |e_k| <= R_k}; A (d, n)."""
    size = R * A.norm(dim=0)
    keep = size > 0
    A, R, w = A[:, keep], R[keep], size[keep] / size.sum()
    return A @ torch.diag(R.square() / w) @ A.T


def zonotope_cover(T: Tensor) -> Tensor:  # (m, d) rows
    return box_cover(T.T, torch.ones(len(T), dtype=T.dtype))


def lambda_max(Q: Tensor) -> float:
    scale = float(Q.norm())
    if scale == 0:
        return 0.0
    power, log_scale = Q / scale, math.log(scale)
    for _ in range(4):
        power, log_scale = power @ power, 2 * log_scale
        size = float(power.norm())
        power, log_scale = power / size, log_scale + math.log(size)
    return math.exp(log_scale / 16)


def zonotope_norm(T: Tensor) -> float:
    return math.sqrt(min(lambda_max(zonotope_cover(T)), float(T.abs().sum(0).square().sum())))


def form(Q: Tensor, w: Tensor) -> float:
    """The support of Q in direction w."""
    return math.sqrt(max(0.0, float(w @ Q @ w)))


class Norm:
    """LayerNorm of one token: x = c + T^T eps + (ellipsoid Q)."""

    def __init__(self, norm: NormNode, c: Tensor, G: Tensor, Q: Tensor) -> None:
        d = len(c)
        self.gamma, self.d = norm.gamma, d
        Pi = torch.eye(d, dtype=c.dtype) - 1 / d
        self.z0, self.T, self.Q = Pi @ c, G @ Pi, Pi @ Q @ Pi
        length = float(self.z0.norm())
        a0 = norm.tau + length**2 / d
        z0_dot = float((self.T @ self.z0).abs().sum()) + form(self.Q, self.z0)
        r_lin, r_par = 2 * z0_dot / d, z0_dot / length if length else 0.0
        r_quad = (zonotope_norm(self.T) + math.sqrt(lambda_max(self.Q))) ** 2 / d
        a_min = norm.tau + max(max(length**2 / d - r_lin, 0), max(length - r_par, 0) ** 2 / d)
        A, B = r_quad / 2 * a0**-1.5, 0.375 * a_min**-2.5 * (r_lin + r_quad) ** 2
        self.half = (A + B) / 2
        self.delta = min((r_lin + r_quad) / 2 * a_min**-1.5, a_min**-0.5)
        self.J = torch.diag(self.gamma) @ (Pi - torch.outer(self.z0, self.z0) / (d * a0)) / math.sqrt(a0)
        self.centre = norm(c) + self.gamma * self.z0 * (B - A) / 2
        Q_D = minkowski(zonotope_cover(self.T), self.Q)
        line = self.gamma * self.z0 * self.half
        self.error = minkowski(
            torch.outer(line, line), self.delta**2 * torch.diag(self.gamma) @ Q_D @ torch.diag(self.gamma)
        )

    def support(self, w: Tensor) -> float:
        wg = self.gamma * w
        return abs(float(wg @ self.z0)) * self.half + self.delta * (float((self.T @ wg).abs().sum()) + form(self.Q, wg))


def phi(W: Tensor) -> Tensor:
    series = 1 + W / 3 + W**2 / 12 + W**3 / 60 + W**4 / 300
    return torch.where(W < 1, series, 2 * (torch.expm1(W) - W) / W.clamp(min=1e-3) ** 2)


class Attention:
    def __init__(self, whole: Block[AttentionNode], c: Tensor, G: Tensor, Q: Tensor) -> None:
        S, d = c.shape
        block = whole.branch
        H, e = block.n_heads, d // block.n_heads
        root = math.sqrt(e)
        self.block, self.S, self.H = block, S, H
        self.norms = [Norm(whole.norm, c[s], G[:, s], Q[s]) for s in range(S)]
        n0 = torch.stack([n.centre for n in self.norms])
        Gn = torch.stack([G[:, s] @ n.J.T for s, n in enumerate(self.norms)], 1)
        linear = [n.J @ Q[s] @ n.J.T for s, n in enumerate(self.norms)]
        merged = [minkowski(L, n.error) for L, n in zip(linear, self.norms, strict=True)]
        w = torch.stack([w for w, _ in block.projections], dim=1).reshape(d, 3, H, e)
        out_c, out_G = c + block.b_o, G.clone()
        pieces: list[list[Tensor]] = [[] for _ in range(S)]  # the ellipsoids to be added for each query
        maps = torch.zeros(S, S, d, d, dtype=c.dtype)  # query, source: the branch's derivative
        self.heads = []
        for h in range(H):
            Wq, Wk, Wv = (w[:, k, h].T for k in range(3))  # (e, d)
            Wo = block.w_o.reshape(H, e, d)[h].T  # (d, e)
            bq, bk, bv = (b.reshape(H, e)[h] for _, b in block.projections)
            q, k, v = n0 @ Wq.T + bq, n0 @ Wk.T + bk, n0 @ Wv.T + bv
            dq, dk, dv = Gn @ Wq.T, Gn @ Wk.T, Gn @ Wv.T  # (m, S, e)
            spread = lambda W, s: torch.sqrt((W @ merged[s] @ W.T).diagonal().clamp(min=0))  # noqa: E731
            T_Q = torch.stack([dq[:, s].abs().sum(0) + spread(Wq, s) for s in range(S)])
            T_K = torch.stack([dk[:, s].abs().sum(0) + spread(Wk, s) for s in range(S)])
            rho_Q, rho_K = (
                [zonotope_norm(t[:, s]) + math.sqrt(lambda_max(W @ merged[s] @ W.T)) for s in range(S)]
                for t, W in ((dq, Wq), (dk, Wk))
            )
            Q_V = [minkowski(zonotope_cover(dv[:, s]), Wv @ merged[s] @ Wv.T) for s in range(S)]
            rows = []
            for i in range(S):
                seen = range(i + 1) if block.causal else range(S)
                n = len(seen)
                log_P = (q[i] @ k[:n].T / root).log_softmax(-1)
                P = log_P.exp()
                y = P @ v[:n]
                vp = v[:n] - y
                dU = (dq[:, i] @ k[:n].T + dk[:, :n] @ q[i]) / root  # (m, n)
                centred = dU - (dU @ P)[:, None]
                f_W = centred.abs().sum(0)
                k_bar = P @ k[:n]
                key = torch.tensor([form(merged[j], Wk.T @ q[i]) for j in seen], dtype=c.dtype)
                query = torch.tensor([form(merged[i], Wq.T @ (k[j] - k_bar)) for j in seen], dtype=c.dtype)
                e_W = (query + (1 - P) * key + (P * key).sum() - P * key) / root
                R_U = torch.minimum(T_K[:n] @ T_Q[i], rho_Q[i] * torch.tensor(rho_K[:n], dtype=c.dtype)) / root
                W = f_W + e_W + R_U + (P * R_U).sum()
                pe = (log_P + W).clamp(max=0).exp()
                weighted = centred * pe.sqrt()
                rest = (pe * (W - f_W).square()).sum().sqrt()
                V1 = min(W.max() ** 2, (pe * W**2).sum(), (zonotope_norm(weighted) + rest) ** 2)
                kbar = torch.maximum(
                    (P * phi(W)).clamp(max=1) * torch.maximum(W, V1) ** 2, P * (W**2 + 2 / 3 * W * V1 + V1**2 / 6)
                )
                g = torch.maximum(pe * torch.maximum(W, V1), P * (W + V1))
                shifted = bool(kbar.sum() / 4 < V1)
                F = kbar.sum() / 4 if shifted else V1
                T_P = P * W + 0.5 * torch.maximum(kbar * (1 - P), P * V1) + V1 * g / 6
                T_P = torch.minimum(T_P, torch.maximum(P, 1 - P))
                rest = V1 * g / 6 + P * R_U  # coefficients of v' from the drift and from the bilinear scores
                shift = 0.25 * kbar @ vp if shifted else torch.zeros(e, dtype=c.dtype)
                out_c[i] += Wo @ (y + shift)
                out_G[:, i] += ((P * centred) @ v[:n] + torch.einsum("j,mje->me", P, dv[:, :n])) @ Wo.T
                local = [0.25 * F * (vp.T * kbar) @ vp, box_cover(vp.T, rest)]
                local.append(minkowski(*[T_P[j] ** 2 * Q_V[j] for j in seen]))
                pieces[i] += [Wo @ X @ Wo.T for X in local]
                for s in seen:
                    maps[i, s] += Wo @ (P[s] * Wv + P[s] / root * torch.outer(vp[s], q[i] @ Wk))
                maps[i, i] += Wo @ ((P[:, None] * vp).T @ k[:n]) @ Wq / root
                rows.append((P, vp, k[:n], kbar, V1, shifted, rest, T_P, q[i]))
            self.heads.append((Wq, Wk, Wv, Wo, dv, rows, [Wv @ merged[s] @ Wv.T for s in range(S)]))
        self.maps = maps
        eye = torch.eye(d, dtype=c.dtype)
        out_Q = []
        for i in range(S):
            own = eye + maps[i, i] @ self.norms[i].J
            parts = [own @ Q[i] @ own.T, maps[i, i] @ self.norms[i].error @ maps[i, i].T, *pieces[i]]
            parts += [maps[i, s] @ merged[s] @ maps[i, s].T for s in range(S) if s != i]
            out_Q.append(minkowski(*parts))
        self.out = out_c, out_G, torch.stack(out_Q)

    def back(self, lam: Tensor) -> tuple[Tensor, float]:
        """One claim's functional (S, d) of the block's output as one of its input, and what the block's errors take."""
        loss = 0.0
        lam_n = torch.einsum("ia,isab->sb", lam, self.maps)
        for _, _, _, Wo, dv, rows, VV in self.heads:
            for i, (P, vp, _, kbar, V1, shifted, rest, T_P, _) in enumerate(rows):
                w = lam[i] @ Wo
                el = (vp @ w).abs()
                if shifted:
                    loss += 0.25 * float(kbar @ el)
                else:
                    loss += min(0.5 * float(kbar @ el), 0.5 * float(V1 * el.max()))
                loss += float(rest @ el)
                for j in range(len(P)):
                    Q_V = minkowski(zonotope_cover(dv[:, j]), VV[j])
                    loss += float(T_P[j]) * form(Q_V, w)
        out = lam.clone()
        for s, norm in enumerate(self.norms):
            loss += norm.support(lam_n[s])
            out[s] += lam_n[s] @ norm.J
        return out, loss


class Mlp:
    def __init__(self, whole: Block, c: Tensor, G: Tensor, Q: Tensor) -> None:
        self.block = block = whole.branch
        self.norms = [Norm(whole.norm, c[s], G[:, s], Q[s]) for s in range(len(c))]
        out_c, out_G, out_Q, self.slopes, self.halves = [], [], [], [], []
        W1, W2 = block.w_1.T, block.w_2.T
        for s, norm in enumerate(self.norms):
            merged = minkowski(norm.J @ Q[s] @ norm.J.T, norm.error)
            t0 = W1 @ norm.centre + block.b_1
            r = (G[:, s] @ norm.J.T @ W1.T).abs().sum(0) + (W1 @ merged @ W1.T).diagonal().clamp(min=0).sqrt()
            slope, mid, half = affine_gelu(t0 - r, t0 + r)
            chain = W2 @ torch.diag(slope) @ W1
            out_c.append(c[s] + W2 @ (slope * t0 + mid) + block.b_2)
            whole = torch.eye(len(c[s]), dtype=c.dtype) + chain @ norm.J
            out_G.append(G[:, s] @ whole.T)
            out_Q.append(minkowski(whole @ Q[s] @ whole.T, chain @ norm.error @ chain.T, box_cover(W2, half)))
            self.slopes.append(slope)
            self.halves.append(half)
        self.out = torch.stack(out_c), torch.stack(out_G, 1), torch.stack(out_Q)

    def back(self, lam: Tensor) -> tuple[Tensor, float]:
        loss, out = 0.0, lam.clone()
        for s, norm in enumerate(self.norms):
            hidden = lam[s] @ self.block.w_2.T
            loss += float(hidden.abs() @ self.halves[s])
            lam_n = (hidden * self.slopes[s]) @ self.block.w_1.T
            loss += norm.support(lam_n)
            out[s] += lam_n @ norm.J
        return out, loss


def plain_margins(model: Model, spec: Spec) -> Tensor:
    """(K,): lower bounds of the claim's rows over an l_inf input set."""
    model, spec = moved(model, model.device, torch.float64), moved(spec, model.device, torch.float64)
    centre, radius = centre_and_radius(spec.input)
    c = spec.input.embed(centre)
    local = spec.input.embed.local_generators(radius)
    S, n, d = local.shape
    G0 = torch.zeros(S, n, S, d, dtype=c.dtype)
    for s in range(S):
        G0[s, :, s] = local[s]
    G0 = G0.flatten(0, 1)
    G, Q = G0, torch.zeros(S, d, d, dtype=c.dtype)
    tape: list[Attention | Mlp] = []
    for block in model.blocks:
        tape.append({"attention": Attention, "mlp": Mlp}[block.kind](block, c, G, Q))
        c, G, Q = tape[-1].out
    norms = [Norm(model.head.norm, c[s], G[:, s], Q[s]) for s in range(S)]
    rows, offset = spec.claim.functionals(model.head)
    pool = model.head.read_weights(S)
    margins = []
    for row, off in zip(rows, offset, strict=True):
        value = float(off + row @ sum(p * norm.centre for p, norm in zip(pool, norms, strict=True)))
        loss, lam = 0.0, []
        for p, norm in zip(pool, norms, strict=True):
            loss += norm.support(p * row)
            lam.append(p * row @ norm.J)
        functional = torch.stack(lam)
        for step in reversed(tape):
            functional, cost = step.back(functional)
            loss += cost
        loss += float(torch.einsum("sd,msd->m", functional, G0).abs().sum())
        margins.append(value - loss)
    return torch.tensor(margins, dtype=torch.float64)
