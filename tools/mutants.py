"""Breaks the verifier one term at a time and checks that the tests notice.

    python tools/mutants.py [--only WORD]

Each mutation drops, flips or shrinks a term of a bound in a copy of the source and runs the tests guarding it. A mutant
that survives is a hole in the tests, and the exit code is 1. About an hour on two cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutations_baselines import OTHERS
from mutations_bench import BENCH
from mutations_checker import CHECKER
from mutations_chunks import CHUNKS
from mutations_e import METHOD_E
from mutations_rounding import ROUNDING_TERMS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "zonogpt"


@dataclass(frozen=True)
class Mutation:
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


LN, GELU, SOFTMAX = "transforms/layernorm.py", "transforms/gelu.py", "transforms/softmax.py"
POINT, ATTENTION = "transforms/attention_point.py", "transforms/attention.py"
DECOMPOSED, MLP, HEAD = "transforms/decomposed_attention.py", "transforms/mlp.py", "transforms/head.py"
DOMAIN, INPUTS, CLAIMS, METHOD = (
    "domains/structured.py",
    "spec/inputs.py",
    "spec/claims.py",
    "methods/structured.py",
)

MUTATIONS = [
    Mutation(
        "LayerNorm: curvature term B dropped",
        LN,
        "up(torch.maximum(A, B), 12)",
        "up(A, 12)",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: quadratic term A dropped",
        LN,
        "up(torch.maximum(A, B), 12)",
        "up(B, 12)",
        ("test_layernorm.py",),
    ),
    Mutation("LayerNorm: 3/8 becomes 1/8", LN, "0.375 * (r_a", "0.125 * (r_a", ("test_layernorm.py",)),
    Mutation(
        "LayerNorm: d_rho halved",
        LN,
        "(0.5 * (r_a / a_min)).clamp(max=1)",
        "(0.25 * (r_a / a_min)).clamp(max=1)",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: deviation times d_rho dropped",
        LN,
        " + r_cen * d_rho[:, None]), a_min",
        "), a_min",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: a_min taken at the centre",
        LN,
        "a_min = (tau + torch.maximum(*least))",
        "a_min = (tau + norm2 / d)",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: a_max taken at the centre",
        LN,
        "a_max = up(a0 * (1 + g) + r_a)",
        "a_max = up(a0 * (1 + g))",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: r_quad forgotten in r_a",
        LN,
        "    r_a = r_lin + r_quad\n    # The first",
        "    r_a = r_lin\n    # The first",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: middle not made mean-free",
        LN,
        "    middle = middle - middle.mean(-1, keepdim=True)\n",
        "",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: half-width on one side only",
        LN,
        "half = torch.maximum(high - middle, middle - low)",
        "half = torch.minimum(high - middle, middle - low)",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: cap without the linear part",
        LN,
        "torch.maximum(high - x_hat, x_hat - low) + r_hat",
        "torch.maximum(high - x_hat, x_hat - low)",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: Jacobian without its rank-one part",
        LN,
        "return vbar - (vbar @ at.z0",
        "return vbar - 0 * (vbar @ at.z0",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: range with the wrong end",
        LN,
        "positive = torch.minimum(saturated, z_high * a_min.rsqrt()[:, None])",
        "positive = torch.minimum(saturated, z_high * a_max.rsqrt()[:, None])",
        ("test_layernorm.py",),
    ),
    Mutation(
        "LayerNorm: error generators without gamma",
        LN,
        "return centred * self.norm.gamma",
        "return centred",
        ("test_layernorm.py",),
    ),
    Mutation(
        "GELU: gap of ReLU halved",
        GELU,
        "return r_low - relu_gap(), r_high",
        "return r_low - relu_gap() / 2, r_high",
        ("test_gelu.py",),
    ),
    Mutation(
        "GELU: kink at zero forgotten",
        GELU,
        "    r_low = torch.where((low < 0) & (high > 0), r_low.clamp(max=0), r_low)\n",
        "",
        ("test_gelu.py",),
    ),
    Mutation("GELU: curvature below the chord dropped", GELU, " - bend_high.clamp(min=0) * w2", "", ("test_gelu.py",)),
    Mutation("GELU: curvature above the chord dropped", GELU, " - bend_low.clamp(max=0) * w2", "", ("test_gelu.py",)),
    Mutation(
        "GELU: curvature at the far end only",
        GELU,
        "torch.where(high > 0, high * s_near, high * s_far)",
        "torch.where(high > 0, high * s_far, high * s_far)",
        ("test_gelu.py",),
    ),
    Mutation(
        "GELU: near and far confused",
        GELU,
        "low, high = p_near - n_far, ",
        "low, high = p_near - n_near, ",
        ("test_gelu.py",),
    ),
    Mutation(
        "softmax: factor 2 of Taylor dropped",
        SOFTMAX,
        "up(2 * torch.exp(exponent) * M.square())",
        "up(0.25 * torch.exp(exponent) * M.square())",
        ("test_softmax.py",),
    ),
    Mutation(
        "softmax: underflowed keys taken for masked ones",
        SOFTMAX,
        "    return log_P == -math.inf",
        "    return log_P.exp() == 0",
        ("test_softmax.py",),
    ),
    Mutation(
        "LayerNorm: powers that underflow",
        LN,
        "0.375 * (r_a / a_min).square() * a_min.rsqrt()",
        "0.375 * a_min.pow(-2.5) * r_a.square()",
        ("test_layernorm.py",),
    ),
    Mutation(
        "softmax: M per entry instead of per row",
        SOFTMAX,
        "M = T_U.amax(-1, keepdim=True)",
        "M = T_U",
        ("test_softmax.py",),
    ),
    Mutation(
        "softmax: mean of the row forgotten",
        SOFTMAX,
        "return P * (r + (P * r).sum(-1, keepdim=True))",
        "return P * r",
        ("test_softmax.py",),
    ),
    Mutation(
        "softmax: other keys' scores held still",
        SOFTMAX,
        "high = torch.sigmoid(log_P + T_U - _others(log_P - T_U))",
        "high = torch.sigmoid(log_P + T_U - _others(log_P))",
        ("test_softmax.py",),
    ),
    Mutation(
        "softmax: lower deviation forgotten",
        SOFTMAX,
        "torch.maximum(high - P, P - low)",
        "(high - P)",
        ("test_softmax.py",),
    ),
    Mutation(
        "softmax: score remainder dropped",
        SOFTMAX,
        "taylor = softmax_radius(P, R_U) * (1 + 4 * doubt) + ",
        "taylor = ",
        ("test_softmax.py",),
    ),
    Mutation(
        "softmax: range cap without the linear part",
        SOFTMAX,
        "torch.fmin(taylor, deviation + f_P)",
        "torch.fmin(taylor, deviation)",
        ("test_softmax.py",),
    ),
    Mutation(
        "attention: score product dropped",
        ATTENTION,
        "product = ((total.Q + r.query) @ (total.K + r.key).transpose(-1, -2))",
        "product = 0 * ((total.Q + r.query) @ (total.K + r.key).transpose(-1, -2))",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: score product without LayerNorm's error",
        ATTENTION,
        "product = ((total.Q + r.query) @ (total.K + r.key).transpose(-1, -2))",
        "product = ((from_input.Q + r.query) @ (from_input.K + r.key).transpose(-1, -2))",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: total score change without the product",
        ATTENTION,
        "T_U=up(total.U + product),",
        "T_U=total.U,",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: dP dV dropped",
        ATTENTION,
        "b=up(crossed + crossed_norm + product + rounding)",
        "b=up(crossed + crossed_norm + rounding)",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: crossed local images dropped",
        ATTENTION,
        "b=up(crossed + crossed_norm + product + rounding)",
        "b=up(crossed_norm + product + rounding)",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: crossed LayerNorm error dropped",
        ATTENTION,
        "b=up(crossed + crossed_norm + product + rounding)",
        "b=up(crossed + product + rounding)",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: own LayerNorm error dropped",
        ATTENTION,
        "torch.cat([L, E, softmax_generators], dim=1)",
        "torch.cat([L, 0 * E, softmax_generators], dim=1)",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: softmax generators dropped",
        ATTENTION,
        "torch.cat([L, E, softmax_generators], dim=1)",
        "torch.cat([L, E, 0 * softmax_generators], dim=1)",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: skip of the local symbols dropped",
        ATTENTION,
        "    L = L + z.L  # the skip\n",
        "",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: values' change without LayerNorm's error",
        ATTENTION,
        "return up(self.from_input.VW + self.from_norm.VW + lost",
        "return up(self.from_input.VW + lost",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: one centre for all features",
        ATTENTION,
        "(VW[:, None] - centre[:, :, None])  # (H, I, S, d)",
        "(VW[:, None] - centre[:, :, None] - VW.mean())  # (H, I, S, d)",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: own column of P_dot wrong",
        ATTENTION,
        "own = point.P * column * ((1 - point.P) - point.P)",
        "own = -point.P * column * point.P",
        ("test_attention.py",),
    ),
    Mutation(
        "attention: spread over the row dropped",
        ATTENTION,
        "spread + own + row_P, VW)",
        "own.abs() + row_P, VW)",
        ("test_attention.py",),
    ),
    Mutation(
        "tangents: key of the source forgotten",
        POINT,
        "    row = row + column * own  # the source's query meets its own key\n",
        "",
        ("test_attention.py",),
    ),
    Mutation(
        "tangents: pull towards the output forgotten",
        POINT,
        "(point.VW[:, s, None] - point.OW[:, queries])",
        "(point.VW[:, s, None] - 0 * point.OW[:, queries])",
        ("test_attention.py",),
    ),
    Mutation(
        "decomposed: LayerNorm's error in Q dropped",
        DECOMPOSED,
        "b_U = b_Q @ point.K.abs().transpose(-1, -2) + point.Q",
        "b_U = point.Q",
        ("test_attention.py",),
    ),
    Mutation(
        "decomposed: other tokens' keys dropped",
        DECOMPOSED,
        'b_U = b_U + (point.Q.abs() @ local["K"].transpose(-1, -2)) * others + T_Q',
        "b_U = b_U + T_Q",
        ("test_attention.py",),
    ),
    Mutation(
        "decomposed: score product dropped",
        DECOMPOSED,
        "* others + T_Q @ T_K.transpose(-1, -2)",
        "* others",
        ("test_attention.py",),
    ),
    Mutation(
        "decomposed: other tokens' values dropped",
        DECOMPOSED,
        "errors = up(from_softmax + from_norm + crossed + product, ",
        "errors = up(from_softmax + from_norm + product, ",
        ("test_attention.py",),
    ),
    Mutation(
        "decomposed: dP dV dropped",
        DECOMPOSED,
        "errors = up(from_softmax + from_norm + crossed + product, ",
        "errors = up(from_softmax + from_norm + crossed, ",
        ("test_attention.py",),
    ),
    Mutation(
        "decomposed: softmax error dropped",
        DECOMPOSED,
        "errors = up(from_softmax + from_norm + crossed + product, ",
        "errors = up(from_norm + crossed + product, ",
        ("test_attention.py",),
    ),
    Mutation(
        "MLP: GELU generators dropped",
        MLP,
        "torch.cat([L, E, gelu_generators], dim=1)",
        "torch.cat([L, E, 0 * gelu_generators], dim=1)",
        ("test_mlp.py",),
    ),
    Mutation(
        "MLP: LayerNorm's error dropped",
        MLP,
        "torch.cat([L, E, gelu_generators], dim=1)",
        "torch.cat([L, 0 * E, gelu_generators], dim=1)",
        ("test_mlp.py",),
    ),
    Mutation(
        "MLP: GELU's shift dropped",
        MLP,
        "value = slope * h.centre + mid",
        "value = slope * h.centre",
        ("test_mlp.py",),
    ),
    Mutation(
        "MLP: preactivation ignores LayerNorm's error",
        MLP,
        "radius = torch.minimum(norm.R_hat @ weighted.abs(), ",
        "radius = 0 * torch.minimum(norm.R_hat @ weighted.abs(), ",
        ("test_mlp.py",),
    ),
    Mutation(
        "MLP: preactivation ignores local symbols",
        MLP,
        "    for stack in z.generator_stacks():\n        each = 2 * radius",
        "    for stack in z.generator_stacks()[:1]:\n        each = 2 * radius",
        ("test_mlp.py",),
    ),
    Mutation("fused MLP: curvature halved", MLP, "bend = 0.5 * curvature", "bend = 0.25 * curvature", ("test_mlp.py",)),
    Mutation("fused MLP: curvature dropped", MLP, "bend = 0.5 * curvature", "bend = 0.0 * curvature", ("test_mlp.py",)),
    Mutation(
        "fused MLP: LayerNorm's error dropped",
        MLP,
        "up(up(from_norm, d) + from_gelu + rounding)",
        "up(from_gelu + rounding)",
        ("test_mlp.py",),
    ),
    Mutation(
        "head: LayerNorm's error dropped",
        HEAD,
        "loss = up(carried + up(from_norm, d + S) + rounding)",
        "loss = up(carried + rounding)",
        ("test_methods.py",),
    ),
    Mutation(
        "head: symbols dropped",
        HEAD,
        "loss = up(carried + up(from_norm, d + S) + rounding)",
        "loss = up(up(from_norm, d + S) + rounding)",
        ("test_methods.py",),
    ),
    Mutation(
        "head: local symbols dropped",
        HEAD,
        'carried += up(torch.einsum("s,snk->k", pool_G, moved)',
        'carried += 0 * up(torch.einsum("s,snk->k", pool_G, moved)',
        ("test_methods.py",),
    ),
    Mutation(
        "reduction: dropped local generators forgotten",
        DOMAIN,
        "        b = up(b + up(abs_sum(torch.take_along_dim(L, drop[:, :, None], 1), 1), z.q).to(b.dtype))\n",
        "",
        ("test_domain.py",),
    ),
    Mutation(
        "reduction: dropped shared generators forgotten",
        DOMAIN,
        "        b = up(b + up(abs_sum(G[drop], 0), z.m).to(b.dtype))\n",
        "",
        ("test_domain.py",),
    ),
    Mutation(
        "cast: rounding of the generators forgotten",
        DOMAIN,
        "up(z.b + lost, z.m + z.q)",
        "z.b",
        ("test_domain.py",),
    ),
    Mutation(
        "conversion: interval dropped",
        DOMAIN,
        "boxes = torch.diag_embed(",
        "boxes = 0 * torch.diag_embed(",
        ("test_domain.py",),
    ),
    Mutation(
        "input: radius to the nearer side",
        INPUTS,
        "radius = torch.maximum(box.upper - centre, centre - box.lower)",
        "radius = torch.minimum(box.upper - centre, centre - box.lower) / 2",
        ("test_spec.py",),
    ),
    Mutation(
        "method: interval dropped between blocks",
        METHOD,
        "            z = settled(z)\n",
        "            z = StructuredZonotope(z.c, z.G, z.L, 0 * z.b)\n",
        ("test_methods.py",),
    ),
    Mutation(
        "verify: zero margins accepted",
        CLAIMS,
        "self._in_every_group(margins > 0)",
        "self._in_every_group(margins >= 0)",
        ("test_verify.py",),
    ),
    Mutation(
        "verify: NaN accepted",
        CLAIMS,
        "self._in_every_group(margins > 0)",
        "self._in_every_group(~(margins <= 0))",
        ("test_verify.py",),
    ),
]
MUTATIONS += [Mutation(f"E: {what}", file, old, new, tests) for what, file, old, new, tests in METHOD_E]
MUTATIONS += [Mutation(f"other: {what}", file, old, new, tests) for what, file, old, new, tests in OTHERS]
MUTATIONS += [Mutation(f"rounding: {what}", file, old, new, tests) for what, file, old, new, tests in ROUNDING_TERMS]
MUTATIONS += [Mutation(f"checker: {what}", file, old, new, tests) for what, file, old, new, tests in CHECKER]
MUTATIONS += [Mutation(f"chunks: {what}", file, old, new, tests) for what, file, old, new, tests in CHUNKS]
MUTATIONS += [Mutation(f"bench: {what}", file, old, new, tests) for what, file, old, new, tests in BENCH]


def run(mutation: Mutation) -> tuple[Mutation, bool, float]:
    """Whether the tests noticed, and how long they took to."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE.parent, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        file = Path(folder) / "zonogpt" / mutation.file
        file.write_text(file.read_text().replace(mutation.old, mutation.new))
        tests = [str(ROOT / "tests" / name) for name in mutation.tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    # 1: a test failed. Anything else (a crash of pytest, an import error) is no catch.
    return mutation, done.returncode == 1, time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the mutations whose description contains this")
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS if args.only in m.what]
    survivors = 0
    with ThreadPoolExecutor(2) as pool:
        for mutation, caught, seconds in pool.map(run, chosen):
            survivors += not caught
            print(f"{'caught  ' if caught else 'SURVIVED'}  {mutation.what}  ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
