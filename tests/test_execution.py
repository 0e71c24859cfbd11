"""Executions in float32: whatever the order of summation, no block is off by more than its bound."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import zonogpt
from builders import (
    attention_block,
    config,
    generator,
    image_config,
    image_model,
    layer_norm,
    mlp_block,
    randn,
    text_classifier,
)
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.interval import Interval
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.errors import OptionError
from zonogpt.methods.operators.executions import execution_of_block
from zonogpt.methods.operators.intervals import IntervalOperators
from zonogpt.methods.operators.network import block_output
from zonogpt.model.ir import ImageEmbedding
from zonogpt.model.nodes import Attention, Block, Head, Mlp, Norm
from zonogpt.spec.embed import PatchMap, TokenMap
from zonogpt.spec.inputs import Box
from zonogpt.support.tensors import map_tensors
from zonogpt.transforms.ellipsoidal.attention import attend
from zonogpt.transforms.ellipsoidal.mlp import mlp_step
from zonogpt.transforms.ellipsoidal.sources import sources
from zonogpt.transforms.execution import (
    AttentionSizes,
    attention_error,
    dense_error,
    embedding_rounding,
    mlp_error,
    norm_error,
    output_error,
)
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.queries import Queries
from zonogpt.transforms.structured.attention import fused_attention
from zonogpt.transforms.structured.decomposed_attention import decomposed_attention
from zonogpt.transforms.structured.mlp import fused_mlp, sequential_mlp

F32 = np.float32
LIMIT = 1 << 30


def as_it_is(x):
    return x


def flushed(x):
    """x with numbers below the smallest normal one set to zero, as some processors treat results and operands."""
    return np.where(np.abs(x) < np.finfo(F32).tiny, F32(0), x).astype(F32)


def in_some_order(terms, order, keep=as_it_is):
    """The sum of float32 terms (..., k) along the last axis: forward, backward, shuffled, or by halves."""
    terms = keep(terms.astype(F32))
    if order == "halves":
        while terms.shape[-1] > 1:
            k = terms.shape[-1] // 2
            terms = np.concatenate([keep(terms[..., :k] + terms[..., k : 2 * k]), terms[..., 2 * k :]], axis=-1)
        return terms[..., 0]
    index = {"forward": np.arange(terms.shape[-1]), "backward": np.arange(terms.shape[-1])[::-1]}.get(
        order, np.random.default_rng(1).permutation(terms.shape[-1])
    )
    total = np.zeros(terms.shape[:-1], F32)
    for k in index:
        total = keep(total + terms[..., k])
    return total


class Execution:
    """The network in numpy's float32, one rounding at a time; `keep` is applied to every operand and result."""

    def __init__(self, order, variance="two passes", keep=as_it_is):
        self.order, self.variance, self.keep = order, variance, keep

    def sum(self, terms):
        return in_some_order(terms, self.order, self.keep)

    def times(self, a, b):
        with np.errstate(under="ignore", over="ignore"):
            return self.keep(self.keep(a) * self.keep(b))

    def plus(self, a, b):
        return self.keep(self.keep(a) + self.keep(b))

    def dot(self, a, b):
        """(n, k) @ (k, m), every product and every sum rounded."""
        return self.sum(self.times(a[:, None, :], b.T[None]))

    def norm(self, norm, x):
        gamma, beta = norm.gamma.float().numpy(), None if norm.beta is None else norm.beta.float().numpy()
        d, keep = F32(x.shape[-1]), self.keep
        if self.variance == "updates":
            mean, m2 = np.zeros(len(x), F32), np.zeros(len(x), F32)
            for k in range(x.shape[-1]):
                delta = self.plus(x[:, k], -mean)
                mean = self.plus(mean, keep(delta / F32(k + 1)))
                m2 = self.plus(m2, self.times(delta, self.plus(x[:, k], -mean)))
            z, variance = self.plus(x, -mean[:, None]), keep(m2 / d)
        else:
            z = self.plus(x, -keep(self.sum(x) / d)[:, None])
            variance = keep(self.sum(self.times(z, z)) / d)
        rstd = F32(1) / np.sqrt(self.plus(variance, F32(norm.tau)))
        scaled = self.times(self.times(z, rstd[:, None]), gamma)
        return scaled if beta is None else self.plus(scaled, beta)

    def dense(self, x, weight, bias):
        out = self.dot(x, weight.float().numpy())
        return out if bias is None else self.plus(out, bias.float().numpy())

    def attention(self, block, x):
        of, n = block.branch, self.norm(block.norm, x)
        S, e = len(x), of.inner // of.n_heads
        parts = [self.dense(n, w, b) for w, b in of.projections]
        out = np.zeros((S, of.inner), F32)
        for h in range(of.n_heads):
            q, k, v = (part[:, h * e : (h + 1) * e] for part in parts)
            scores = self.times(self.dot(q, k.T), F32(1 / math.sqrt(e)))
            for i in range(S):
                row = scores[i, : i + 1] if of.causal else scores[i]
                weight = self.keep(np.exp(self.plus(row, -row.max())))
                p = self.keep(weight / self.sum(weight[None])[0])
                out[i, h * e : (h + 1) * e] = self.dot(p[None], v[: len(p)])[0]
        return self.plus(x, self.dense(out, of.w_o, of.b_o))

    def mlp(self, block, x):
        of = block.branch
        t = self.dense(self.norm(block.norm, x), of.w_1, of.b_1)
        cube = self.times(F32(0.044715), self.times(self.times(t, t), t))
        inner = self.times(F32(math.sqrt(2 / math.pi)), self.plus(t, cube))
        gelu = self.times(self.times(F32(0.5), t), F32(1) + np.tanh(inner))
        return self.plus(x, self.dense(gelu, of.w_2, of.b_2))

    def block(self, block, x):
        return self.attention(block, x) if block.kind == "attention" else self.mlp(block, x)


