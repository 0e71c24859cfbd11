"""Every Gram is formed outward: what rounding takes away in directions where parts cancel is put back.

The amplifier: the same steps in float32, where rounding is large, with the slack that float64 has. Each Gram must
dominate (as a quadratic form, in every direction) the one that float64 makes of the same numbers.
"""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from builders import changed, generator, layer_norm, randn
from test_ellipsoidal_steps import LIMIT, attention_case, attention_step, exact_prefix, with_errors
from zonogpt.domains import ellipsoidal as domain
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, lambda_max, rounded_out, sandwich, support, symmetrised
from zonogpt.domains.rounding import with_room
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.nodes import dense
from zonogpt.support.tensors import map_tensors
from zonogpt.transforms.ellipsoidal.attention_errors import (
    ScoreImages,
    _crossed,
    asked_errors,
    error_images,
    error_scores,
)
from zonogpt.transforms.ellipsoidal.attention_point import branch_point
from zonogpt.transforms.ellipsoidal.layernorm import centred_gram
from zonogpt.transforms.ellipsoidal.layernorm_rounding import centring_rounding
from zonogpt.transforms.ellipsoidal.sources import by_head, sources
from zonogpt.transforms.norm_point import norm_point
from zonogpt.transforms.queries import Queries

NORM = layer_norm(generator(0), 7)  # whose mean is taken off; its weights do not matter


def exact(matrix):
    return np.vectorize(Fraction, otypes=[object])(matrix.double().numpy())


def square(Q, w):
    return ((w @ Q) * w).sum(-1)


def lowest_eigenvalue(difference):
    """The lowest eigenvalue of a symmetric matrix, in units of its largest entry."""
    difference = (difference + difference.mT) / 2
    return float((torch.linalg.eigvalsh(difference)[..., 0] / difference.abs().amax((-1, -2)).clamp(min=1e-300)).min())


def image_that_cancels(g, d):
    """A factor (d, 1) and a map (d, d) that sends it to zero but for rounding."""
    F, A = randn(g, d, 1), randn(g, d, d)
    return F, A - F @ (F.mT @ A) / F.square().sum()


@pytest.mark.parametrize("seed", range(8))
def test_images_contain_the_exact_ones(seed):
    """In float64 against fractions: a Gram of rank one, whose image is nothing but rounding in two directions."""
    g = generator(seed)
    F = torch.randint(-1000, 1000, (3, 1), generator=g).double()
    Q, A = F @ F.mT, randn(g, 3, 3)
    truth = exact(A).T @ exact(Q) @ exact(A)
    difference = torch.tensor((exact(sandwich(Q, A)) - truth).astype(float))
    assert lowest_eigenvalue(difference) > 0


@pytest.mark.parametrize("seed", range(8))
def test_centred_grams_contain_the_exact_ones(seed):
    """Nearly all of the deviation is its mean, which LayerNorm takes away: what is left is as small as rounding."""
    g = generator(seed)
    F = 100_000 + torch.randint(0, 2, (7, 1), generator=g).double()
    Q = F @ F.mT
    centre = [[Fraction(int(i == j)) - Fraction(1, 7) for j in range(7)] for i in range(7)]
    truth = np.array(centre) @ exact(Q) @ np.array(centre)
    difference = torch.tensor((exact(centred_gram(NORM, Q[None, None])[0, 0]) - truth).astype(float))
    assert lowest_eigenvalue(difference) > 0


@pytest.mark.parametrize("seed", range(6))
def test_centred_images_contain_the_exact_ones(seed):
    """The antisymmetric part of an image that is all rounding is as large as the rest; means of rows would see it."""
    g = generator(seed)
    F, A = image_that_cancels(g, 7)
    Q = symmetrised(F @ F.mT)
    centre = np.array([[Fraction(int(i == j)) - Fraction(1, 7) for j in range(7)] for i in range(7)])
    truth = centre @ exact(A).T @ exact(Q) @ exact(A) @ centre
    image = rounded_out(sandwich(Q[None, None], A))
    assert torch.equal(image, image.mT)
    difference = torch.tensor((exact(centred_gram(NORM, image)[0, 0]) - truth).astype(float))
    assert lowest_eigenvalue(difference) > 0


