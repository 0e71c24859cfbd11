"""Every node's exact forward pass against the module of torch or transformers that it stands for, in float64.

Nodes that no loader makes yet are among them. Attention runs as "sdpa": Llama's and Phi's eager one takes its softmax
in float32.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig, LlamaConfig, PhiConfig, ViTConfig
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.models.bert import modeling_bert as bert
from transformers.models.gpt2 import modeling_gpt2 as gpt2
from transformers.models.llama import modeling_llama as llama
from transformers.models.phi import modeling_phi as phi
from transformers.models.vit import modeling_vit as vit

from builders import config
from zonogpt.domains.rounding import gamma
from zonogpt.errors import ModelError
from zonogpt.model import activations
from zonogpt.model.activations import GELU_ERF, GELU_TANH, RELU, SILU, TANH, Activation
from zonogpt.model.nodes import Attention, Block, Dense, Gated, Head, Mlp, Norm, Parallel, Rotation, Shape
from zonogpt.transforms.activations import ACTIVATIONS

D, HEADS, HIDDEN, S = 12, 3, 20, 5  # features, heads, hidden units, tokens

# Activations by their names in configurations. The tanh form's first name is the plain formula, a check of torch's.
ROWS = {"gelu_new": GELU_TANH, "gelu_pytorch_tanh": GELU_TANH, "gelu": GELU_ERF, "relu": RELU, "silu": SILU,
        "tanh": TANH}  # fmt: skip
each_row = pytest.mark.parametrize(("name", "activation"), ROWS.items(), ids=list(ROWS))

SIZES = {"hidden_size": D, "intermediate_size": HIDDEN, "num_attention_heads": HEADS, "attn_implementation": "sdpa"}
GPT2 = config(n_inner=HIDDEN, attn_implementation="sdpa")
BERT = BertConfig(**SIZES, layer_norm_eps=0.1, vocab_size=17)
VIT = ViTConfig(**SIZES, layer_norm_eps=0.1)
# A base so small that every pair of features turns by much from token to token.
ROPE = {"rope_type": "default", "rope_theta": 5.0}
PHI = PhiConfig(**SIZES, rope_parameters=ROPE | {"partial_rotary_factor": 1.0})


def llama_config(**changes):
    return LlamaConfig(**(SIZES | {"num_key_value_heads": HEADS, "rope_parameters": ROPE} | changes))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)  # modules initialise from the global generator


def randomised(module):
    """The module in float64, with every parameter moved at random: no bias is zero and no norm trivial."""
    module = module.double().eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter += 0.5 * torch.randn_like(parameter)
    return module


def tokens():
    return torch.randn(2, S, D, dtype=torch.float64)


def close(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def agree(ours, theirs, tolerance=1e-12):
    """Both agree on a batch, and ours also on one sequence alone."""
    x = tokens()
    expected = theirs(x)
    close(ours(x), expected, tolerance)
    close(ours(x[0]), expected[0], tolerance)


def dense_of(layer):
    """Weight (in, out), as GPT-2's Conv1D stores it, and bias."""
    return (layer.weight.T if isinstance(layer, nn.Linear) else layer.weight), layer.bias


def norm_of(layer):
    return Norm(layer.weight, getattr(layer, "bias", None), layer.eps, centred=isinstance(layer, nn.LayerNorm))


def attention_of(layer, *maps, **rest):
    weights, biases = zip(*map(dense_of, maps), strict=True)
    return Attention(*weights, *biases, layer.config.num_attention_heads, **rest)


def mlp_of(first, second, activation):
    return Mlp(*dense_of(first), *dense_of(second), activation)


def gated_of(layer, activation):
    return Gated(*(dense_of(part)[0] for part in (layer.gate_proj, layer.up_proj, layer.down_proj)), activation)


