"""Mutations of A to D's chunk loops: what each does, file, old text, new text, the tests that must notice.

None of them shows as long as one chunk holds everything.
"""

from __future__ import annotations

LN, GELU, ATTENTION = "transforms/layernorm.py", "transforms/gelu.py", "transforms/attention.py"
DECOMPOSED, MLP, HEAD = "transforms/decomposed_attention.py", "transforms/mlp.py", "transforms/head.py"
LN_TESTS, ATTENTION_TESTS, MLP_TESTS, METHODS = (
    ("test_layernorm.py",),
    ("test_attention.py",),
    ("test_mlp.py",),
    ("test_methods.py",),
)

CHUNKS: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    (
        "LayerNorm, first one again and again",
        LN,
        "vbar = stack[:, part] - stack",
        "vbar = stack[:, : part.stop - part.start] - stack",
        LN_TESTS,
    ),
    ("LayerNorm, deviations of the last one only", LN, "r_cen += up(vbar", "r_cen = up(vbar", LN_TESTS),
    ("LayerNorm, tangents of the last one only", LN, "r_hat += up(_tangent", "r_hat = up(_tangent", LN_TESTS),
    ("LayerNorm, variance of the last one only", LN, "z0_dot += up((vbar", "z0_dot = up((vbar", LN_TESTS),
    (
        "GELU, residual of the last one only",
        GELU,
        "r_low, r_high = torch.minimum(r_low, lowest.amin(0)), torch.maximum(r_high, highest.amax(0))",
        "r_low, r_high = lowest.amin(0), highest.amax(0)",
        MLP_TESTS,
    ),
    (
        "GELU, curvature of the last one only",
        GELU,
        "bound = torch.maximum(bound, torch.maximum(bend_low.abs(), bend_high.abs()).amax(0))",
        "bound = torch.maximum(bend_low.abs(), bend_high.abs()).amax(0)",
        MLP_TESTS,
    ),
    (
        "fused, shared images at the first symbol",
        ATTENTION,
        "        G[part] += shared_images(",
        "        G[: part.stop - part.start] += shared_images(",
        ATTENTION_TESTS,
    ),
    (
        "fused, softmax generators at the first query",
        ATTENTION,
        "        out[part] = generators",
        "        out[: part.stop - part.start] = generators",
        ATTENTION_TESTS,
    ),
    (
        "fused, first local ones again and again",
        ATTENTION,
        "        yield stack[:, part]\n",
        "        yield stack[:, : part.stop - part.start]\n",
        ATTENTION_TESTS,
    ),
    ("fused, local images at the first symbol", ATTENTION, "        start += n\n", "", ATTENTION_TESTS),
    (
        "fused, sums of the last shared ones only",
        ATTENTION,
        "        sums += FirstOrder(t.Q",
        "        sums = FirstOrder(t.Q",
        ATTENTION_TESTS,
    ),
    (
        "fused, sums of the last local ones only",
        ATTENTION,
        "        sums += FirstOrder(Q, K",
        "        sums = FirstOrder(Q, K",
        ATTENTION_TESTS,
    ),
    (
        "decomposed, shared sums of the last one only",
        DECOMPOSED,
        "            sums[name] += _abs_sum",
        "            sums[name] = _abs_sum",
        ATTENTION_TESTS,
    ),
    (
        "decomposed, shared scores of the last one only",
        DECOMPOSED,
        "kept_U += _abs_sum(t.U, 0)",
        "kept_U = _abs_sum(t.U, 0)",
        ATTENTION_TESTS,
    ),
    (
        "decomposed, shared probabilities of the last one only",
        DECOMPOSED,
        "kept_P += _abs_sum(t.P, 0)",
        "kept_P = _abs_sum(t.P, 0)",
        ATTENTION_TESTS,
    ),
    (
        "decomposed, local sums of the last one only",
        DECOMPOSED,
        "            local[name] += _abs_sum",
        "            local[name] = _abs_sum",
        ATTENTION_TESTS,
    ),
    (
        "decomposed, shared images at the first symbol",
        DECOMPOSED,
        "        G[part] += shared_images(",
        "        G[: part.stop - part.start] += shared_images(",
        ATTENTION_TESTS,
    ),
    (
        "decomposed, local images at the first symbol",
        DECOMPOSED,
        "        L[:, part] += O_dot",
        "        L[:, : part.stop - part.start] += O_dot",
        ATTENTION_TESTS,
    ),
    (
        "MLP, preactivations by the last one only",
        MLP,
        "radius = radius + up(tangents.abs().sum(1), tangents.shape[1])",
        "radius = (radius if part.start == 0 else 0 * radius) + up(tangents.abs().sum(1), tangents.shape[1])",
        MLP_TESTS,
    ),
    (
        "MLP, preactivations by the first one again and again",
        MLP,
        "tangents = norm.jacobian(stack[:, part]) @ w_1",
        "tangents = norm.jacobian(stack[:, : part.stop - part.start]) @ w_1",
        MLP_TESTS,
    ),
    (
        "MLP, images of the first one everywhere",
        MLP,
        "stack[:, part] += norm.jacobian(stack[:, part]) @ chains",
        "stack[:, part] += norm.jacobian(stack[:, : part.stop - part.start]) @ chains",
        MLP_TESTS,
    ),
    (
        "head, first shared one again and again",
        HEAD,
        "norm.jacobian(G[:, part]))",
        "norm.jacobian(G[:, : part.stop - part.start]))",
        METHODS,
    ),
    (
        "head, first local one again and again",
        HEAD,
        "moved = (norm.jacobian(L[:, part])",
        "moved = (norm.jacobian(L[:, : part.stop - part.start])",
        METHODS,
    ),
    ("head, last shared one only", HEAD, "        carried += up((pooled", "        carried = up((pooled", METHODS),
]