ORDERS = ("forward", "backward", "shuffled", "halves")


def float32_numbers(value):
    return map_tensors(value, lambda t: t.float().double())


def hard_inputs(seed, S, d):
    """Tokens that rounding hurts: with a large mean, or of very different sizes."""
    g = generator(seed)
    x = randn(g, S, d)
    x[0] += 300.0
    x[1] *= 10.0 ** torch.linspace(-3, 2, d).double()
    return x.float()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variance", ["two passes", "updates"])
@pytest.mark.parametrize("seed", range(5))
def test_layernorm(seed, order, variance):
    d = 48
    norm = float32_numbers(layer_norm(generator(seed), d))
    x = hard_inputs(seed, 5, d)
    wide = x.double()
    z = wide - wide.mean(-1, keepdim=True)
    rho = (norm.tau + z.square().mean(-1)).rsqrt()
    error = norm_error(norm, z.abs(), wide.abs(), rho)
    executed = torch.from_numpy(Execution(order, variance).norm(norm, x.numpy()).astype(np.float64))
    assert ((executed - norm(wide)).abs() <= error).all()
    theirs = torch.nn.functional.layer_norm(x, (d,), norm.gamma.float(), norm.beta.float(), norm.tau).double()
    assert ((theirs - norm(wide)).abs() <= error).all()
    # The bound has the same causes: it is largest at the token whose mean is large.
    assert float(error[0].max()) > 20 * float(error[2].max())


TRANSFORMS = {
    "E attention": None, "E mlp": None, "fused": fused_attention, "decomposed": decomposed_attention,
    "sequential": sequential_mlp, "fused mlp": fused_mlp, "ibp attention": None, "ibp mlp": None,
}  # fmt: skip


def enclosure(kind, block, x):
    """(centre, error) of the block's executions at the tokens x alone."""
    (S, d), c = x.shape, x.double()
    if kind.startswith("E"):
        z = EllipsoidalZonotope(c[None], torch.zeros(1, S, 1, d).double(), torch.zeros(1, S, d, d).double(), math.inf)
        if block.kind == "mlp":
            out, step = mlp_step(block, z, LIMIT, "float32")
        else:
            seen = sources(block, z, Prefix.none(z.c, block.branch), LIMIT)
            out, step = attend(seen, Queries.every(S), LIMIT, None, "float32")
        return out.c[0], step.rounding[0]
    if kind.startswith("ibp"):
        box = Interval(c, c)
        out = block_output(IntervalOperators(), block, box).widened(execution_of_block(block, box))
        return out.centre, out.radius
    z = StructuredZonotope(c, torch.zeros(0, S, d).double(), torch.zeros(S, 0, d).double(), torch.zeros(S, d).double())
    out, _ = TRANSFORMS[kind](block, z, "float32")
    return out.c, out.radius