def turns(embedding):
    """The embedding's cos and sin for the positions of S tokens, and a Rotation of a few more positions."""
    cos, sin = embedding(tokens(), torch.arange(S + 3)[None])
    rotation = Rotation(*(part[0, :, : part.shape[-1] // 2] for part in (cos, sin)))
    return (cos[:, :S], sin[:, :S]), rotation


# Norms


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias):
    theirs = randomised(nn.LayerNorm(D, eps=0.1, bias=bias))
    ours = norm_of(theirs)
    assert (ours.kind, ours.beta is None) == ("LayerNorm", not bias)
    agree(ours, theirs)


def test_rms_norm():
    theirs = randomised(nn.RMSNorm(D, eps=0.1))
    ours = norm_of(theirs)
    assert ours.kind == "RMSNorm"
    agree(ours, theirs)
    rounding = randomised(llama.LlamaRMSNorm(D, eps=0.1))  # computes in float32, whatever its weights are
    agree(replace(ours, gamma=rounding.weight), rounding, tolerance=1e-6)
    beta = torch.randn(D, dtype=torch.float64)  # no module has one, but the formula does
    agree(replace(ours, beta=beta), lambda x: theirs(x) + beta)


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_without_variance(bias):
    """torch has no such module: the reference is LayerNorm's output, times the deviation that it divides by."""
    theirs = randomised(nn.LayerNorm(D, eps=0.1, bias=bias))
    ours = replace(norm_of(theirs), scaled=False)
    assert ours.kind == "LayerNorm without variance"

    def expected(x):
        deviation = (x.var(-1, correction=0, keepdim=True) + theirs.eps).sqrt()
        plain = nn.functional.layer_norm(x, (D,), eps=theirs.eps) * deviation * theirs.weight
        return plain + theirs.bias if bias else plain

    agree(ours, expected)


def test_affine_norm_is_a_folded_batch_norm():
    theirs = randomised(nn.BatchNorm1d(D, eps=0.1))
    theirs.running_mean.normal_()
    theirs.running_var.uniform_(0.5, 2.0)
    gain = theirs.weight / (theirs.running_var + theirs.eps).sqrt()
    ours = Norm(gain, theirs.bias - theirs.running_mean * gain, centred=False, scaled=False)
    assert ours.kind == "affine norm"
    agree(ours, lambda x: theirs(x.flatten(0, 1)).view_as(x))
    agree(replace(ours, beta=None), lambda x: x * gain)


@pytest.mark.parametrize("centred", [True, False])
def test_centring(centred):
    """`centre` is a matrix C: v -> v C, a box -> r |C|, a Gram -> C Q C."""
    norm = Norm(torch.ones(D, dtype=torch.float64), None, centred=centred)
    identity = torch.eye(D, dtype=torch.float64)
    C = identity - 1 / D if centred else identity
    v, r = tokens(), tokens().abs()
    close(norm.centre(v), v @ C)
    exact = r @ C.abs()
    assert (norm.centred_size(r) >= exact - 1e-12).all()
    assert (norm.centred_size(r) <= exact + (2 / D * r if centred else 0) + 1e-12).all()  # a coordinate's own part of m
    A = torch.randn(2, S, 4, D, dtype=torch.float64)
    for Q in (A.mT @ A, A[0, 0].mT @ A[0, 0]):  # batches of Grams, and one
        close(norm.centre_gram(Q), C @ Q @ C)


@pytest.mark.parametrize(("centred", "bound"), [(True, (D - 1) ** 0.5), (False, D**0.5)])
def test_largest_is_a_bound_and_nearly_attained(centred, bound):
    norm = Norm(torch.ones(D, dtype=torch.float64), None, 1e-5, centred)
    spike = 100 * torch.eye(D, dtype=torch.float64)
    sizes = torch.randn(10_000, D, dtype=torch.float64) * 10 ** torch.linspace(-4, 4, 10_000).double()[:, None]
    y = norm(torch.cat([sizes, spike, -spike]))
    assert norm.largest == pytest.approx(bound)
    assert norm.largest * (1 - 1e-6) <= float(y.abs().max()) <= norm.largest
    assert float(y.norm(dim=-1).max()) <= D**0.5
    assert replace(norm, scaled=False).largest == float("inf")


# Attention


def test_rotation():
    (cos, sin), ours = turns(llama.LlamaRotaryEmbedding(llama_config()))
    q, k = torch.randn(2, 2, HEADS, S, D // HEADS, dtype=torch.float64)
    for x, expected in zip((q, k), llama.apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        close(ours(x), expected)


def gpt2_attention(layer):
    weights, biases = (part.chunk(3, -1) for part in dense_of(layer.c_attn))
    w_o, b_o = dense_of(layer.c_proj)
    return Attention(*weights, w_o, *biases, b_o, HEADS)


def bert_attention(layer):
    maps = layer.self.query, layer.self.key, layer.self.value, layer.output.dense
    return attention_of(layer.self, *maps, mask="bidirectional")


def vit_attention(layer):
    return attention_of(layer, layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj, mask="bidirectional")


def llama_attention(layer, rotation):
    maps = layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj
    return attention_of(layer, *maps, shared_heads=layer.num_key_value_groups, rotation=rotation)


def test_attention_of_gpt2():
    theirs = randomised(gpt2.GPT2Attention(GPT2))
    ours = gpt2_attention(theirs)
    assert ours.kind == "attention"
    assert ours.shape == Shape(heads=HEADS, inner=D, causal=True)
    agree(ours, lambda x: theirs(x)[0])


def test_attention_of_bert():
    theirs = randomised(bert.BertAttention(BERT))
    ours = bert_attention(theirs)
    assert not ours.shape.causal
    agree(ours, lambda x: theirs.output.dense(theirs.self(x)[0]))


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_attention_of_vit(qkv_bias):
    theirs = randomised(vit.ViTAttention(ViTConfig(**SIZES, qkv_bias=qkv_bias)))
    ours = vit_attention(theirs)
    assert [b is None for b in (ours.b_q, ours.b_k, ours.b_v, ours.b_o)] == [not qkv_bias] * 3 + [False]
    agree(ours, lambda x: theirs(x)[0])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 3, 4), (4, 2, 6), (4, 1, 2), (6, 2, 4)])
def test_attention_of_llama(heads, kv_heads, head_dim, rotary, bias):
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    cfg = llama_config(**sizes, attention_bias=bias)
    theirs = randomised(llama.LlamaAttention(cfg, layer_idx=0))
    (cos, sin), rotation = turns(llama.LlamaRotaryEmbedding(cfg))
    if not rotary:  # angles of 0
        cos, sin, rotation = torch.ones_like(cos), torch.zeros_like(sin), None
    ours = llama_attention(theirs, rotation)
    expected = ("rotary " if rotary else "") + ("grouped attention" if kv_heads < heads else "attention")
    assert (ours.kind, ours.kv_heads, ours.inner, ours.width) == (expected, kv_heads, heads * head_dim, D)
    assert (ours.b_q is None, ours.b_o is None) == (not bias, not bias)
    agree(ours, lambda x: theirs(x, position_embeddings=(cos, sin))[0])


@pytest.mark.parametrize(
    ("mask", "create"), [("causal", create_causal_mask), ("bidirectional", create_bidirectional_mask)]
)
def test_visible(mask, create):
    layer = randomised(gpt2.GPT2Attention(GPT2))
    ours = replace(gpt2_attention(layer), mask=mask)
    padding = torch.tensor([0, 2, 4])
    real = torch.arange(S) >= padding[:, None]
    visible = ours.visible(S, padding)
    x = torch.randn(3, S, D, dtype=torch.float64)
    theirs = create(GPT2, inputs_embeds=x, attention_mask=real.long(), past_key_values=None)
    assert visible.shape == theirs.shape == (3, 1, S, S)
    assert torch.equal(visible[:, 0][real], theirs[:, 0][real])
    assert torch.equal(visible[:, 0][~real], torch.eye(S, dtype=torch.bool).expand(3, S, S)[~real])
    assert torch.equal(visible[0, 0], ours.visible(S))
    padded = layer(x, attention_mask=visible)[0]
    for b, n in enumerate(padding.tolist()):  # padding in front of a sequence does not change it
        close(ours(x[b, n:]), padded[b, n:])


# Maps of every token


@each_row
def test_mlp(name, activation):
    theirs = randomised(gpt2.GPT2MLP(HIDDEN, config(activation_function=name)))
    ours = mlp_of(theirs.c_fc, theirs.c_proj, activation)
    assert ours.shape == Shape(hidden=HIDDEN, activations=(activation,))
    agree(ours, theirs)
    plain = replace(ours, b_1=None, b_2=None)
    theirs.c_fc.bias.zero_()
    theirs.c_proj.bias.zero_()
    agree(plain, theirs)


@each_row
def test_gated(name, activation):
    theirs = randomised(llama.LlamaMLP(llama_config(hidden_act=name)))
    ours = gated_of(theirs, activation)
    assert ours.shape == Shape(hidden=HIDDEN, activations=(activation,))
    agree(ours, theirs)


def test_dense_of_a_pooler():
    theirs = randomised(bert.BertPooler(BERT))
    ours = Dense(*dense_of(theirs.dense), TANH)
    assert ours.shape == Shape(activations=(TANH,))
    x = tokens()
    close(ours(x)[:, 0], theirs(x))


def test_dense_and_norm_of_a_masked_language_model():
    theirs = randomised(bert.BertLMPredictionHead(BERT))
    transform = theirs.transform
    dense, norm = Dense(*dense_of(transform.dense), GELU_ERF), norm_of(transform.LayerNorm)
    agree(lambda x: norm(dense(x)), transform)
    decoder = Dense(*dense_of(theirs.decoder))
    assert decoder.shape == Shape()
    agree(lambda x: decoder(norm(dense(x))), theirs)


def test_dense_without_bias():
    theirs = randomised(nn.Linear(D, 7, bias=False))
    agree(Dense(*dense_of(theirs)), theirs)


# Blocks


def test_parallel_branches_of_phi():
    theirs = randomised(phi.PhiDecoderLayer(PHI, layer_idx=0))
    at, rotation = turns(phi.PhiRotaryEmbedding(PHI))
    maps = theirs.self_attn.q_proj, theirs.self_attn.k_proj, theirs.self_attn.v_proj, theirs.self_attn.dense
    attention = attention_of(theirs.self_attn, *maps, rotation=rotation)
    mlp = mlp_of(theirs.mlp.fc1, theirs.mlp.fc2, GELU_TANH)
    ours = Block(norm_of(theirs.input_layernorm), Parallel((attention, mlp)))
    assert ours.kind == "parallel branches"
    assert ours.shape == Shape(heads=HEADS, inner=D, hidden=HIDDEN, causal=True, activations=(GELU_TANH,))
    assert not Parallel((replace(attention, mask="bidirectional"), mlp)).shape.causal
    agree(ours, lambda x: theirs(x, position_embeddings=at))


def test_blocks_of_gpt2():
    theirs = randomised(gpt2.GPT2Block(GPT2))
    attention = Block(norm_of(theirs.ln_1), gpt2_attention(theirs.attn))
    mlp = Block(norm_of(theirs.ln_2), mlp_of(theirs.mlp.c_fc, theirs.mlp.c_proj, GELU_TANH))
    assert (attention.kind, mlp.kind) == ("attention", "mlp")
    agree(lambda x: mlp(attention(x)), theirs)


def test_blocks_of_vit():
    theirs = randomised(vit.ViTLayer(VIT))
    attention = Block(norm_of(theirs.layernorm_before), vit_attention(theirs.attention))
    mlp = Block(norm_of(theirs.layernorm_after), mlp_of(theirs.mlp.fc1, theirs.mlp.fc2, GELU_ERF))
    agree(lambda x: mlp(attention(x)), theirs)


def test_blocks_of_llama():
    cfg = llama_config(num_attention_heads=4, num_key_value_heads=2, head_dim=6)
    theirs = llama.LlamaDecoderLayer(cfg, layer_idx=0)
    # Its own norms would compute in float32.
    theirs.input_layernorm, theirs.post_attention_layernorm = nn.RMSNorm(D, 0.1), nn.RMSNorm(D, 0.1)
    theirs = randomised(theirs)
    at, rotation = turns(llama.LlamaRotaryEmbedding(cfg))
    attention = Block(norm_of(theirs.input_layernorm), llama_attention(theirs.self_attn, rotation))
    mlp = Block(norm_of(theirs.post_attention_layernorm), gated_of(theirs.mlp, SILU))
    assert (attention.kind, mlp.kind) == ("rotary grouped attention", "gated mlp")
    agree(lambda x: mlp(attention(x)), lambda x: theirs(x, position_embeddings=at))


def test_post_norm_blocks_of_bert():
    theirs = randomised(bert.BertLayer(BERT))
    attention = Block(norm_of(theirs.attention.output.LayerNorm), bert_attention(theirs.attention), norm_first=False)
    mlp = mlp_of(theirs.intermediate.dense, theirs.output.dense, GELU_ERF)
    mlp = Block(norm_of(theirs.output.LayerNorm), mlp, norm_first=False)
    assert (attention.kind, mlp.kind) == ("post-norm attention", "post-norm mlp")
    agree(lambda x: mlp(attention(x)), theirs)


# Heads


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("read", ["last", "mean", "first"])
def test_head(read, normed):
    summary = randomised(gpt2.GPT2SequenceSummary(config(summary_type=read)))
    norm = randomised(nn.LayerNorm(D, eps=0.1)) if normed else nn.Identity()
    ours = Head(norm_of(norm) if normed else None, read, *dense_of(summary.summary))
    assert (ours.reading, ours.reads_last) == (read, read == "last")
    agree(ours, lambda x: summary(norm(x)))
    weights = ours.read_weights(S)
    close(weights.sum(), torch.ones_like(weights.sum()))
    agree(replace(ours, read=weights), ours)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_head_that_reads_given_weights(bias, normed):
    score, norm = randomised(nn.Linear(D, 3, bias=bias)), randomised(nn.LayerNorm(D)) if normed else nn.Identity()
    weights = torch.randn(S, dtype=torch.float64)
    ours = Head(norm_of(norm) if normed else None, weights, *dense_of(score))
    assert (ours.reading, ours.reads_last) == ("weights", False)
    assert torch.equal(ours.read_weights(S), weights)
    agree(ours, lambda x: score(torch.einsum("s,bsd->bd", weights, norm(x))))


# Activations


def grid(low=-12.0, high=12.0, count=4000):
    """Evenly spaced points, an even number of them: without 0, where ReLU has no derivative."""
    return torch.linspace(low, high, count, dtype=torch.float64)


def inside(low, width):
    """101 points of each interval, both ends among them."""
    return low + torch.linspace(0, 1, 101, dtype=torch.float64)[:, None, None] * width


def derivative(f):
    return torch.func.grad(lambda t: f(t).sum())


def test_every_activation_has_a_counterpart():
    assert set(ROWS.values()) == {row for row in vars(activations).values() if isinstance(row, Activation)}
    assert set(ACTIVATIONS) <= set(ROWS.values())


@each_row
def test_activation(name, activation):
    t = torch.cat([grid(), torch.tensor([0.0, 1e-9, -1e-9, 60.0, -60.0, 1e4, -1e4], dtype=torch.float64)])
    close(activation(t), ACT2FN[name](t))


def names_of(activation):
    return [name for name, row in ROWS.items() if row == activation]


bounded = pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.name)


