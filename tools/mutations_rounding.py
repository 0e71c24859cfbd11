# ruff: noqa: E501
"""Mutations of what bounds rounding, one per line: what is left out, file, old text, new text, the tests that must notice."""

from __future__ import annotations

E_MLP, E_LN = "transforms/ellipsoidal/mlp.py", "transforms/ellipsoidal/layernorm.py"
E_ATTENTION, TAPE, START = "transforms/ellipsoidal/attention.py", "methods/tape.py", "methods/start.py"
POINT, EXECUTION = "transforms/norm_point.py", "transforms/execution.py"
MLP, LN, HEAD = "transforms/mlp.py", "transforms/layernorm.py", "transforms/head.py"
CANCEL = ("test_cancellation.py",)
CERTIFICATE, CHOICES = "certificate.py", ("test_certificate_choices.py",)
EXECUTIONS, SUMS, STAIRS = ("test_execution.py",), ("test_rounding.py",), ("test_staircases.py",)

ROUNDING_TERMS: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    ("gamma halved", "domains/rounding.py", "ku = k * unit(dtype)", "ku = k * unit(dtype) / 4", SUMS),
    ("underflow of squares forgotten", "domains/rounding.py", " + math.sqrt(d * torch.finfo(x.dtype).tiny)", "", SUMS),
    ("what z0 misses", POINT, "missing = gamma(d + 4, c.dtype) *", "missing = 0 *", CANCEL),
    ("LayerNorm's slack dropped", E_LN, "at.slack(z.radius) + bending + forming", "bending + forming", CANCEL),
    ("hidden centre", E_MLP, "off = up(gamma(d + 2, wide) * (at_centre", "off = up(0.0 * (at_centre", STAIRS),
    ("hidden centre, paper", MLP, "off = up(gamma(d + 2, wide) * (at_centre", "off = up(0.0 * (at_centre", STAIRS),
    ("output's centre", E_MLP, "rounding = gamma(f + 3, wide) * (z.c", "rounding = 0.0 * (z.c", STAIRS),
    ("output's centre, paper", MLP, "rounding = gamma(f + 3, wide) * (z.c", "rounding = 0.0 * (z.c", STAIRS),
    ("adjoint: rounding left out of the MLP", E_MLP, '"rounding": rounded_off(functionals, self.rounding)', '"rounding": 0 * norm', STAIRS),
    ("head's rounding", TAPE, "gamma(2 * (d + S) + model.n_outputs + 16, wide) * magnitude", "0 * magnitude", STAIRS),
    ("head's rounding, paper", HEAD, "rounding = rounding + gamma(units, dtype) * claim.magnitude(outputs)", "pass", STAIRS),
    ("embedding", START, "symbols.tokens[-here:], symbols.rounding[-here:]", "symbols.tokens[-here:], 0 * symbols.rounding[-here:]", STAIRS),
    ("LayerNorm's interval", LN, " + gamma(4 * d + 24, narrow) * image + of_interval", "", ("test_intervals_kept.py",)),
    ("rounding left out of attention's Gram", E_ATTENTION, "local, off[z.G.dtype], limit, bent)", "local, 0 * off[z.G.dtype], limit, bent)", CANCEL),
    ("adjoint: rounding left out of attention", E_ATTENTION, '"rounding": rounded_off(functionals, self.rounding)', '"rounding": 0 * norm', CANCEL),
    ("executions: score errors", EXECUTION, "torch.expm1(2 * worst + rounds", "torch.expm1(rounds", EXECUTIONS),
    ("executions: LayerNorm's mean", EXECUTION, "off = rounds(d + 3 * d.bit_length() + 12) * size.mean(-1, keepdim=True) +", "off =", EXECUTIONS),
    ("executions: the block forgotten", E_MLP, "rounding = rounding + mlp_error(", "rounding = rounding + 0 * mlp_error(", EXECUTIONS),
    ("TF32 not looked for", "verify.py", "            require_full_precision(device)\n", "", SUMS),
    ("certificates: no room for values", E_ATTENTION, "point.P, values, choices, spare.values)", "point.P, values, choices)", CHOICES),
    ("certificates: no room for other tokens' images", E_ATTENTION, "off[z.G.dtype], limit, bent)", "off[z.G.dtype], limit)", CHOICES),
    ("certificates: no room for tangents of scores", E_ATTENTION, "linear = linear + spare.score_tangents", "pass", CHOICES),
    ("certificates: no room for underflow", "domains/rounding.py", "return LEAST_ROOM if room() else", "return 1 * torch.finfo(dtype).tiny if room() else", CHOICES),
    ("certificates: no room for negative losses", CERTIFICATE, "loss + times * room() * loss.abs()", "loss * (1 + times * room())", CHOICES),
    ("certificates: no room for losses by rounding", CERTIFICATE, " + rounded / (16 * len(losses))", "", CHOICES),
    ("certificates: rejected ones are written", CERTIFICATE, "            _accept(draft, model)", "            pass", CHOICES),
    ("certificates: no room for covers of symbols", "domains/symbols.py", "up(4 * lost * (size + lost), 4)", "0 * lost", CHOICES),
]  # fmt: skip
