# ruff: noqa: E501
"""Mutations of the baselines and the searches, one per line: what it does, file, old text, new text, the tests that must notice."""

from __future__ import annotations

FUNCTIONS, INTERVAL, SOFTMAX = "transforms/functions.py", "domains/interval.py", "transforms/softmax.py"
NETWORK, INTERVALS = "methods/operators/network.py", "methods/operators/intervals.py"
ZONOTOPES, GRAPH, BASELINES = "methods/operators/zonotopes.py", "methods/operators/graph.py", "methods/baselines.py"
FALSIFY, ATTACK, PROJECTION = "search/falsify.py", "search/attack.py", "search/projection.py"
VERIFY, RADIUS, RADII, COMPARE = "verify.py", "radius.py", "radii/search.py", "compare.py"
SCALAR, OPERATORS, FALSE, RADIUS_TESTS = (
    ("test_functions.py",),
    ("test_operators.py",),
    ("test_falsify.py",),
    ("test_radius.py",),
)

OTHERS: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    ("strip's bend taken in the middle", FUNCTIONS, "self._residual(self.where(slope).clamp(box.lower, box.upper), slope)", "self._residual((box.lower + box.upper) / 2, slope)", SCALAR),
    ("strip halved", FUNCTIONS, "(far - bend).abs() / 2 + self._slack(box, slope)", "(far - bend).abs() / 4 + self._slack(box, slope)", SCALAR),
    ("strip without slack", FUNCTIONS, "(far - bend).abs() / 2 + self._slack(box, slope)", "(far - bend).abs() / 2", SCALAR),
    ("chord without slack", FUNCTIONS, "slope, torch.maximum(*ends) + slack)", "slope, torch.maximum(*ends))", SCALAR),
    ("tangent without slack", FUNCTIONS, "return Lines(tangent, offset - other_slack, slope", "return Lines(tangent, offset, slope", SCALAR),
    ("concave tangent without slack", FUNCTIONS, "tangent, offset + other_slack)", "tangent, offset)", SCALAR),
    ("square's strip halved", FUNCTIONS, "(box.upper - box.lower).square() / 8", "(box.upper - box.lower).square() / 16", SCALAR),
    ("square's range through zero", FUNCTIONS, "masked_fill(inside, 0.0), torch.maximum(*ends)", "masked_fill(inside & False, 0.0), torch.maximum(*ends)", SCALAR),
    ("square's tangent lifted", FUNCTIONS, "-(slope / 2).square() - slack", "-(slope / 2.1).square() - slack", SCALAR),
    ("GELU taken for convex", FUNCTIONS, "convex, concave = bend_low >= 0, bend_high <= 0", "convex, concave = bend_low >= -0.5, bend_high <= 0", SCALAR),
    ("GELU taken for concave", FUNCTIONS, "convex, concave = bend_low >= 0, bend_high <= 0", "convex, concave = bend_low >= 0, bend_high <= 0.5", SCALAR),
    ("GELU's minimum forgotten", FUNCTIONS, "torch.where(turns, low.clamp(max=LOWEST), low)", "low", SCALAR),
    ("GELU's tangent without slack", FUNCTIONS, "touching - 2 * slack", "touching", SCALAR),
    ("shift's rounding forgotten in the strip", FUNCTIONS, "half = s.half + self._slack(box)", "half = s.half", SCALAR),
    ("masked keys not masked", FUNCTIONS, "return t.masked_fill(~self.visible, 0.0)", "return t", OPERATORS),
    ("overflowed lines kept", FUNCTIONS, "torch.where(low, self.b_low, values.lower)", "self.b_low", SCALAR),
    ("interval product without one corner", INTERVAL, "for end in ends[1:]:", "for end in ends[1:3]:", OPERATORS),
    ("interval's dense map without signs", INTERVAL, "lower, upper = rising[0] + falling[1], rising[1] + falling[0]", "lower, upper = rising[0] + falling[0], rising[1] + falling[1]", OPERATORS),
    ("open ends forgotten in dense maps", INTERVAL, "lower = lower.masked_fill(up_opened[0] + down_opened[1] > 0, -math.inf)", "pass", OPERATORS),
    ("softmax range against the own ends", SOFTMAX, "torch.sigmoid(low - _others(high))", "torch.sigmoid(low - _others(low))", OPERATORS),
    ("overflowed lower ends believed", INTERVAL, "self.lower.nan_to_num(-math.inf, -math.inf, -math.inf)", "self.lower", OPERATORS),
    ("arguments below zero believed", FUNCTIONS, "Interval.known(box.lower.clamp(min=0), box.upper) if self.positive else box", "box", OPERATORS),
    ("tau forgotten", NETWORK, "like.new_full((1,), norm.tau)", "like.new_full((1,), 0.0)", OPERATORS),
    ("scale of the scores forgotten", NETWORK, "w_q * block.scale, b_q * block.scale", "w_q, b_q", OPERATORS),
    ("beta forgotten", NETWORK, "norm.beta @ weight + bias", "bias", OPERATORS),
    ("product of changes dropped in zonotopes", ZONOTOPES, "error = _farthest(x) @ _farthest(y)", "error = 0 * (_farthest(x) @ _farthest(y))", OPERATORS),
    ("product of changes halved in zonotopes", ZONOTOPES, "error = _farthest(x) @ _farthest(y)", "error = 0.5 * (_farthest(x) @ _farthest(y))", OPERATORS),
    ("one factor's change dropped in zonotopes", ZONOTOPES, "out[: len(y.G)] += x.c @ y.G", "out[: len(y.G)] += 0 * (x.c @ y.G)", OPERATORS),
    ("changes measured from the box's middle", ZONOTOPES, "return torch.maximum(x.box.upper - x.c, x.c - x.box.lower)", "return x.box.radius", OPERATORS),
    ("crossed ends left crossed", INTERVAL, "return Interval(torch.minimum(low, high), torch.maximum(low, high))", "return Interval(low, high)", OPERATORS),
    ("zonotope symbols shared by chance", ZONOTOPES, "self.n_symbols = len(G)\n", "pass\n", OPERATORS),
    ("function's error dropped in zonotopes", ZONOTOPES, "linear, strip.half, f.range(x.box))", "linear, 0 * strip.half, f.range(x.box))", OPERATORS),
    ("flat entries keep their slope", ZONOTOPES, "G.masked_fill_(~sloped, 0.0)", "pass", OPERATORS),
    ("flat entries keep their centre", ZONOTOPES, "torch.where(sloped, c, known.centre), torch", "c, torch", OPERATORS),
    ("input's noise taken for a box or a ball", ZONOTOPES, "dual_norm(G[: self.n_inputs], self.p, 0)", "dual_norm(G[: self.n_inputs], 2.0, 0)", OPERATORS),
    ("errors taken for a ball", ZONOTOPES, "abs_sum(G[self.n_inputs :], 0)", "G[self.n_inputs :].norm(dim=0)", OPERATORS),
    ("crown: product's error dropped below", GRAPH, "low = torch.where(sloped, -x_c @ y_c - error, box.lower)", "low = torch.where(sloped, -x_c @ y_c, box.lower)", OPERATORS),
    ("crown: product's error dropped above", GRAPH, "high = torch.where(sloped, -x_c @ y_c + error, box.upper)", "high = torch.where(sloped, -x_c @ y_c, box.upper)", OPERATORS),
    ("crown: lines swapped", GRAPH, "torch.where(A > 0, lines.a_low, lines.a_high)", "torch.where(A > 0, lines.a_high, lines.a_low)", OPERATORS),
    ("crown: offsets swapped", GRAPH, "A * torch.where(A > 0, low, high)", "A * torch.where(A > 0, high, low)", OPERATORS),
    ("crown: flat entries keep their slope", GRAPH, "kept = A.masked_fill(~sloped, 0.0)", "kept = A", OPERATORS),
    ("crown: skip forgotten", GRAPH, "part if held is None else held + part", "part", OPERATORS),
    ("crown: bias forgotten", GRAPH, "A.new_zeros(len(A)) if bias is None else (A * bias).flatten(1).sum(1)", "A.new_zeros(len(A))", OPERATORS),
    ("crown: one factor not passed on", GRAPH, "return [kept @ y_c.mT, x_c.mT @ kept], _least", "return [kept @ y_c.mT, 0 * (x_c.mT @ kept)], _least", OPERATORS),
    ("input's dual norm forgotten", BASELINES, "flatten(1).sum(1) - dual_norm(moved, self.p, 1)", "flatten(1).sum(1) - 0 * dual_norm(moved, self.p, 1)", OPERATORS),
    ("covenn's boxes shrunk", BASELINES, "Start(box.centre, torch.diag_embed(box.radius), torch.inf)", "Start(box.centre, torch.diag_embed(box.radius) / 2, torch.inf)", ("test_methods.py",)),
    ("memory not looked at", VERIFY, "if need > free:", "if need > free * 1e9:", OPERATORS),
    ("counterexample not replayed in float32", FALSIFY, "for dtype in (torch.float32, torch.float64)}\n    margin", "for dtype in (torch.float64, torch.float64)}\n    margin", FALSE),
    ("one replay is enough", FALSIFY, "if not all(value <= 0", "if not any(value <= 0", FALSE),
    ("rounding may leave the ball", FALSIFY, "return torch.where(between, near, raw)", "return raw.float().double()", FALSE),
    ("break undone by rounding forgotten", FALSIFY, "lowest=min(finding.lowest, found.lowest)", "lowest=finding.lowest", FALSE),
    ("unreplayed break allows a proof", VERIFY, "if status == \"verified\" and found.lowest <= 0:", "if False:", FALSE),
    ("no probes of single coordinates", ATTACK, "has_corners = spec.input.norm != math.inf and spec.radius > 0", "has_corners = False", FALSE),
    ("deadline ignored", ATTACK, "            if time.perf_counter() > deadline:\n                return", "            if False:\n                return", FALSE),
    ("contradiction accepted", RADIUS, "if attacked <= certified:", "if attacked < 0:", RADIUS_TESTS),
    ("timeout taken for a proof", RADII, "elif result.status == \"verified\":", "elif result.status != \"unknown\":", RADIUS_TESTS),
    ("timeout not noticed", RADII, "if result.status == \"timeout\":\n            stopped = \"timeout\"\n        elif", "if", RADIUS_TESTS),
    ("counterexample's own distance ignored", RADII, "bad = min(at, bisect.bisect_left(ladder.steps, distance(spec, best)))", "bad = at", RADIUS_TESTS),
    ("rows not stored", COMPARE, "            store.append(row)\n", "            pass\n", RADIUS_TESTS),
]  # fmt: skip