def is_of_mlp(kind):
    return "mlp" in kind or kind == "sequential"


# Blocks without biases; heads whose width is not the tokens'; all keys visible.
EXECUTED = [(kind, case) for kind in TRANSFORMS for case in ({}, {"biases": False})]
EXECUTED += [
    (kind, case)
    for kind in TRANSFORMS
    for case in ({"inner": 3}, {"inner": 36, "causal": False})
    if not is_of_mlp(kind)
]


@pytest.mark.parametrize(("kind", "case"), EXECUTED)
@pytest.mark.parametrize("seed", range(4))
def test_blocks_contain_every_execution(seed, kind, case):
    """Sets of one point: the output set beyond its centre is for executions, and these do differ from the centre."""
    S, d = 4, 12
    block = float32_numbers(
        mlp_block(seed, d=d, hidden=24, **case)
        if is_of_mlp(kind)
        else attention_block(seed, d=d, n_heads=3, scale=0.4, **case)
    )
    x = hard_inputs(seed, S, d)
    with torch.no_grad():
        (centre, error), real = enclosure(kind, block, x), block(x.double())
    worst = torch.zeros(S, d).double()
    for order in ORDERS:
        executed = torch.from_numpy(Execution(order).block(block, x.numpy()).astype(np.float64))
        worst = torch.maximum(worst, (executed - real).abs())
        assert ((executed - centre).abs() <= error).all()
    theirs = map_tensors(block, lambda t: t.float())(x).double()
    assert ((theirs - centre).abs() <= error).all()
    assert float(worst.max()) > 1e-6


def tiny_block(seed, is_mlp, d, small):
    """A block in which something underflows at the place `small`, and is magnified again by weights of up to 1e37."""
    block = mlp_block(seed, d=d, hidden=24) if is_mlp else attention_block(seed, d=d, n_heads=3, scale=0.4)
    norm = dataclasses.replace(block.norm, beta=0 * block.norm.beta, tau=1e-14)
    if small == "squares":  # with an epsilon not much larger than what they lose
        return dataclasses.replace(block, norm=dataclasses.replace(norm, tau=1e-36))
    if small == "output":
        norm = dataclasses.replace(norm, gamma=1e-38 * norm.gamma)
    if is_mlp:
        inner = {"output": 1.0, "inner": 1e-38, "products": 1e-31}[small]
        if small == "products":
            norm = dataclasses.replace(norm, gamma=1e-7 * norm.gamma)
        of = block.branch
        of = dataclasses.replace(of, w_1=inner * of.w_1, b_1=0 * of.b_1, w_2=1e37 * of.w_2, b_2=0 * of.b_2)
        return Block(norm, of)
    of = block.branch
    w_q, w_k, w_v = of.w_q, of.w_k, of.w_v
    if small == "queries":
        w_q, w_k = 1e-38 * w_q, 1e36 * w_k
    elif small == "inner":
        w_v = 1e-38 * w_v
    elif small == "products":
        norm = dataclasses.replace(norm, gamma=1e-7 * norm.gamma)
        w_v = 1e-31 * w_v
    of = dataclasses.replace(
        of, w_q=w_q, w_k=w_k, w_v=w_v, b_q=0 * of.b_q, b_k=0 * of.b_k, b_v=0 * of.b_v,
        w_o=(1.0 if small == "queries" else 1e37) * of.w_o, b_o=0 * of.b_o,
    )  # fmt: skip
    return Block(norm, of)


PLACES = [
    (kind, small)
    for kind in TRANSFORMS
    for small in ("squares", "output", "queries", "inner", "products")
    if (small != "queries" or "mlp" not in kind) and (kind, small) != ("sequential", "queries")
]