@pytest.mark.parametrize("mirrored", [2, 512])
@pytest.mark.parametrize("seed", range(4))
def test_images_of_images_contain_the_exact_ones(seed, mirrored, monkeypatch):
    monkeypatch.setattr(domain, "MIRRORED", mirrored)
    g = generator(seed)
    F, A = image_that_cancels(g, 16)
    Q = symmetrised(F @ F.mT)
    B = randn(g, 16, 2) @ torch.randint(-2, 3, (2, 16), generator=g).double()
    truth = exact(B).T @ (exact(A).T @ exact(Q) @ exact(A)) @ exact(B)
    difference = exact(sandwich(sandwich(Q, A), B)) - truth
    difference = (difference + difference.T) / 2
    # Nearly all of it is zero: only exact arithmetic can tell the sign.
    worst = np.linalg.eigh(difference.astype(float))[1][:, 0]
    worst = np.vectorize(Fraction, otypes=[object])(worst)
    assert worst @ difference @ worst > 0


@pytest.mark.parametrize("mirrored", [2, 512])
def test_grams_are_symmetric_where_parts_cancel(mirrored, monkeypatch):
    monkeypatch.setattr(domain, "MIRRORED", mirrored)
    block, before, z, source, pt = attention_case(3, (0.3, 0.2), S=5, d=8)
    asked, values, norm = asked_errors(pt, source), pt.values(), source.norm
    key = error_scores(asked).key
    inner, _ = _crossed(asked, ScoreImages(values, key), torch.ones(2).double(), slice(None))
    g = generator(1)
    F, A = image_that_cancels(g, 9)
    sums = SymbolSums(math.inf)
    sums.add(randn(g, 1, 40, 9))
    sums.add(randn(g, 1, 30, 9))
    centred = centred_gram(NORM, (sums.cover + 1e5)[None])
    out, _ = attention_step(block, z, before)
    for gram in (
        norm.jacobian_gram(z.Q), norm.error_gram, source.merged, source.VV, asked.QQ, source.KK_heads, inner,
        sums.cover, centred, sandwich(F @ F.mT, A), domain.box_cover(A, A[:, 0].abs()), out.Q,
    ):  # fmt: skip
        assert torch.equal(gram, gram.mT)


def test_slack_grows_with_the_number_of_terms():
    Q = torch.eye(3).double()
    for terms in (1, 50, 100_000):
        added = float(rounded_out(Q.clone(), terms)[0, 0]) - 1
        assert added >= 0.99 * terms * 2.0**-53 * 3
    many = SymbolSums(math.inf)
    for _ in range(2):
        many.add(torch.ones(1, 5000, 1).double())
    assert float(many.cover) - 1e8 >= 0.99 * 10_000 * 2.0**-53 * 1e8


@pytest.mark.parametrize("seed", range(20))
def test_support_is_never_rounded_below(seed):
    """Across a Gram of rank one the products cancel and little more than rounding is left."""
    g = generator(seed)
    F = torch.randint(-1000, 1000, (3, 1), generator=g).double()
    w = randn(g, 1, 3)
    w = w - (w @ F) / F.square().sum() * F.mT
    truth = (exact(w) @ exact(F))[0, 0] ** 2
    assert Fraction(float(support(F @ F.mT, w))) ** 2 >= truth
    assert float(support(F @ F.mT, w)) <= 1e-6 * float(F.norm() * w.norm())


