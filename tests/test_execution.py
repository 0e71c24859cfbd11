"""Executions in float32: whatever the order of summation, no block differs by more than is said."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import zonogpt
from builders import (
    attention_block,
    generator,
    image_config,
    image_model,
    layer_norm,
    mlp_block,
    randn,
    text_classifier,
)
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope
from zonogpt.domains.structured import StructuredZonotope
from zonogpt.errors import OptionError
from zonogpt.model.ir import LayerNorm
from zonogpt.tensors import map_tensors
from zonogpt.transforms.attention import fused_attention
from zonogpt.transforms.attention_rounding import Still
from zonogpt.transforms.decomposed_attention import decomposed_attention
from zonogpt.transforms.ellipsoidal.attention import attention_step
from zonogpt.transforms.ellipsoidal.mlp import mlp_step
from zonogpt.transforms.execution import norm_error
from zonogpt.transforms.mlp import fused_mlp, sequential_mlp

F32 = np.float32
LIMIT = 1 << 30


def in_some_order(terms, order):
    """The sum of float32 terms (..., k) along the last axis: forward, backward, shuffled, or by halves."""
    terms = terms.astype(F32)
    if order == "halves":
        while terms.shape[-1] > 1:
            k = terms.shape[-1] // 2
            terms = np.concatenate([terms[..., :k] + terms[..., k : 2 * k], terms[..., 2 * k :]], axis=-1)
        return terms[..., 0]
    index = {"forward": np.arange(terms.shape[-1]), "backward": np.arange(terms.shape[-1])[::-1]}.get(
        order, np.random.default_rng(1).permutation(terms.shape[-1])
    )
    total = np.zeros(terms.shape[:-1], F32)
    for k in index:
        total = total + terms[..., k]
    return total


def dot(a, b, order):
    """(n, k) @ (k, m), every product and every sum rounded."""
    return in_some_order(a[:, None, :] * b.T[None], order)


class Execution:
    """The network in numpy's float32, one rounding at a time."""

    def __init__(self, order, variance="two passes"):
        self.order, self.variance = order, variance

    def norm(self, norm, x):
        gamma, beta = (t.float().numpy() for t in (norm.gamma, norm.beta))
        d = F32(x.shape[-1])
        if self.variance == "updates":
            mean, m2 = np.zeros(len(x), F32), np.zeros(len(x), F32)
            for k in range(x.shape[-1]):
                delta = x[:, k] - mean
                mean = mean + delta / F32(k + 1)
                m2 = m2 + delta * (x[:, k] - mean)
            z, variance = x - mean[:, None], m2 / d
        else:
            z = x - (in_some_order(x, self.order) / d)[:, None]
            variance = in_some_order(z * z, self.order) / d
        rstd = F32(1) / np.sqrt(variance + F32(norm.tau))
        return z * rstd[:, None] * gamma + beta

    def dense(self, x, weight, bias):
        return dot(x, weight.float().numpy(), self.order) + bias.float().numpy()

    def attention(self, block, x):
        S, d = x.shape
        H, e = block.n_heads, d // block.n_heads
        qkv = self.dense(self.norm(block.norm, x), block.w_qkv, block.b_qkv)
        out = np.zeros((S, d), F32)
        for h in range(H):
            q, k, v = (qkv[:, part * d + h * e : part * d + (h + 1) * e] for part in range(3))
            scores = dot(q, k.T, self.order) * F32(1 / math.sqrt(e))
            for i in range(S):
                row = scores[i, : i + 1]
                weight = np.exp(row - row.max())
                p = weight / in_some_order(weight[None], self.order)[0]
                out[i, h * e : (h + 1) * e] = dot(p[None], v[: i + 1], self.order)[0]
        return x + self.dense(out, block.w_o, block.b_o)

    def mlp(self, block, x):
        t = self.dense(self.norm(block.norm, x), block.w_1, block.b_1)
        inner = F32(math.sqrt(2 / math.pi)) * (t + F32(0.044715) * t * t * t)
        return x + self.dense(F32(0.5) * t * (F32(1) + np.tanh(inner)), block.w_2, block.b_2)

    def block(self, block, x):
        return self.attention(block, x) if hasattr(block, "w_o") else self.mlp(block, x)


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
    # The bound is about the same things: the token whose mean is large loses most.
    assert float(error[0].max()) > 20 * float(error[2].max())