@pytest.mark.parametrize(("kind", "small"), PLACES)
@pytest.mark.parametrize("seed", range(3))
def test_blocks_contain_executions_that_underflow(seed, kind, small):
    """Denormal numbers, or zeros in their place: neither real arithmetic nor float32's units account for them."""
    S, d = 4, 12
    block = float32_numbers(tiny_block(seed, is_of_mlp(kind), d, small))
    x = ((1e-19 if small == "squares" else 1e-6) * randn(generator(seed), S, d)).float()
    with torch.no_grad():
        (centre, error), real = enclosure(kind, block, x), block(x.double())
    worst = 0.0
    for order in ORDERS:
        for variance in ("two passes", "updates"):
            for keep in (as_it_is, flushed):
                executed = torch.from_numpy(Execution(order, variance, keep).block(block, x.numpy()).astype(np.float64))
                worst = max(worst, float((executed - real).abs().max()))
                assert ((executed - centre).abs() <= error).all()
    assert worst > 1e-4 * float((real - x.double()).abs().max())  # units of float32 do not explain that


SMALL = torch.finfo(torch.float32).tiny
KEEP = (as_it_is, flushed)


def array(x):
    return torch.as_tensor(x, dtype=torch.float64).float().numpy()


def off_by(executed, real):
    return (torch.from_numpy(np.asarray(executed, dtype=np.float64)) - real).abs()


@pytest.mark.parametrize(
    ("size", "gamma", "tau"),
    [
        (0.3 * SMALL, 1.0, 1e-36),
        (3 * SMALL, 1.0, 1e-36),
        (1e-19, 1.0, 1e-36),
        (1.0, SMALL, 1e-5),
        (1.0, 0.1 * SMALL, 1e-5),
    ],
)
def test_layernorm_of_small_numbers(size, gamma, tau):
    d, worst = 8, 0.0
    for seed in range(5):
        norm = float32_numbers(Norm(torch.full((d,), gamma).double(), torch.zeros(d).double(), tau))
        x = (size * randn(generator(seed), 3, d)).float()
        z = x.double() - x.double().mean(-1, keepdim=True)
        rho = (norm.tau + z.square().mean(-1)).rsqrt()
        error, real = norm_error(norm, z.abs(), x.double().abs(), rho), z * rho[:, None] * norm.gamma
        for keep in KEEP:
            for variance in ("two passes", "updates"):
                off = off_by(Execution("forward", variance, keep).norm(norm, x.numpy()), real)
                worst = max(worst, float((off / real.abs().max()).max()))
                assert (off <= error).all()
    assert worst > 1e-3


@pytest.mark.parametrize(("x", "weight"), [(1e-7, 1e-38), (1e10, 0.5 * SMALL), (0.5 * SMALL, 1e10), (1e-20, 1e-20)])
def test_products_of_small_numbers(x, weight):
    """Results that underflow, and operands that are flushed before they meet a large factor."""
    for seed in range(5):
        g = generator(seed)
        a, b = (array(size * randn(g, *shape)) for size, shape in ((x, (3, 8)), (weight, (8, 5))))
        A, B = torch.from_numpy(a).double(), torch.from_numpy(b).double()
        error = dense_error(A.abs(), torch.zeros_like(A), B, torch.zeros(5).double())
        off = torch.stack([off_by(Execution("forward", keep=keep).dot(a, b), A @ B) for keep in KEEP])
        assert (off <= error).all()
        assert float(off.max()) > 1e-3 * float((A @ B).abs().max())


