"""DeepT's zonotope, operator by operator, beside our deepz: the first attention block from the same input set.

DeepT is research code without a package: its one file Verifiers/Zonotope.py is imported from a checkout. It has no
causal mask, so both sides see the block without; its LayerNorm has an epsilon of its own, which is set to the model's.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import subprocess
import sys
import types
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy import linalg
from torch import Tensor, nn

import zonogpt
from zonogpt.methods.operators.network import block_output, normalised, projected, scores, softmax
from zonogpt.methods.operators.zonotopes import ZonotopeOperators
from zonogpt.model.nodes import Attention, Block, Norm
from zonogpt.spec.inputs import centre_and_noise

FOLDER = "Robustness-Verification-for-Transformers"
NEEDED = ("einops", "opt_einsum", "termcolor")
FLAGS = {  # of its command line, as in scripts/vit/certify_vit_inf.sh where they matter here
    "perturbed_words": 1, "num_perturbed_words": 1, "attack_type": "lp", "all_words": True, "cpu": True,
    "device": "cpu", "num_input_error_terms": 0, "keep_intermediate_zonotopes": False,
    "batch_softmax_computation": False, "use_dot_product_variant3": False, "use_other_dot_product_ordering": False,
    "concretize_special_norm_error_together": True,
}  # fmt: skip
Widths = dict[str, Tensor]  # behind each operator


def missing(checkout: Path | None) -> str | None:
    if checkout is None:
        return "no --deept DIRECTORY is given"
    if not (checkout / FOLDER / "Verifiers" / "Zonotope.py").is_file():
        return f"{checkout} is no checkout of it"
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"it needs {', '.join(absent)}" if absent else None


def version(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return f"DeepT (commit {commit or 'unknown'})"


def widths(checkout: Path, model: zonogpt.Model, spec: zonogpt.Spec) -> Iterator[tuple[str, str, float]]:
    """(operator, whose, mean half-width)."""
    block = model.converted(model.device, torch.float64).blocks[0]
    assert isinstance(block.branch, Attention)
    block = replace(block, branch=replace(block.branch, mask="bidirectional"))
    centre, scale, _ = centre_and_noise(spec.input)
    local = spec.input.embed.local_generators(scale)  # (S, q, d)
    token, index = (local.abs().amax(-1) > 0).nonzero().unbind(1)
    G = local.new_zeros(len(token), len(local), local.shape[-1])
    G[torch.arange(len(token)), token] = local[token, index]
    c = spec.input.embed(centre)
    found = {"deepz": _ours(block, c, G)}
    for name, precise in (("DeepT-Fast", False), ("DeepT-Precise", True)):
        found[name] = _theirs(checkout, block, c, G, precise)
    for operator in found["deepz"]:
        for whose, of in found.items():
            yield operator, whose, float(of[operator].mean())


def _ours(block: Block[Attention], c: Tensor, G: Tensor) -> Widths:
    ops = ZonotopeOperators(len(G), math.inf, lambda: None)
    x = ops.zonotope(c, G)
    n = normalised(ops, block.norm, x)
    q, k, _ = projected(ops, block, n)
    u = scores(ops, q, k)
    p = softmax(ops, u, block.branch)
    behind = {"scores": u, "softmax": p}
    ops.n_symbols = len(G)  # once more, from the start
    behind["block"] = block_output(ops, block, x)
    of_norm = {"LayerNorm": ops.bounds(n).radius * block.norm.gamma.abs()}
    return of_norm | {name: ops.bounds(value).radius for name, value in behind.items()}


def _theirs(checkout: Path, block: Block[Attention], c: Tensor, G: Tensor, precise: bool) -> Widths:
    module, of, heads = _module(checkout), block.branch, block.branch.n_heads
    module.epsilon = block.norm.tau
    flags, w = Namespace(**FLAGS, zonotope_slow=precise), torch.cat([c[None], G]).float()  # it is for float32 only
    x = module.Zonotope(flags, p=math.inf, eps=1.0, perturbed_word_index=None, zonotope_w=w)
    n = x.layer_norm(_norm(block.norm), "standard")
    q, k, v = (n.dense(_linear(w, b)).add_attention_heads_dim(heads) for w, b in of.projections)
    u = q.dot_product(k).multiply(of.scale)
    p = u.softmax(no_constraints=False)
    out = p.dot_product(v.t()).remove_attention_heads_dim().dense(_linear(of.w_o, of.b_o))
    out = out.add(x.expand_error_terms_to_match_zonotope(out))
    behind = {"LayerNorm": n, "scores": u, "softmax": p, "block": out}
    return {name: _half_width(*value.concretize()) for name, value in behind.items()}


def _half_width(lower: Tensor, upper: Tensor) -> Tensor:
    return (upper - lower) / 2


def _module(checkout: Path) -> Any:
    """Verifiers.Zonotope without the rest of its package, which needs other versions of everything."""
    package = types.ModuleType("Verifiers")
    package.__path__ = [str(checkout / FOLDER / "Verifiers")]
    sys.modules.setdefault("Verifiers", package)
    sys.modules.setdefault("numpy.linalg.linalg", linalg)  # its name before numpy 2
    return importlib.import_module("Verifiers.Zonotope")


def _norm(norm: Norm) -> Namespace:
    beta = torch.zeros_like(norm.gamma) if norm.beta is None else norm.beta
    return Namespace(weight=norm.gamma.float(), bias=beta.float())


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(*weight.shape, bias=bias is not None)
    layer.weight = nn.Parameter(weight.T.float(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.float(), requires_grad=False)
    return layer