TRANSFORMS = {
    "E attention": None, "E mlp": None, "fused": fused_attention, "decomposed": decomposed_attention,
    "sequential": sequential_mlp, "fused mlp": fused_mlp,
}  # fmt: skip


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("seed", range(4))
def test_blocks_contain_every_execution(seed, kind):
    """Sets of one point: what is around the centre is for executions, and these are really off."""
    S, d = 4, 12
    is_mlp = "mlp" in kind or kind == "sequential"
    block = float32_numbers(
        mlp_block(seed, d=d, hidden=24) if is_mlp else attention_block(seed, d=d, n_heads=3, scale=0.4)
    )
    x = hard_inputs(seed, S, d)
    c = x.double()
    with torch.no_grad():
        if kind.startswith("E"):
            z = EllipsoidalZonotope(
                c[None], torch.zeros(1, S, 1, d).double(), torch.zeros(1, S, d, d).double(), math.inf
            )
            step = (
                mlp_step(block, z, LIMIT, "float32")
                if is_mlp
                else attention_step(block, z, Still.none(z.c, 3), S, LIMIT, None, "float32")
            )
            centre, error, real = step[0].c[0], step[1].rounding[0], block(c)
        else:
            z = StructuredZonotope(
                c, torch.zeros(0, S, d).double(), torch.zeros(S, 0, d).double(), torch.zeros(S, d).double()
            )
            out, _ = TRANSFORMS[kind](block, z, "float32")
            centre, error, real = out.c, out.radius, block(c)
    worst = torch.zeros(S, d).double()
    for order in ORDERS:
        executed = torch.from_numpy(Execution(order).block(block, x.numpy()).astype(np.float64))
        worst = torch.maximum(worst, (executed - real).abs())
        assert ((executed - centre).abs() <= error).all()
    theirs = map_tensors(block, lambda t: t.float())(x).double()
    assert ((theirs - centre).abs() <= error).all()
    assert float(worst.max()) > 1e-6


@pytest.mark.parametrize("method", ["E", "A", "F"])
def test_margins_of_executions_of_whole_models(method):
    hf = image_model(5, image_config(n_embd=8, n_head=2, n_layer=1))
    net = zonogpt.load(hf)
    g = generator(3)
    for _ in range(3):
        image = torch.rand(net.embedding.image_size, generator=g)
        spec = zonogpt.image_ball(net, image, 1e-5)
        real = zonogpt.verify(net, spec, method=method, hint=False)
        executed = zonogpt.verify(net, spec, method=method, hint=False, arithmetic="float32")
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
    real = zonogpt.verify(net, spec, hint=False)
    executed = zonogpt.verify(net, spec, hint=False, arithmetic="float32")
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
    """Tokens of size 1e20: real arithmetic does not mind, float32's squares are infinite and its answer is NaN."""
    hf = image_model(0, image_config(n_embd=8, n_head=2, n_layer=1, num_labels=2))
    with torch.no_grad():
        for part in (hf.projection.weight, hf.projection.bias, hf.transformer.wpe.weight):
            part *= 1e20
    net = zonogpt.load(hf)
    image = torch.rand(6, 4, generator=generator(1))
    label = int(map_tensors(net, lambda t: t.double()).forward(net.embedding(image).double()).argmax())
    spec = zonogpt.image_ball(net, image, 1e-4, label=label)
    assert not hf(image[None]).logits.isfinite().any()
    assert zonogpt.verify(net, spec, method="E", hint=False).status == "verified"
    assert zonogpt.verify(net, spec, method=method, arithmetic="float32", hint=False).status == "unknown"


@pytest.mark.parametrize("d", [2, 16, 64])
def test_a_running_mean_may_round_onto_its_token(d):
    """Features near 2^30 that differ by one unit: updates find no variance, and tau alone divides what is left."""
    norm = LayerNorm(torch.ones(d).double(), torch.zeros(d).double(), 1e-5)
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