@pytest.mark.parametrize("what", ["probabilities", "products", "outputs"])
def test_attention_of_small_numbers(what):
    """Numerators that underflow beside large values; products with values that do; products with W_o that do."""
    S, e = 128, 2
    p = torch.full((1, S), 1.0 / S).double()
    v, w_o, hidden = 1.0, 1e-38, torch.zeros(1, 1, e).double()
    if what == "probabilities":
        p = torch.cat([torch.full((1, S - 1), 0.4 * SMALL).double(), torch.ones(1, 1).double()], dim=1)
        v, w_o = 1e36, 1.0
    if what == "products":
        v, w_o = 100 * SMALL, 1e30
    zeros, none = torch.zeros(e, e).double(), torch.zeros(e).double()
    of = Attention(zeros, zeros, zeros, w_o * torch.eye(e).double(), none, none, none, none, n_heads=1)
    V = torch.full((S, e), v).double()
    V[-1] *= 0 if what == "probabilities" else 1
    n, zero = torch.zeros(S, e).double(), torch.zeros(S, e).double()
    sizes = AttentionSizes(zero[None, -1:], zero[None], V[None], p[None], n, zero, hidden[0])
    error = attention_error(of, Queries.last(S), sizes)
    real = p @ V @ of.w_o
    off = []
    for keep in KEEP:
        run = Execution("forward", keep=keep)
        off.append(off_by(run.dot(run.dot(array(p), array(V)), array(of.w_o)), real))
    assert (torch.stack(off) <= error).all()
    assert float(torch.stack(off).max()) > 1e-3 * float(real.abs().max())


def test_mlp_and_head_of_small_numbers():
    """Products with W_2, and with the head's weights, that underflow; pooled tokens that do."""
    eye, none = torch.eye(2).double(), torch.zeros(2).double()
    mlp = Mlp(eye, none, float(np.float32(1e-38)) * eye, none)
    n, nothing = torch.full((1, 2), 1e-7).double(), torch.zeros(1, 2).double()
    hidden = gelu = torch.nn.functional.gelu(n, approximate="tanh")
    error = mlp_error(mlp, n, n, nothing, nothing)
    off = torch.stack([off_by(Execution("forward", keep=keep).dot(array(gelu), array(mlp.w_2)), gelu @ mlp.w_2)
                       for keep in KEEP])  # fmt: skip
    assert (off <= error).all()
    assert float(off.max()) > 1e-3 * float((hidden @ mlp.w_2).abs().max())
    head = Head(Norm(torch.ones(2).double(), none, 1e-5), "mean", mlp.w_2, None)
    for size, weight in ((1e-7, 1e-38), (0.7 * SMALL, 1e30)):
        n = float32_numbers(torch.full((5, 2), size).double())
        head = dataclasses.replace(head, weight=float(np.float32(weight)) * torch.eye(2).double())
        pool = head.read_weights(5)
        error, real = output_error(head, pool, n, torch.zeros_like(n)), n.mean(0) @ head.weight
        run = Execution("forward", keep=flushed)
        pooled = flushed(run.sum(array(n).T) / F32(5))
        off = off_by(run.dot(pooled[None], array(head.weight))[0], real)
        assert (off <= error).all()
        assert float(off.max()) > 1e-3 * float(real.abs().max())


def test_embeddings_of_small_numbers():
    it = ImageEmbedding(torch.zeros(2, 1), torch.zeros(1), torch.zeros(1, 1), (1, 2), (1, 2))
    for pixel, weight in ((1e-20, 1e-20), (0.5 * SMALL, 1e30), (1e30, 0.5 * SMALL)):
        x, w = (float(np.float32(value)) for value in (pixel, weight))
        image = torch.full((1, 2), x).double()
        embedding = dataclasses.replace(map_tensors(it, lambda t: t.double()), weight=torch.full((2, 1), w).double())
        box = Box(image, image, image, PatchMap(embedding))
        executed = Execution("forward", keep=flushed).dot(array(image), array(embedding.weight))
        assert float(off_by(executed, embedding(image))) <= float(embedding_rounding(box, image, "float32"))
        assert float(off_by(executed, embedding(image))) > 0.1 * float(embedding(image))
    token = torch.full((1, 1), 0.5 * SMALL).double()
    box = Box(token, token, token, TokenMap(torch.zeros(1, 1).double(), torch.tensor([0]), (0,)))
    assert float(embedding_rounding(box, token, "float32")) >= 0.5 * SMALL