@bounded
def test_slope_and_curvature_of_a_row(activation):
    row, first = ACTIVATIONS[activation], derivative(ACT2FN[names_of(activation)[0]])
    t = grid()
    close(row.function(t), activation(t))
    close(row.slope(t), first(t))
    assert float(first(t).abs().max()) <= row.steepest
    low, width = grid(count=400)[:, None], torch.tensor([1e-6, 1e-3, 0.1, 1.0, 9.0], dtype=torch.float64)
    curvature = row.curvature(low, low + width)
    assert (derivative(first)(inside(low, width)).abs() <= curvature + 1e-12).all()
    # Slopes differ by no more than the curvature allows, over a kink too.
    assert ((first(low + width) - first(low)).abs() <= curvature * width + 1e-12).all()


@bounded
def test_strips_of_a_row(activation):
    row, g = ACTIVATIONS[activation], ACT2FN[names_of(activation)[0]]
    low, width = grid(count=400)[:, None], torch.tensor([0.0, 1e-6, 1e-3, 0.1, 1.0, 9.0], dtype=torch.float64)
    t = inside(low, width)
    for strip in (row.strip, row.coarse_strip):
        slope, mid, half = strip(*torch.broadcast_tensors(low, low + width))
        assert ((g(t) - slope * t - mid).abs() <= half).all()


