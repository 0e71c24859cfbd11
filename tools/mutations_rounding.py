# ruff: noqa: E501
"""Mutations of what bounds rounding, one per line: what is left out, file, old text, new text, the tests that must notice."""

from __future__ import annotations

E_MLP, E_LN = "transforms/ellipsoidal/mlp.py", "transforms/ellipsoidal/layernorm.py"
E_ATTENTION, TAPE, START = "transforms/ellipsoidal/attention.py", "methods/tape.py", "methods/start.py"
POINT, EXECUTION = "transforms/norm_point.py", "transforms/execution.py"
MLP, LN, HEAD = "transforms/mlp.py", "transforms/layernorm.py", "transforms/head.py"
CANCEL = ("test_cancellation.py",)
CERTIFICATE, CHOICES = "verification/certificate.py", ("test_certificate_choices.py",)
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
    ("head's rounding", TAPE, "gamma(2 * (d + summands) + model.n_outputs + 16, wide) * magnitude", "0 * magnitude", STAIRS),
    ("head's rounding, paper", HEAD, "rounding = rounding + gamma(units, dtype) * claim.magnitude(outputs)", "pass", STAIRS),
    ("embedding", START, "symbols.tokens[-here:], symbols.rounding[-here:]", "symbols.tokens[-here:], 0 * symbols.rounding[-here:]", STAIRS),
    ("LayerNorm's interval", LN, " + gamma(4 * d + 24, narrow) * image + of_interval", "", ("test_intervals_kept.py",)),
    ("rounding left out of attention's Gram", E_ATTENTION, "local, off[z.G.dtype], limit, bent)", "local, 0 * off[z.G.dtype], limit, bent)", CANCEL),
    ("adjoint: rounding left out of attention", E_ATTENTION, '"rounding": rounded_off(functionals, self.rounding)', '"rounding": 0 * norm', CANCEL),
    ("executions: score errors", EXECUTION, "torch.expm1(2 * worst + gammas", "torch.expm1(gammas", EXECUTIONS),
    ("executions: underflow of the mean", EXECUTION, 'off + lost(8 * (d + 4))', 'off', EXECUTIONS),
    ("executions: underflow of squares", EXECUTION, 'part + lost(4 * size.amax(-1) + 32) * rho.square()', 'part', EXECUTIONS),
    ("executions: underflow of LayerNorm's output", EXECUTION, ' + lost(gamma_size + normalised + error + 8)', '', EXECUTIONS),
    ("executions: underflow of dense maps", EXECUTION, ' + lost_in_dense(size + error, weight)\n', '\n', EXECUTIONS),
    ("executions: underflow of probabilities", EXECUTION, 'dP + lost(4 * keys + 8) * (P > 0)', 'dP', EXECUTIONS),
    ("executions: underflow of heads", EXECUTION, 'dO + lost(4 * keys + 8)', 'dO', EXECUTIONS),
    ("executions: underflow behind W_o", EXECUTION, 'error + lost_in_dense(block.join_heads(heads + dO), block.w_o)', 'error', EXECUTIONS),
    ("executions: underflow behind W_2", EXECUTION, ' + lost_in_dense(hidden + gelu, block.w_2)', '', EXECUTIONS),
    ("executions: underflow behind the head's weights", EXECUTION, ' + lost_in_dense(size + off, head.weight)', '', EXECUTIONS),
    ("executions: underflow of embeddings", EXECUTION, ' + lost(box.embed.factors(most) + 8 * (terms + 2))', '', EXECUTIONS),
    ("executions: operands flushed beside large factors", EXECUTION, 'x.sum(-1, keepdim=True) + 8', '8', EXECUTIONS),
    ("executions: weights' operands flushed", EXECUTION, '8 * weight.abs().sum(0) + ', '', EXECUTIONS),
    ("executions: sums of features that overflow", EXECUTION, 'size.sum(-1, keepdim=True))\n    gamma', 'size)\n    gamma', EXECUTIONS),
    ("executions: sums of tokens that overflow", EXECUTION, 'outputs, (S * (size + off)).amax(-1, keepdim=True))', 'outputs)', EXECUTIONS),
    ("executions: LayerNorm's output overflows", EXECUTION, 'normalised + error + 8), d), output)', 'normalised + error + 8), d))', EXECUTIONS),
    ("executions: LayerNorm's mean", EXECUTION, "off = rounds(d + 3 * d.bit_length() + 12) * size.mean(-1, keepdim=True) +", "off =", EXECUTIONS),
    ("executions: the block forgotten", E_MLP, "rounding = rounding + mlp_error(", "rounding = rounding + 0 * mlp_error(", EXECUTIONS),
    ("weights that float32 rounds are executed", "verification/options.py", "if not torch.equal(tensor, tensor.float().to(tensor.dtype)):", "if False:", EXECUTIONS),
    ("epsilons that float32 cannot hold", "verification/options.py", "if not least <= norm.tau <= most:", "if False:", EXECUTIONS),
    ("TF32 not looked for", "verification/precision.py", "        require_full_precision(device)\n", "", ("test_precision.py",)),
    ("products emulated by integers not looked for", "verification/precision.py", "(1 + eps) * ones * scale, torch.diag(1 / scale)", "(1 + eps) * ones, torch.eye(64, dtype=dtype, device=device)", ("test_precision.py",)),
    ("the newer setting of TF32 left alone", "verification/precision.py", "place.fp32_precision = \"ieee\"", "pass", ("test_precision.py",)),
    ("certificates: no room for values", E_ATTENTION, "point.log_P, values, choices, spare.values)", "point.log_P, values, choices)", CHOICES),
    ("certificates: no room for other tokens' images", E_ATTENTION, "off[z.G.dtype], limit, bent)", "off[z.G.dtype], limit)", CHOICES),
    ("certificates: no room for tangents of scores", E_ATTENTION, "linear = linear + spare.score_tangents", "pass", CHOICES),
    ("certificates: no room for underflow", "domains/rounding.py", "return LEAST_ROOM if room() else", "return 1 * torch.finfo(dtype).tiny if room() else", CHOICES),
    ("certificates: no room for negative losses", CERTIFICATE, "loss + times * room() * loss.abs()", "loss * (1 + times * room())", CHOICES),
    ("certificates: no room for losses by rounding", CERTIFICATE, " + rounded / (16 * len(losses))", "", CHOICES),
    ("certificates: rejected ones are written", CERTIFICATE, "            _accept(draft, model)", "            pass", CHOICES),
    ("certificates: no room for covers of symbols", "domains/symbols.py", "up(4 * lost * (size + lost), 4)", "0 * lost", CHOICES),
]  # fmt: skip