@pytest.mark.parametrize("method", ["E", "A", "F", "M", "D", "ibp"])
@pytest.mark.parametrize("what", ["layernorm", "mean"])
def test_where_layernorm_or_the_mean_of_tokens_may_overflow_nothing_is_said(method, what):
    """Later weights make the outputs small again, in real arithmetic."""
    cfg = image_config(n_embd=8, n_head=2, n_layer=1, num_labels=2, n_positions=24)
    cfg.patch_size = (1, 1)
    hf = text_classifier(0, config(num_labels=2)) if what == "layernorm" else image_model(0, cfg)
    norm, head = hf.transformer.ln_f, hf.score if what == "layernorm" else hf.classifier
    with torch.no_grad():
        norm.weight[:], norm.bias[:] = (3e38, 0) if what == "layernorm" else (1e30, 3e37)
        head.weight *= 1e-38
    net = zonogpt.load(hf)
    if what == "layernorm":
        spec = zonogpt.embedding_ball(net, [3, 5], [1], 1e-9, label=0)
        logits = hf(torch.tensor([[3, 5]])).logits
    else:
        image = torch.rand(6, 4, generator=generator(1))
        spec, logits = zonogpt.image_ball(net, image, 1e-9, label=0), hf(image[None]).logits
    spec = spec.with_claim([[1.0, 0.0]], [1e6])
    assert not logits.isfinite().all()
    assert zonogpt.verify(net, spec, method="E").status == "verified"
    assert zonogpt.verify(net, spec, method=method, arithmetic="float32").status == "unknown"


def test_features_whose_sum_may_overflow():
    """LayerNorm adds them up, however small their differences are."""
    norm = Norm(torch.ones(8).double(), torch.zeros(8).double(), 1e-5)
    size, one = torch.full((1, 8), 7e37).double(), torch.ones(1, 8).double()
    assert not torch.nn.functional.layer_norm(size.float(), (8,)).isfinite().all()
    assert norm_error(norm, one, size, one[:, 0]).isinf().all()
    assert norm_error(norm, one, 1e-20 * size, one[:, 0]).isfinite().all()


@pytest.mark.parametrize("tau", [1e-50, 1e-44, 1e39])
def test_epsilons_that_float32_cannot_hold_are_refused(tau):
    net = zonogpt.load(text_classifier(0, config(layer_norm_epsilon=tau)))
    spec = zonogpt.embedding_ball(net, [3, 5], [1], 1e-6, label=0)
    with pytest.raises(OptionError, match="epsilon"):
        zonogpt.verify(net, spec, arithmetic="float32")
    zonogpt.verify(net, spec)


def test_weights_that_float32_rounds_are_refused():
    """The executed network has other weights. Token and position embeddings that cancel would show it."""
    hf = text_classifier(0).double()
    zonogpt_float32 = zonogpt.load(hf)  # numbers of float32, held in float64
    spec = zonogpt.embedding_ball(zonogpt_float32, [3, 5], [1], 1e-6)
    assert zonogpt.verify(zonogpt_float32, spec, arithmetic="float32").status == "verified"
    with torch.no_grad():
        hf.transformer.wte.weight[3, 0] += 1e-12
    net = zonogpt.load(hf)
    spec = zonogpt.embedding_ball(net, [3, 5], [1], 1e-6)
    with pytest.raises(OptionError, match="float64 numbers that float32 rounds"):
        zonogpt.verify(net, spec, arithmetic="float32")
    assert zonogpt.verify(net, spec).status == "verified"


def test_torch_in_flush_to_zero_mode():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        for seed in range(3):
            block = float32_numbers(tiny_block(seed, True, 12, "inner"))
            x = 1e-6 * randn(generator(seed), 4, 12).float()
            narrow = map_tensors(block, lambda t: t.float())
            torch.set_flush_denormal(False)
            with torch.no_grad():
                centre, error = enclosure("E mlp", block, x)
                torch.set_flush_denormal(True)
                theirs = narrow(x)
            torch.set_flush_denormal(False)
            assert ((theirs.double() - centre).abs() <= error).all()
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("method", ["E", "A", "F"])
def test_margins_of_executions_of_whole_models(method):
    hf = image_model(5, image_config(n_embd=8, n_head=2, n_layer=1))
    net = zonogpt.load(hf)
    g = generator(3)
    for _ in range(3):
        image = torch.rand(net.embedding.image_size, generator=g)
        spec = zonogpt.image_ball(net, image, 1e-5)
        real = zonogpt.verify(net, spec, method=method)
        executed = zonogpt.verify(net, spec, method=method, arithmetic="float32")
        assert executed.arithmetic == "float32"
        assert real.arithmetic == "real"
        assert (executed.margins < real.margins).all()
        x = torch.rand(64, *image.shape, generator=g).double()
        points = (spec.input.lower + x * (spec.input.upper - spec.input.lower)).float()
        points = torch.minimum(torch.maximum(points.double(), spec.input.lower), spec.input.upper).float()
        with torch.no_grad():
            for chunk in (1, 7, 64):  # another batch size, another order of summation
                logits = torch.cat([hf(part).logits for part in points.split(chunk)])
                assert (spec.claim.margins(logits.double()).amin(0) >= executed.margins).all()


