"""The network in ball arithmetic (python-flint): exact to some hundred bits, and rigorous. Slow: for tiny models."""

from __future__ import annotations

from flint import arb, arb_mat, ctx
from torch import Tensor

from zonogpt.model.ir import Model
from zonogpt.model.nodes import Attention, Block, Mlp, Norm

ctx.prec = 256


def matrix(x: Tensor) -> arb_mat:
    """A 2-D tensor, or a 1-D one as a row, as a matrix of balls: floats are dyadic numbers, so nothing is rounded."""
    rows = x.double().reshape(-1, x.shape[-1]).tolist()
    return arb_mat(len(rows), len(rows[0]), [arb(value) for row in rows for value in row])


def number(x: float) -> arb:
    return arb(x)


def rows_of(m: arb_mat) -> list[list[arb]]:
    return [[m[i, j] for j in range(m.ncols())] for i in range(m.nrows())]


def from_rows(rows: list[list[arb]]) -> arb_mat:
    return arb_mat(len(rows), len(rows[0]), [value for row in rows for value in row])


def affine(x: arb_mat, weight: Tensor, bias: Tensor | None) -> arb_mat:
    out = x * matrix(weight)
    if bias is None:
        return out
    b = bias.double().tolist()
    return from_rows([[v + arb(b[j]) for j, v in enumerate(row)] for row in rows_of(out)])


def layer_norm(norm: Norm, x: arb_mat) -> arb_mat:
    gamma, beta, tau = norm.gamma.double().tolist(), norm.beta.double().tolist(), arb(norm.tau)
    out = []
    for row in rows_of(x):
        d = len(row)
        mean = sum(row, arb(0)) / d
        z = [v - mean for v in row]
        rho = 1 / (sum((v * v for v in z), arb(0)) / d + tau).sqrt()
        out.append([arb(g) * v * rho + arb(b) for g, v, b in zip(gamma, z, beta, strict=True)])
    return from_rows(out)


def gelu(t: arb) -> arb:
    h = (2 / arb.pi()).sqrt() * (t + arb("0.044715") * t**3)
    return t / 2 * (1 + h.tanh())


def attention(block: Block[Attention], x: arb_mat) -> arb_mat:
    of, n = block.branch, layer_norm(block.norm, x)
    S, d, H = x.nrows(), of.inner, of.n_heads
    e = d // H
    projected = [rows_of(affine(n, w, b)) for w, b in of.projections]
    visible = of.visible(S).tolist()
    heads = [[arb(0)] * d for _ in range(S)]
    for h in range(H):
        q, k, v = ([row[h * e : (h + 1) * e] for row in part] for part in projected)
        for i in range(S):
            keys = [j for j in range(S) if visible[i][j]]
            scores = [sum((a * b for a, b in zip(q[i], k[j], strict=True)), arb(0)) / arb(e).sqrt() for j in keys]
            top = max(float(s.mid()) for s in scores)
            weights = [(s - arb(top)).exp() for s in scores]
            total = sum(weights, arb(0))
            for c in range(e):
                heads[i][h * e + c] = sum((w * v[j][c] for w, j in zip(weights, keys, strict=True)), arb(0)) / total
    return x + affine(from_rows(heads), of.w_o, of.b_o)


def mlp(block: Block[Mlp], x: arb_mat) -> arb_mat:
    of = block.branch
    hidden = affine(layer_norm(block.norm, x), of.w_1, of.b_1)
    return x + affine(from_rows([[gelu(t) for t in row] for row in rows_of(hidden)]), of.w_2, of.b_2)


def block_output(block: Block, x: arb_mat) -> arb_mat:
    return {"attention": attention, "mlp": mlp}[block.kind](block, x)


def outputs(model: Model, tokens: arb_mat) -> list[arb]:
    """The model's outputs for embedded tokens."""
    x = tokens
    for block in model.blocks:
        x = block_output(block, x)
    n = rows_of(layer_norm(model.head.norm, x))
    S = len(n)
    pooled = n[-1] if model.head.reads_last else [sum(column, arb(0)) / S for column in zip(*n, strict=True)]
    return rows_of(affine(from_rows([pooled]), model.head.weight, model.head.bias))[0]


def embedded_image(model: Model, image: Tensor) -> arb_mat:
    it = model.embedding
    x = matrix(it.patches(image.double())) * matrix(it.weight)
    return x + matrix(it.bias.double() + 0 * it.positions.double()) + matrix(it.positions)