@pytest.mark.parametrize("p", [math.inf, 2.0, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_covers_of_symbols_contain_the_exact_ones(seed, p):
    """Tangents along one line: the exact cover has rank one."""
    g = generator(seed)
    T = torch.randint(-9, 9, (4, 1), generator=g).double() @ randn(g, 1, 3)
    T[0] = 30 * T[0] if p == 1 else T[0]  # the Gram, not the ball
    sums = SymbolSums(p)
    sums.add(T)
    cover = sums.cover
    line = T[int(T.norm(dim=-1).argmax())]
    across = torch.linalg.svd(line[None])[2][1:]
    for w in across:
        reach = sum(abs(float(sum(exact(t[None])[0] * exact(w[None])[0]))) for t in T)
        assert float(w @ cover @ w) >= reach**2
        assert float(w @ cover @ w) > 0


@pytest.mark.parametrize("squarings", [1, 2, 4])
def test_lambda_max_is_never_rounded_below(squarings):
    for seed in range(200):
        F = torch.randint(1, 1 << 20, (1, 5), generator=generator(seed)).double()
        largest = sum(Fraction(int(x)) ** 2 for x in F[0])
        assert Fraction(float(lambda_max(F.mT @ F, squarings))) >= largest


@pytest.mark.parametrize("squarings", [1, 2, 4])
@pytest.mark.parametrize("d", [64, 300, 1000])
def test_lambda_max_of_wide_grams_in_float32_is_never_rounded_below(d, squarings):
    """Of rank one with integers whose products float32 holds: what is rounded is the algorithm's. Where all entries are
    the same, errors of one sign add up, and the last norm loses more than d units."""
    for seed in range(3):
        for low, high in ((1, 4096), (683, 684)):
            F = torch.randint(low, high, (1, d), generator=generator(seed)).double()
            Q = (F.mT @ F).float()
            assert torch.equal(Q.double(), F.mT @ F)
            assert float(lambda_max(Q, squarings)) >= float(F.square().sum())


def seen_at(block, before, z, centre):
    """The sources, if LayerNorm's output is `centre` at all tokens of z, and the point there."""
    of, source = block.branch, sources(block, z, exact_prefix(block, before), LIMIT)
    K, V = (of.split_heads(dense(source.prefix.before(centre), w, b)) for w, b in of.projections[1:])
    source = dataclasses.replace(source, norm=dataclasses.replace(source.norm, centre=centre), K=K, V=V)
    return source, branch_point(source, Queries.every(z.n_tokens, before.shape[1]))


def in_type(dtype, *values):
    return (map_tensors(value, lambda t: t.to(dtype)) for value in values)


@pytest.mark.parametrize("case", [{}, {"first": 2}, {"causal": False}])
@pytest.mark.parametrize("seed", range(6))
def test_grams_of_attention_formed_in_float32_dominate_those_of_float64(seed, case):
    block, before, z, source, _ = attention_case(seed, (0.05, 0.0), d=6, heads=2, S=6, **case)
    line = randn(generator(seed), 1, z.n_tokens, 6, 1)
    z = dataclasses.replace(z, Q=line @ line.mT)  # rank one: other directions hold rounding only
    block, before, z, centre = in_type(torch.float32, block, before, z, source.norm.centre)

    def grams(dtype, tokens):
        b, x, n0, zz = in_type(dtype, block, before, centre, z)
        zz = dataclasses.replace(zz, Q=torch.zeros_like(zz.Q))
        zz.Q[:, tokens] = z.Q[:, tokens].to(dtype)
        seen, point = seen_at(b, x, zz, n0)
        seen = with_errors(seen, seen.norm.jacobian_gram(zz.Q))
        seen = dataclasses.replace(seen, norm=dataclasses.replace(seen.norm, error_gram=torch.zeros_like(zz.Q)))
        asked, values = asked_errors(point, seen), point.values()
        values = values - point.P[..., None, :] @ values
        scores = error_scores(asked)
        local = torch.zeros(1, 2, zz.n_tokens, 3, 3, dtype=dtype)
        images, _ = error_images(asked, ScoreImages(values, scores.key), local, torch.zeros_like(zz.c), LIMIT)
        bare = with_errors(seen, zz.Q)  # a Gram without slack of its own
        queries = asked_errors(point, bare).QQ
        whole = {"jacobian": seen.merged, "queries": queries, "keys": bare.KK_heads, "values": bare.VV}
        return whole, {"scores": scores.gram, "images": images}

    everywhere = list(range(z.n_tokens))
    wide, rounded = grams(torch.float64, everywhere), grams(torch.float32, everywhere)
    for name, gram in rounded[0].items():
        assert lowest_eigenvalue(gram.double() - wide[0][name]) > -1e-6, name
    apart = [grams(torch.float64, [token])[1] for token in everywhere]
    for name, gram in rounded[1].items():
        # Directions that the exact Gram hardly has, and any.
        w = torch.linalg.eigh(wide[1][name])[1].mT
        w = torch.cat([w, randn(generator(seed), *w.shape)], dim=-2)
        needed = sum(square(one[name], w).clamp(min=0).sqrt() for one in apart)
        assert (square(gram.double(), w) >= ((1 - 2e-5) * needed).square() - 1e-12 * needed.max() ** 2).all(), name


@pytest.mark.parametrize("left", [1.0, 1e-4])
@pytest.mark.parametrize("seed", range(6))
def test_images_of_other_tokens_where_nearly_everything_cancels(seed, left):
    """Keys and values hardly see the one direction in which tokens move: what is `left` of it is mostly rounding."""
    g = generator(seed)
    block, before, z, source, _ = attention_case(seed, (0.05, 0.0), d=6, heads=2, S=5)
    line = randn(g, 6)
    line = line / line.norm()
    blind = [w - (1 - left) * line[:, None] * (line @ w) for w, _ in block.branch.projections]
    block = changed(block, **dict(zip(("w_q", "w_k", "w_v"), blind, strict=True)))
    along = (line[:, None] * line).expand(1, 5, 6, 6)
    block, before, z, centre, merged = in_type(torch.float32, block, before, z, source.norm.centre, along)

    def crossed(dtype, tokens):
        b, x, zz, n0, M = in_type(dtype, block, before, z, centre, merged)
        only = torch.zeros_like(M)
        only[:, tokens] = M[:, tokens]
        seen, point = seen_at(b, x, zz, n0)
        seen = with_errors(seen, only)
        asked = asked_errors(point, seen)
        values = 1e3 * point.values()  # scores weigh more than values, whose own slack would hide this one
        metric = torch.ones(2, dtype=dtype)
        inner, t = _crossed(asked, ScoreImages(values, error_scores(asked).key), metric, slice(0, 5))
        return t.sum(-1)[..., None, None] * inner

    gram = crossed(torch.float32, list(range(5))).double()
    w = torch.linalg.eigh((gram + gram.mT) / 2)[1].mT
    w = torch.cat([w, randn(g, 1, 5, 20, 6)], dim=-2)
    apart = [square(crossed(torch.float64, [s]), w).clamp(min=0).sqrt() for s in range(5)]
    assert (square(gram, w) >= ((1 - 2e-5) * sum(apart)).square()).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_token_that_moves_no_score_because_query_and_key_cancel(seed):
    """All other keys are one, so its query's and its key's change are multiples of one row; the line is chosen so that
    they cancel. What is left is rounding of either sign, and the Gram must not be below it."""
    S, d = 5, 6
    block, before, z, source, _ = attention_case(seed, (0.05, 0.0), d=d, heads=2, S=S)
    centre = source.norm.centre.clone()
    centre[:, : S - 1] = centre[:, :1]
    case = list(in_type(torch.float32, block, before, z, centre))
    _, pt = seen_at(*in_type(torch.float64, *case))
    w_q, w_k = (by_head(w.float().double(), 2) for w in (block.branch.w_q, block.branch.w_k))
    # How a change of the last token moves all scores of its own query, per head.
    f = torch.stack([w_q[h] @ (pt.K[0, h, -1] - pt.K[0, h, 0]) + w_k[h] @ pt.Q[0, h, -1] for h in range(2)])
    line = randn(generator(seed), d)
    line = line - f.mT @ torch.linalg.solve(f @ f.mT, f @ line)
    merged = torch.zeros(1, S, d, d)
    merged[0, -1] = (line[:, None] * line).float()
    seen, pt = seen_at(*case)
    seen = with_errors(seen, merged)
    gram = error_scores(asked_errors(pt, seen)).gram.double()[0, :, -1]
    lowest = torch.linalg.eigvalsh((gram + gram.mT) / 2)[..., 0] / gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert (lowest > -1e-7).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_centring_rounds_less_than_is_said(dtype):
    """Centring of tangents and of z0 times them, at all signs of the symbols; `checker` bounds it by coordinates."""
    for seed in range(4):
        g, d, m = generator(seed), 6, 5
        norm, c = layer_norm(g, d), 3 * randn(g, 1, 1, d)
        G = randn(g, 1, 1, m, d).to(dtype)
        z = EllipsoidalZonotope(c, G, torch.zeros(1, 1, d, d).double(), math.inf)
        at = norm_point(norm, c)
        with with_room():
            said = centring_rounding(norm, at, z)
        for signs in torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * m):
            moved = [(signs @ x.double()[0, 0]) for x in (norm.centre(G), norm.centre(G.double()))]
            off = moved[0] - moved[1]
            assert off.norm() <= math.sqrt(d) * said.box[0, 0, 0] * (1 + 1e-9)
            assert (off.abs() <= said.checker[0, 0]).all()
            along = signs @ (norm.centre(G)[0, 0] @ at.z0[0, 0].to(dtype)).double()
            assert (along - at.z0[0, 0] @ moved[1]).abs() <= said.dot[0, 0]