def test_tokens_before_the_first_that_moves_are_executed_too():
    net = zonogpt.load(text_classifier(2))
    spec = zonogpt.embedding_ball(net, [3, 5, 1, 12, 7, 2], [4], 1e-5)
    real = zonogpt.verify(net, spec)
    executed = zonogpt.verify(net, spec, arithmetic="float32")
    assert (executed.margins < real.margins - 1e-5).all()
    logits = net.forward(spec.input.embed(spec.input.anchor).float()).double()
    assert (spec.claim.margins(logits) >= executed.margins).all()


def test_a_method_that_estimates_rounding_says_nothing_about_executions():
    net = zonogpt.load(image_model(1))
    spec = zonogpt.image_ball(net, torch.full(net.embedding.image_size, 0.5), 1e-4)
    with pytest.raises(OptionError, match="crown estimates rounding"):
        zonogpt.verify(net, spec, method="crown", arithmetic="float32")
    with pytest.raises(OptionError, match="use real or float32"):
        zonogpt.verify(net, spec, arithmetic="float16")
    assert dataclasses.asdict(zonogpt.verify(net, spec))["arithmetic"] == "real"


@pytest.mark.parametrize("method", ["E", "A", "ibp"])
def test_where_an_execution_may_overflow_nothing_is_said(method):
    """Tokens of size 1e20: fine in real arithmetic, but squares in float32 are infinite and its answer is NaN."""
    hf = image_model(0, image_config(n_embd=8, n_head=2, n_layer=1, num_labels=2))
    with torch.no_grad():
        for part in (hf.projection.weight, hf.projection.bias, hf.transformer.wpe.weight):
            part *= 1e20
    net = zonogpt.load(hf)
    image = torch.rand(6, 4, generator=generator(1))
    label = int(map_tensors(net, lambda t: t.double()).forward(net.embedding(image).double()).argmax())
    spec = zonogpt.image_ball(net, image, 1e-4, label=label)
    assert not hf(image[None]).logits.isfinite().any()
    assert zonogpt.verify(net, spec, method="E").status == "verified"
    assert zonogpt.verify(net, spec, method=method, arithmetic="float32").status == "unknown"


@pytest.mark.parametrize("d", [2, 16, 64])
def test_a_running_mean_may_round_onto_its_token(d):
    """Features near 2^30 that differ by one unit: updates find no variance, and tau alone divides what is left."""
    norm = Norm(torch.ones(d).double(), torch.zeros(d).double(), 1e-5)
    for size in (1e8, 1e9, 2.0**30 + 64, 2.0**27 + 8):
        for seed in range(20):
            x = torch.full((d,), size)
            step = torch.nextafter(x, 2 * x) - x
            x = x + step * torch.randint(0, 2, (d,), generator=generator(seed))
            wide = x.double()
            z = wide - wide.mean()
            rho = (norm.tau + z.square().mean()).rsqrt()
            error = norm_error(norm, z.abs()[None], wide.abs()[None], rho[None])[0]
            for variance in ("two passes", "updates"):
                executed = Execution("forward", variance).norm(norm, x[None].numpy())[0].astype(np.float64)
                assert ((torch.from_numpy(executed) - norm(wide[None])[0]).abs() <= error).all()
            theirs = torch.nn.functional.layer_norm(x, (d,), eps=norm.tau).double()
            assert ((theirs - norm(wide[None])[0]).abs() <= error).all()
