# ruff: noqa: E501
"""Mutations of the certificate checker: what it forgets, file, old text, new text, the tests that must notice."""

from __future__ import annotations

NORM, SOFTMAX, ATTENTION, MLP, CHECK = (
    f"../zonogpt_check/{name}.py" for name in ("norm", "softmax", "attention", "mlp", "check")
)
SETS, CERTIFICATE = "../zonogpt_check/sets.py", "../zonogpt_check/certificate.py"
TERMS, CHOICES = ("test_certificate_terms.py",), ("test_certificate_choices.py",)

CHECKER: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    ('LayerNorm: A forgotten', NORM, 'largest(A + shift, B - shift)', 'largest(B - shift)', TERMS),
    ('LayerNorm: B forgotten', NORM, 'largest(A + shift, B - shift)', 'largest(A + shift)', TERMS),
    ('LayerNorm: |e| without B', NORM, 'lines.at_least("largest", largest(A, B))', 'lines.at_least("largest", largest(A))', TERMS),
    ('LayerNorm: ellipsoid not met by z0', NORM, ' + support(Q, z0[:, None])[:, 0] + size', ' + size', TERMS),
    ('LayerNorm: symbols not met by z0', NORM, 'met = dual((tangents * z0[:, None]).sum(-1), z.p, -1) + support', 'met = support', TERMS),
    ('LayerNorm: |D| without symbols', NORM, 'sum_of([covered, Q, box_gram(miss)], lines', 'sum_of([0 * covered, Q, box_gram(miss)], lines', TERMS),
    ('LayerNorm: |D| without ellipsoid', NORM, 'sum_of([covered, Q, box_gram(miss)], lines', 'sum_of([covered, 0 * Q, box_gram(miss)], lines', TERMS),
    ('LayerNorm: delta of falling a only', NORM, 'rho * largest(x / (s * (1 + s)), y / (t * (1 + t)))', 'rho * largest(y / (t * (1 + t)))', TERMS),
    ('LayerNorm: Gram without the line', NORM, 'sum_of([first * outer, copy * outer, box_gram(self.off)], lines', 'sum_of([0 * first, copy * outer, box_gram(self.off)], lines', TERMS),
    ('LayerNorm: Gram without the copy', NORM, 'sum_of([first * outer, copy * outer, box_gram(self.off)], lines', 'sum_of([first * outer, 0 * copy, box_gram(self.off)], lines', TERMS),
    ('LayerNorm, adjoint: line forgotten', NORM, 'error = abs(along) * self.half + product', 'error = product', TERMS),
    ('LayerNorm, adjoint: product forgotten', NORM, 'error = abs(along) * self.half + product', 'error = abs(along) * self.half', TERMS),
    ('LayerNorm, adjoint: bend forgotten', NORM, ' + (raw * self.bend).sum(-1) + lost', ' + lost', TERMS),
    ('LayerNorm, adjoint: extents without ellipsoid', NORM, '(dual(form @ G.T, z.p, -1) + support(Q, form))', 'dual(form @ G.T, z.p, -1)', TERMS),
    ('softmax: mean of products', SOFTMAX, 'rest = Ball.choose(visible, R_U + mean, none)', 'rest = Ball.choose(visible, R_U, none)', TERMS),
    ('softmax: error without zeta', SOFTMAX, 'error = P * (half + half_zeta * (1 + chord) * W)', 'error = P * half', TERMS),
    ("softmax: error without the chord's", SOFTMAX, 'error = P * (half + half_zeta * (1 + chord) * W)', 'error = P * (half_zeta * (1 + chord) * W)', TERMS),
    ('softmax: scores without the mean', SOFTMAX, 'abs(slope) * R_U + abs(slope - 1) * mean', 'abs(slope) * R_U', TERMS),
    ('softmax: phi forgotten', SOFTMAX, 'weight = (log_P + log_phi(W)).exp()', 'weight = log_P.exp()', TERMS),
    ("attention: own scores' error", SOFTMAX, 'return own_gram.diagonal().sqrt() + others, ', 'return others, ', TERMS),
    ("attention: other scores' errors", SOFTMAX, 'return own_gram.diagonal().sqrt() + others, ', 'return own_gram.diagonal().sqrt(), ', TERMS),
    ("attention: key's ellipsoid in products", ATTENTION, 'dual(t, z.p, -2) + g.diagonal().sqrt() + off', 'dual(t, z.p, -2) + off', TERMS),
    ("attention: softmax's error not in Q", ATTENTION, 'local = sum_of([s.cover(values), self.product_gram], lines', 'local = sum_of([0 * self.product_gram, self.product_gram], lines', TERMS),
    ('attention: products not in Q', ATTENTION, 'local = sum_of([s.cover(values), self.product_gram], lines', 'local = sum_of([s.cover(values), 0 * self.product_gram], lines', TERMS),
    ('attention: other tokens not in Q', ATTENTION, '                inner = inner + image(merged[token], maps[token]) / t_crossed[i, token]\n', '                pass\n', TERMS),
    ('attention: old error not in Q', ATTENTION, 'image(inner, Ball(block.outer)) + image(Ball(z.Q[i]), norm.J[i] @ mine + np.eye(d)) / t_own[0, i]', 'image(inner, Ball(block.outer))', TERMS),
    ("attention: LayerNorm's error not in Q", ATTENTION, 'out = out + image(norm.gram[i], mine) / t_own[1, i] + box_gram', 'out = out + box_gram', TERMS),
    ('attention, adjoint: common forgotten', ATTENTION, ' + abs((s.common * along).sum(-1))', '', TERMS),
    ('MLP: symbols not in the radius', MLP, 'moved + support(merged, Ball(block.inner.T))', 'support(merged, Ball(block.inner.T))', TERMS),
    ('MLP: errors not in the radius', MLP, 'moved + support(merged, Ball(block.inner.T))', 'moved', TERMS),
    ('MLP: GELU not in Q', MLP, 'image(norm.gram[s], chain), fresh, box_gram(box)]', 'image(norm.gram[s], chain), 0 * fresh, box_gram(box)]', TERMS),
    ("MLP: LayerNorm's error not in Q", MLP, "image(norm.gram[s], chain), fresh, box_gram(box)]", "0 * fresh, fresh, box_gram(box)]", TERMS),
    ('MLP: old error not in Q', MLP, 'parts = [image(Ball(z.Q[s]), whole), image', 'parts = [0 * fresh, image', TERMS),
    ('GELU: curvature forgotten', MLP, ' - np.maximum(bend_high.upper(), 0) * w2', '', TERMS),
    ('input: symbols forgotten', CHECK, 'return [moved, over(w, box), *found]', 'return [0 * moved, over(w, box), *found]', TERMS),
    ('softmax: no zeta needs a proof', SOFTMAX, 'Ball.choose(claim == 1, ', 'Ball.choose(claim <= 1, ', TERMS),
    ('choices: a hull for rows with a slope', SOFTMAX, 'Ball.choose((self.hull & ~self.sloped)', 'Ball.choose((self.hull)', CHOICES),
    ('choices: a slope that LayerNorm does not have', NORM, 'flat = self.flat[rows] | ~self.sloped', 'flat = self.flat[rows] & True', CHOICES),
    ('choices: negative weights', CERTIFICATE, 'self.require(name, array > 0, ', 'self.require(name, array != 0, ', CHOICES),
    ('choices: a ball that is too small', SETS, '.square()[..., None, None] * np.eye(T.shape[-1])  # the hull', '.square()[..., None, None] / 2 * np.eye(T.shape[-1])  # the hull', CHOICES),
    ('choices: weights of sums left out', SETS, 'return Ball(t).sum(0)[..., None, None] * sum(terms', 'return 1.0 * sum(terms', CHOICES),
]  # fmt: skip
