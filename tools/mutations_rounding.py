# ruff: noqa: E501
"""Mutations of what bounds rounding, one per line: what is left out, file, old text, new text, the tests that must notice."""

from __future__ import annotations

E_MLP, E_LN = "transforms/ellipsoidal/mlp.py", "transforms/ellipsoidal/layernorm.py"
E_ATTENTION, METHOD = "transforms/ellipsoidal/attention.py", "methods/ellipsoidal.py"
ATTENTION, POINT, EXECUTION = "transforms/attention_rounding.py", "transforms/norm_point.py", "transforms/execution.py"
MLP, LN, HEAD = "transforms/mlp.py", "transforms/layernorm.py", "transforms/head.py"
CANCEL, AMPLIFIER, TIES = ("test_cancellation.py",), ("test_amplifier.py",), ("test_near_ties.py",)
EXECUTIONS, SUMS = ("test_execution.py",), ("test_rounding.py",)

ROUNDING_TERMS: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    ("gamma halved", "domains/rounding.py", "ku = k * unit(dtype)", "ku = k * unit(dtype) / 4", SUMS),
    ("underflow of squares forgotten", "domains/rounding.py", " + math.sqrt(d * torch.finfo(x.dtype).tiny)", "", SUMS),
    ("what z0 misses", POINT, "missing = gamma(d + 4, c.dtype) *", "missing = 0 *", CANCEL),
    ("LayerNorm's slack dropped", E_LN, "at.slack(z.radius) + bending + forming", "bending + forming", CANCEL),
    ("LayerNorm's slack dropped, paper", LN, "lost = at.slack(radius) +", "lost = 0 * radius +", CANCEL),
    ("hidden centre", E_MLP, "off = up(gamma(d + 2, wide) * (at_centre", "off = up(0.0 * (at_centre", CANCEL),
    ("hidden centre, paper", MLP, "off = up(gamma(d + 2, wide) * (at_centre", "off = up(0.0 * (at_centre", CANCEL),
    ("output's centre", E_MLP, "rounding = gamma(f + 3, wide) * (z.c", "rounding = 0.0 * (z.c", CANCEL),
    ("output's centre, paper", MLP, "rounding = gamma(f + 3, wide) * (z.c", "rounding = 0.0 * (z.c", CANCEL),
    ("queries, keys, values", ATTENTION, "off = gamma(d + 2, wide) * (sizes", "off = 0.0 * (sizes", CANCEL),
    ("score products", ATTENTION, " + gamma(e + 4, wide) * pairs", "", CANCEL),
    ("queries' rounding in the scores", ATTENTION, "Q_size @ K.mT + Q @ K_size.mT + ", "Q_size @ K.mT + ", CANCEL),
    ("keys' rounding in the scores", ATTENTION, "Q_size @ K.mT + Q @ K_size.mT + ", "Q @ K_size.mT + ", CANCEL),
    ("heads' own rounding", ATTENTION, "heads = (gamma(d + e + S + 16, wide) + 2 * point.doubt)", "heads = (0 * point.doubt)", CANCEL),
    ("values' rounding", ATTENTION, "heads = heads + (point.P + total) @ r.value(dtype)", "pass", CANCEL),
    ("block's centre", ATTENTION, "out = gamma(d + H + 4, c.dtype) * (c.abs()", "out = 0.0 * (c.abs()", CANCEL),
    ("tangents of a block", ATTENTION, "gamma(4 * d + e + (3 + H) * S + 24, dtype) * (radius", "0.0 * (radius", AMPLIFIER),
    ("LayerNorm's interval", LN, " + gamma(4 * d + 24, narrow) * image + of_interval", "", ("test_intervals_kept.py",)),
    ("skip's interval", "transforms/attention.py", "z.radius, narrow) + z.b", "z.radius, narrow)", ("test_intervals_kept.py",)),
    ("box left out of a Minkowski sum", "domains/ellipsoidal.py", ".add_(up(box * total[..., None], box.shape[-1]))", ".add_(0 * box)", CANCEL),
    ("rounding left out of attention's Gram", E_ATTENTION, "local, off[z.G.dtype], limit)", "local, 0 * off[z.G.dtype], limit)", CANCEL),
    ("adjoint: rounding left out of attention", E_ATTENTION, '"rounding": rounded_off(functionals, self.rounding)', '"rounding": 0 * norm', CANCEL),
    ("adjoint: rounding left out of the MLP", E_MLP, '"rounding": rounded_off(functionals, self.rounding)', '"rounding": 0 * norm', CANCEL),
    ("adjoint: LayerNorm's rounding", E_LN, "error = error + (lost * self.size[..., None] + rounded)", "error = error + lost * self.size[..., None]", CANCEL),
    ("head's rounding", METHOD, "gamma(2 * (d + S) + model.n_outputs + 16, wide) * magnitude", "0 * magnitude", TIES),
    ("head's rounding, paper", HEAD, "rounding = rounding + gamma(units, dtype) * claim.magnitude(outputs)", "pass", TIES),
    ("margin's last subtraction", METHOD, " - up(gamma(2, value.dtype) * (value.abs() + loss))", " + 1e-15", TIES),
    ("executions: score errors", EXECUTION, "torch.expm1(2 * worst + rounds", "torch.expm1(rounds", EXECUTIONS),
    ("executions: LayerNorm's mean", EXECUTION, "off = rounds(d + 3 * d.bit_length() + 12) * size.mean(-1, keepdim=True) +", "off =", EXECUTIONS),
    ("executions: products", EXECUTION, "return up(errors + rounds(k + 2) * (sizes + bias.abs()), k)", "return up(errors, k)", EXECUTIONS),
    ("executions: GELU", EXECUTION, "STEEPEST * off + rounds", "0.1 * off + rounds", EXECUTIONS),
    ("executions: outputs", METHOD, "rounding = up(rounding + moved.to(wide), model.n_outputs)", "pass", EXECUTIONS),
    ("executions: the block forgotten", E_MLP, "rounding = rounding + mlp_error(", "rounding = rounding + 0 * mlp_error(", EXECUTIONS),
    ("executions: tokens that stand still", E_ATTENTION, "off = torch.cat([still.executed, executed], dim=1)", "off = torch.cat([0 * still.executed, executed], dim=1)", EXECUTIONS),
    ("TF32 not looked for", "verify.py", "            require_full_precision(device)\n", "", SUMS),
]  # fmt: skip