@bounded
def test_units_of_a_row(activation):
    """The rounding of float32 against float64, for every configuration's form of the function and for its slope."""
    row = ACTIVATIONS[activation]
    t = torch.cat([grid(), grid(-0.01, 0.01), grid(-1000, 1000)]).float()
    exact, size = t.double(), t.double().abs()

    def within(computed, expected, units, size):
        return ((computed.double() - expected).abs() <= gamma(units, t.dtype) * size).all()

    assert within(activation(t), activation(exact), row.value_units, size)
    for name in names_of(activation):
        assert within(ACT2FN[name](t), activation(exact), row.executed_units, size), name
    assert within(row.slope(t), derivative(activation)(exact), row.slope_units, 1 + size)


@pytest.mark.parametrize("n_tokens", [1, 2, 4])
def test_a_heads_own_weights_are_for_as_many_tokens_as_there_are(n_tokens):
    """Broadcasting would read one token several times."""
    head = Head(None, torch.ones(3, dtype=torch.float64), torch.eye(D, dtype=torch.float64), None)
    x = torch.ones(n_tokens, D, dtype=torch.float64)
    with pytest.raises(ModelError, match="reads 3 tokens"):
        head(x)
    with pytest.raises(ModelError, match="reads 3 tokens"):
        head.read_weights(n_tokens)
