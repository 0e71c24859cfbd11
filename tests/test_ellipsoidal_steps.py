"""Method E, step by step: every contract at the same noise, at vertices and under a search."""

import dataclasses
import math

import pytest
import torch

from builders import attention_block, generator, layer_norm, mlp_block, randn
from ellipsoidal_containment import (
    BATCH,
    assert_in_ellipsoid,
    assert_never_positive,
    ellipsoidal,
    point,
    random_noise,
)
from zonogpt.domains.ellipsoidal import EllipsoidalZonotope, minkowski, sandwich, support, trace
from zonogpt.domains.finite import NonFiniteBoundError
from zonogpt.domains.symbols import SymbolSums
from zonogpt.model.nodes import Block, Mlp, Norm, dense
from zonogpt.transforms.attention_rounding import NormSizes, attention_rounding
from zonogpt.transforms.ellipsoidal.attention import attend, softmax_cover, value_products
from zonogpt.transforms.ellipsoidal.attention import changes as bounded_changes
from zonogpt.transforms.ellipsoidal.attention_errors import (
    ScoreImages,
    asked_errors,
    error_images,
    error_scores,
    row_minkowski,
)
from zonogpt.transforms.ellipsoidal.attention_point import TangentSums, branch_images, branch_point, tangents
from zonogpt.transforms.ellipsoidal.layernorm import centred_gram, layernorm_step, scalar_remainders
from zonogpt.transforms.ellipsoidal.mlp import mlp_step
from zonogpt.transforms.ellipsoidal.softmax import softmax_step
from zonogpt.transforms.ellipsoidal.sources import head_blocks, head_grams, sources
from zonogpt.transforms.gelu import gelu
from zonogpt.transforms.prefix import Prefix
from zonogpt.transforms.queries import Queries

LIMIT = 1 << 30
SEEDS = range(4)
NORMS = (math.inf, 2.0, 1.0)
# radius and error: linear part alone, error alone, both, and far beyond what Taylor can follow
REACHES = ((0.1, 0.0), (0.0, 0.1), (0.05, 0.05), (0.5, 0.2), (3.0, 2.0))


def exact_prefix(block, before):
    """Tokens (1, p, d) before the moving ones, as if nothing had been rounded."""
    n = block.norm(before)
    nothing = torch.zeros_like(block.branch.split_heads(n @ block.branch.w_k))
    return Prefix(n, nothing, nothing, n.abs(), torch.zeros_like(n))


def attention_step(block, z, before=None, queries=None, limit=LIMIT):
    """The block at some of the moving tokens, by default all, behind the exact tokens `before`."""
    prefix = Prefix.none(z.c, block.branch) if before is None else exact_prefix(block, before)
    queries = Queries.every(z.n_tokens, prefix.n_tokens) if queries is None else queries
    return attend(sources(block, z, prefix, limit), queries, limit)


def with_errors(source, merged):
    """The sources with other errors `merged` at LayerNorm's output."""
    of = source.attention
    KK = head_grams(merged, of.w_k, of.n_heads)
    return dataclasses.replace(source, merged=merged, KK_heads=KK, VV=sandwich(merged, of.w_v))


# LayerNorm


@pytest.mark.parametrize("seed", range(30))
def test_scalar_remainders_are_exact_bounds(seed):
    g = generator(seed)
    d = 2 + seed % 5
    z0 = randn(g, d) * 10 ** (2 * torch.rand(1, generator=g).double() - 1.5)
    z0 = z0 - z0.mean()
    reach = float(z0.norm()) * 3 * torch.rand(1, generator=g).double() + 1e-3
    tau = 10 ** (-6 * float(torch.rand(1, generator=g)))
    D = randn(g, 20000, d)
    D[:500] = -z0 * torch.linspace(-3, 3, 500).double()[:, None]
    D = D - D.mean(-1, keepdim=True)
    D = D * (reach * torch.rand(20000, 1, generator=g).double() ** 0.2 / D.norm(dim=-1, keepdim=True))
    norm2 = z0.square().sum()
    a0 = tau + norm2 / d
    lin, quad = 2 * D @ z0 / d, D.square().sum(-1) / d
    rho = lambda a: a.rsqrt()  # noqa: E731
    e_rho = rho(a0 + lin + quad) - rho(a0) + 0.5 * a0**-1.5 * lin
    A, B, delta = scalar_remainders(
        norm2[None], a0[None], tau, d, (D @ z0).abs().max()[None], D.norm(dim=-1).max()[None]
    )
    assert float(e_rho.max()) <= float(B) * (1 + 1e-9) + 1e-12
    assert float(e_rho.min()) >= -float(A) * (1 + 1e-9) - 1e-12
    assert float((rho(a0 + lin + quad) - rho(a0)).abs().max()) <= float(delta) * (1 + 1e-9) + 1e-12


def norm_and_set(seed, reach, p=math.inf, d=4):
    norm = layer_norm(generator(seed), d)
    return norm, ellipsoidal(seed + 100, n=3, d=d, m=3, radius=reach[0], error=reach[1], p=p)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("seed", SEEDS)
def test_layernorm_error_lies_in_its_ellipsoid(seed, reach, p):
    norm, z = norm_and_set(seed, reach, p)
    step = layernorm_step(norm, z, LIMIT)

    def error(noise):
        x = point(z, noise)
        linear = step.jacobian((x - z.c).transpose(0, 1)[None])[0].transpose(0, 1)
        return norm(x) - step.centre[0] - linear

    assert_in_ellipsoid(error, step.error_gram[0], z, seed)


def assert_pull_is_a_lower_bound(f, step, z, out, w, seed):
    """w . f(x) >= w . out.c + before . (x - c) - losses for functionals w (1, K, I, d)."""
    before, losses = step.pull(w, LIMIT)
    losses = sum(losses.values()) if isinstance(losses, dict) else losses
    K = w.shape[1]
    which = torch.arange(BATCH) % K

    def excess(noise):
        x = point(z, noise)
        value = ((f(x) - out) * w[0, which]).sum((1, 2))
        linear = ((x - z.c[0]) * before[0, which]).sum((1, 2))
        return linear - losses[0, which] - value

    assert_never_positive(z, excess, seed)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("seed", range(8))
def test_layernorm_pull_is_a_lower_bound(seed, reach, p):
    norm, z = norm_and_set(seed, reach, p, d=3 + seed % 2)
    step = layernorm_step(norm, z, LIMIT)
    w = randn(generator(seed + 7), 1, 5, *z.c.shape[1:])
    w[0, 4] = norm.gamma.reciprocal() * step.z0[0]  # along the line of e_rho
    assert_pull_is_a_lower_bound(norm, step, z, step.centre[0], w, seed)
    linear_only = step.loss(w, LIMIT)
    x = point(z, random_noise(z, seed))
    fall = -((norm(x) - step.centre[0])[:, None] * w[0]).sum((2, 3))
    assert (fall.amax(0) <= linear_only[0] + 1e-9).all()


@pytest.mark.parametrize("tau", [1e-5, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("reach", [0.1, 0.3, 0.6, 0.9, 1.2, 2.0, 3.0])
@pytest.mark.parametrize("kind", ["symbol", "ellipsoid"])
def test_layernorm_of_two_features_is_nearly_exact(kind, reach, tau):
    """With d = 2 one dimension is left beside the mean: no cover is loose, so no term can be missing."""
    norm = Norm(torch.tensor([1.0, 1.0]).double(), torch.zeros(2).double(), tau)
    for size in (1.0, -1.0):
        z0 = torch.tensor([[[size, -size]]]).double()
        line = reach * torch.tensor([[[[1.0, -1.0]]]]).double()
        nothing = torch.zeros(1, 1, 2, 2).double()
        G, Q = (line, nothing) if kind == "symbol" else (0 * line, line.mT @ line)
        z = EllipsoidalZonotope(z0, G, Q, math.inf)
        step = layernorm_step(norm, z, LIMIT)
        x = z0[0] + torch.linspace(-1, 1, 2001).double()[:, None, None] * line[0, 0]
        linear = step.jacobian((x - z0[0]).transpose(0, 1)[None])[0].transpose(0, 1)
        error = norm(x) - step.centre[0] - linear
        for w in (torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.5]), torch.tensor([0.3, -2.0])):
            w = w.double()
            assert float((error @ w).abs().max()) <= float(support(step.error_gram, w.expand(1, 1, 1, 2))) + 1e-9
            before, loss = step.pull(w.expand(1, 1, 1, 2), LIMIT)
            fall = ((x - z0[0]) * before[0, 0]).sum((1, 2)) - ((norm(x) - step.centre[0]) * w).sum((1, 2))
            assert float(fall.max()) <= float(loss) + 1e-9


@pytest.mark.parametrize("reach", [0.02, 0.1, 0.3])
def test_layernorm_product_beside_the_line_of_e_rho(reach):
    """One symbol along z0 + u, u orthogonal to z0: along u only the product and the third-order part are left."""
    norm = Norm(torch.ones(3).double(), torch.zeros(3).double(), 1e-5)
    z0, u = torch.tensor([1.0, -1.0, 0.0]).double(), torch.tensor([1.0, 1.0, -2.0]).double()
    z = EllipsoidalZonotope(
        z0[None, None], reach * (z0 + u)[None, None, None], torch.zeros(1, 1, 3, 3).double(), math.inf
    )
    step = layernorm_step(norm, z, LIMIT)
    assert float(step.bend.abs().max()) > 0
    x = z0 + torch.linspace(-1, 1, 2001).double()[:, None] * reach * (z0 + u)
    for w in (u, -u):
        linear = step.jacobian((x - z0)[None, None])[0, 0]
        error = (norm(x) - step.centre[0, 0] - linear) @ w
        assert float(error.abs().max()) <= float(support(step.error_gram, w.expand(1, 1, 1, 3))) + 1e-12
        before, loss = step.pull(w.expand(1, 1, 1, 3), LIMIT)
        fall = (x - z0) @ before[0, 0, 0] - (norm(x) - step.centre[0, 0]) @ w
        assert float(fall.max()) <= float(loss) + 1e-12


@pytest.mark.parametrize("reach", [1e-3, 0.1, 0.3])
def test_the_loss_of_a_functional_along_the_line_of_e_rho(reach):
    """The slope's own part is w J^T: of w along z0 it keeps nearly nothing, and of a w that does not see the symbol,
    but z0, it keeps what z0 sees of it."""
    norm = Norm(torch.ones(3).double(), torch.zeros(3).double(), 1e-5)
    z0, u = torch.tensor([1.0, -1.0, 0.0]).double(), torch.tensor([1.0, 1.0, -2.0]).double()
    line = reach * (z0 - u / 3)  # orthogonal to z0 + u
    z = EllipsoidalZonotope(z0[None, None], line[None, None, None], torch.zeros(1, 1, 3, 3).double(), math.inf)
    step = layernorm_step(norm, z, LIMIT)
    assert step.sloped.all()
    x = z0 + torch.linspace(-1, 1, 2001).double()[:, None] * line
    for w in (z0, -z0, z0 + u, -z0 - u, u):
        loss = float(step.loss(w.expand(1, 1, 1, 3), LIMIT))
        fall = float(-((norm(x) - step.centre[0, 0]) @ w).min())
        assert fall <= loss + 1e-12
        assert loss <= fall + 5 * reach**2


@pytest.mark.parametrize("c", [[0.0, 0.0, 0.0, 0.0], [1e-7, -1e-7, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0 + 1e-9]])
@pytest.mark.parametrize("radius", [1e-3, 0.1, 10.0])
def test_constant_tokens_do_not_explode(c, radius):
    """z0 = 0: the Jacobian is of size tau^(-1/2), LayerNorm's range is of size one."""
    norm = Norm(torch.ones(4).double(), torch.zeros(4).double(), 1e-5)
    z = ellipsoidal(3, n=1, d=4, radius=radius, error=radius)
    z = dataclasses.replace(z, c=torch.tensor(c).double().reshape(1, 1, 4))
    step = layernorm_step(norm, z, LIMIT)
    assert float(trace(step.error_gram)) <= 4 * 4 + 1e-9
    w = randn(generator(1), 1, 4, 1, 4)
    assert_pull_is_a_lower_bound(norm, step, z, step.centre[0], w, 0)
    assert (step.loss(w, LIMIT)[0] <= 2 * 2 * w[0, :, 0].norm(dim=-1) + 1e-9).all()


# Attention


def attention_case(seed, reach, p=math.inf, S=4, d=4, heads=2, first=0, queries=None, m=3, **of_block):
    """A block, the exact tokens before the moving ones, the moving set, what queries see of it, and the point.

    `queries` are indices of moving tokens; by default all of these.
    """
    block = attention_block(seed, d=d, n_heads=heads, **of_block)
    z = ellipsoidal(seed + 50, n=S - first, d=d, m=m, radius=reach[0], error=reach[1], p=p)
    before = randn(generator(seed + 9), 1, first, d)
    source = sources(block, z, exact_prefix(block, before), LIMIT)
    index = tuple(range(S - first)) if queries is None else queries
    return block, before, z, source, branch_point(source, Queries(first, index))


# Cases of 4 tokens: which move, which are queries, what they see, how wide the heads are.
CASES = (
    {}, {"first": 2}, {"causal": False}, {"queries": (3,)}, {"first": 1, "queries": (1, 2)}, {"queries": (0, 2)},
    {"first": 1, "queries": (0, 2), "causal": False}, {"inner": 2}, {"inner": 10, "first": 1, "causal": False},
    {"biases": False},
)  # fmt: skip


def projected(block, n):
    """Exact queries, keys and values of LayerNorm's output n."""
    return [block.branch.split_heads(dense(n, w, b)) for w, b in block.branch.projections]


def changes(block, before, pt, z, noise):
    """Exact changes against the point: dQ (N,H,I,e), dK, dV (N,H,n,e), scores dU (N,H,I,S), P (N,H,I,S)."""
    x = torch.cat([before.expand(BATCH, -1, -1), point(z, noise)], dim=1)
    q, k, v = projected(block, block.norm(x))
    q = q[:, :, pt.queries.among_all]
    scores = (q @ k.mT) * block.branch.scale
    at_point = (pt.Q @ pt.K.mT) * block.branch.scale
    dU = (scores - at_point).masked_fill(pt.hidden, 0.0)
    P = scores.masked_fill(pt.hidden, -math.inf).softmax(-1)
    first = pt.first
    return q - pt.Q, (k - pt.K)[:, :, first:], (v - pt.V)[:, :, first:], dU, P


@pytest.mark.parametrize("case", [*CASES, {"queries": (2, 3)}, {"first": 2, "queries": (0, 1)}])
def test_tangents_and_images_are_the_derivative(case):
    block, before, z, source, pt = attention_case(1, (0.1, 0.0), **case)
    norm, of = source.norm, block.branch
    n_dot = norm.jacobian(z.G)
    t = tangents(pt, n_dot)
    images = branch_images(pt, t, pt.values())

    def branch(n):
        x = torch.cat([block.norm(before), n], dim=1)
        q, k, v = projected(block, x)
        P = ((q @ k.mT) * of.scale).masked_fill(~of.visible(x.shape[1]), -math.inf).softmax(-1)
        return of.join_heads(P @ v)[:, pt.queries.among_all] @ of.w_o

    for j in range(z.m):
        _, exact = torch.func.jvp(branch, (norm.centre,), (n_dot[:, :, j],))
        torch.testing.assert_close(images[:, :, j], exact)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_error_scores_bound_what_ellipsoids_do_linearly(seed, case):
    block, _, z, source, pt = attention_case(seed, (0.0, 0.1), **case)
    norm, of = source.norm, block.branch
    merged = minkowski(norm.jacobian_gram(z.Q), norm.error_gram)
    torch.testing.assert_close(source.merged, merged)
    errors = error_scores(asked_errors(pt, source))
    at_norm = EllipsoidalZonotope(norm.centre, torch.zeros_like(z.G), merged, z.p)

    def centred(noise):
        n_dot = (point(at_norm, noise) - norm.centre[0]).transpose(0, 1)[None]
        return tangents(pt, n_dot).W[0].permute(2, 0, 1, 3)  # (N, H, I, S)

    entry = torch.randint(errors.radius.numel(), (BATCH,), generator=generator(seed))
    limit = errors.radius.flatten()[entry]
    pick = lambda noise: centred(noise).flatten(1)[torch.arange(BATCH), entry]  # noqa: E731
    assert_never_positive(at_norm, lambda noise: pick(noise).abs() - limit, seed)
    assert_in_ellipsoid(centred, errors.gram[0], at_norm, seed)
    # What a single source does, exactly.
    KK = head_blocks(sandwich(merged, of.w_k), 2)
    key = (torch.einsum("bhie,bhnef,bhif->bhin", pt.Q, KK, pt.Q)).sqrt() * of.scale
    torch.testing.assert_close(errors.key, key.masked_fill(pt.hidden[..., pt.first :], 0.0))


@pytest.mark.parametrize(("d", "heads"), [(2, 2), (8, 1)])
@pytest.mark.parametrize("reach", REACHES[:4])
@pytest.mark.parametrize("seed", SEEDS)
def test_score_products(seed, reach, d, heads):
    """Of one feature per head by coordinates; of eight, with as many symbols in a 2-ball, by lengths as well."""
    p, m = (2.0, 8) if d == 8 else (math.inf, 3)
    block, before, z, source, pt = attention_case(seed, reach, p, d=d, heads=heads, S=3, m=m)
    sums, norm = TangentSums(z.p, torch.float64), source.norm
    sums.add(tangents(pt, norm.jacobian(z.G)))
    sizes = NormSizes(norm.centre, norm.reach)
    rounding = attention_rounding(pt, source.prefix, sizes, torch.float64, z.m)
    change = bounded_changes(asked_errors(pt, source), sums, rounding)
    bound = change.score_products(pt)
    if d == 8:
        lengths = change.Q_length[..., None] * change.K_length[..., None, :]
        assert ((lengths < change.Q @ change.K.mT) & ~pt.hidden).any()
    entry = torch.randint(bound.numel(), (BATCH,), generator=generator(seed))

    def excess(noise):
        dQ, dK, *_ = changes(block, before, pt, z, noise)
        product = ((dQ @ dK.mT) * block.branch.scale).masked_fill(pt.hidden, 0.0)
        return product.flatten(1)[torch.arange(BATCH), entry].abs() - bound.flatten()[entry]

    assert_never_positive(z, excess, seed)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("seed", SEEDS)
def test_value_products(seed, reach, p):
    block, before, z, _, pt = attention_case(seed, reach, p, d=2, heads=2, S=3)
    _, step = attention_step(block, z, before)

    def product(noise):
        _, _, dV, _, P = changes(block, before, pt, z, noise)
        return (P - pt.P) @ dV

    assert_in_ellipsoid(product, step.product_gram[0], z, seed)
    entry = torch.randint(step.softmax.total.numel(), (BATCH,), generator=generator(seed))

    def deviation(noise):
        P = changes(block, before, pt, z, noise)[-1]
        return (P - pt.P).flatten(1)[torch.arange(BATCH), entry].abs() - step.softmax.total.flatten()[entry]

    assert_never_positive(z, deviation, seed)


def test_value_products_all_keys_together_or_apart():
    """Given only what the contract says: a Gram for the linear part, a residual per key, a total per key."""
    g = generator(0)
    block, _, z, _, pt = attention_case(0, (0.1, 0.1), S=5, d=2, heads=1)
    _, step = attention_step(block, z)
    score_F = randn(g, 1, 1, 5, 5, 5) * 0.1
    value_F = randn(g, 1, 1, 5, 2, 2)
    residual = 0.05 * torch.rand(1, 1, 5, 5, generator=g).double()
    for total in (torch.full((1, 1, 5, 5), 10.0).double(), 0.02 * torch.ones(1, 1, 5, 5).double()):
        s = dataclasses.replace(step.softmax, total=total, residual=residual)
        gram = value_products(pt, s, score_F @ score_F.mT, value_F @ value_F.mT)
        for seed in range(200):
            g = generator(seed)
            a, b = randn(g, 5, 5), randn(g, 5, 2)
            a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
            dP = pt.P[0, 0] * torch.einsum("ijk,ik->ij", score_F[0, 0], a) + residual[0, 0] * randn(g, 5, 5).sign()
            dP = torch.maximum(torch.minimum(dP, total[0, 0]), -total[0, 0]).masked_fill(pt.hidden[0, 0], 0.0)
            y = dP @ torch.einsum("jef,jf->je", value_F[0, 0], b)
            w = randn(g, 5, 1, 2)
            assert ((w[:, 0] * y).sum(-1) <= support(gram[0, 0], w)[:, 0] + 1e-12).all()


@pytest.mark.parametrize("case", [case for case in CASES if "inner" not in case] + [{"inner": 3}, {"inner": 9}])
def test_error_images_are_exact_for_one_source_and_sum_for_many(case):
    """Against explicit d x d maps of every pair of tokens, made by pushing unit tangents through the branch."""
    block, _, z, source, pt = attention_case(5, (0.05, 0.05), d=6, heads=3, **case)
    n, d, I, e, norm = z.n_tokens, 6, pt.n_queries, block.branch.inner // 3, source.norm  # noqa: E741
    slope = 0.5 + torch.rand(pt.P.shape, generator=generator(3)).double()
    values = slope[..., None] * pt.values()
    values = values - pt.P[..., None, :] @ values
    units = torch.eye(n * d).double().reshape(n * d, n, d).transpose(0, 1)[None]  # (1, n, n d, d)
    maps = branch_images(pt, tangents(pt, units), values)[0].unflatten(1, (n, d))  # (I, source, d, d)
    local_F = randn(generator(8), 1, 3, I, e, e)
    local = local_F @ local_F.mT * 1e-3
    J = norm.jacobian(torch.eye(d).double().expand(1, n, d, d))[0]  # rows: J of unit vectors

    def image(Q, error, local):
        moved = with_errors(source, minkowski(norm.jacobian_gram(Q), error))
        of_norm = dataclasses.replace(norm, error_gram=error)
        moved = dataclasses.replace(moved, z=dataclasses.replace(z, Q=Q), norm=of_norm)
        asked = asked_errors(pt, moved)
        key = error_scores(asked).key
        nothing = torch.zeros(1, I, d).double()
        images, _ = error_images(asked, ScoreImages(values, key), local, nothing, LIMIT)
        return images[0]

    def parts(i, Q, error, local):
        """The summands of query i, each by its own map."""
        merged = minkowski(norm.jacobian_gram(Q), error)[0]
        s_own = pt.queries.index[i]
        own = torch.eye(d).double() + J[s_own] @ maps[i, s_own]
        out = [sandwich(Q[0, s_own], own), sandwich(error[0, s_own], maps[i, s_own])]
        out += [sandwich(merged[s], maps[i, s]) for s in range(n) if s != s_own]
        return out + [sandwich(local[0, h, i], block.branch.w_o[e * h : e * (h + 1)]) for h in range(3)]

    w = randn(generator(4), 1, 40, d)
    nothing = torch.zeros_like
    for s in range(n):
        only = nothing(z.Q)
        only[:, s] = z.Q[:, s]
        for Q, error in ((only, nothing(z.Q)), (nothing(z.Q), only)):
            found = image(Q, error, nothing(local))
            for i in range(I):
                exact = sum(parts(i, Q, error, nothing(local)))
                torch.testing.assert_close(found[i], exact, rtol=1e-3, atol=1e-9)
    found = image(z.Q, norm.error_gram, local)
    for i in range(I):
        apart = sum(support(part[None], w) for part in parts(i, z.Q, norm.error_gram, local))
        assert (support(found[i][None], w) >= apart * (1 - 1e-9)).all()
        assert (support(found[i][None], w) <= 4 * apart).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("seed", SEEDS)
def test_attention_step_contains_the_block(seed, reach, case):
    block, before, z, _, pt = attention_case(seed, reach, **case)
    out, step = attention_step(block, z, before, pt.queries)

    def f(x):
        return block(torch.cat([before.expand(len(x), -1, -1), x], dim=1))[:, pt.queries.among_all]

    def rest(noise):
        return f(point(z, noise)) - out.c[0] - torch.einsum("Nm,nmd->Nnd", noise[0], out.G[0])

    assert_in_ellipsoid(rest, out.Q[0], z, seed)
    w = randn(generator(seed), 1, 4, *out.c.shape[1:])
    assert_pull_is_a_lower_bound(f, step, z, out.c[0], w, seed)


@pytest.mark.parametrize("reach", [(0.3, 0.0), (1.0, 0.0), (0.0, 0.3), (0.3, 0.3)])
@pytest.mark.parametrize("seed", range(24))
def test_attention_pull_where_bounds_are_nearly_tight(seed, reach):
    """One head of one feature, one symbol, two or three tokens: hardly any slack to hide a missing term in."""
    S = 2 + seed % 2
    block = attention_block(seed, d=2, n_heads=1 + seed % 2, scale=1.0)
    z = ellipsoidal(seed + 50, n=S, d=2, m=1, radius=reach[0], error=reach[1])
    out, step = attention_step(block, z)
    w = randn(generator(seed), 1, 4, S, 2)
    w[:, :2, :-1] = 0.0  # functionals of the last token alone
    assert_pull_is_a_lower_bound(block, step, z, out.c[0], w, seed)


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("seed", range(6))
def test_mlp_step_contains_the_block(seed, reach, biases):
    block = mlp_block(seed, d=4, hidden=3 + seed, biases=biases)
    z = ellipsoidal(seed + 20, n=2, d=4, m=2, radius=reach[0], error=reach[1])
    out, step = mlp_step(block, z, LIMIT)

    def rest(noise):
        return block(point(z, noise)) - out.c[0] - torch.einsum("Nm,nmd->Nnd", noise[0], out.G[0])

    assert_in_ellipsoid(rest, out.Q[0], z, seed)
    w = randn(generator(seed), 1, 4, 2, 4)
    assert_pull_is_a_lower_bound(block, step, z, out.c[0], w, seed)
    # The hidden units stay where GELU was bounded.
    hidden = lambda noise: dense(block.norm(point(z, noise)), block.branch.w_1, block.branch.b_1)  # noqa: E731
    for noise in (random_noise(z, seed), random_noise(z, seed + 1)):
        t = hidden(noise)
        slope, half = step.slope[0], step.half[0]
        middle = gelu(t) - slope * t
        assert ((middle.amax(0) - middle.amin(0)) <= 2 * half + 1e-9).all()


@pytest.mark.parametrize("name", ["attention", "mlp"])
def test_old_errors_keep_the_skip(name):
    """One ellipsoid of rank one, no symbols: the image is the one of x + branch, not of x and branch apart."""
    z = ellipsoidal(1, n=2, d=4, m=1, radius=0.0, error=1e-6)
    line = randn(generator(2), 1, 2, 4, 1) * 1e-6
    z = dataclasses.replace(z, Q=line @ line.mT)
    block = attention_block(3, d=4, n_heads=2) if name == "attention" else mlp_block(3, d=4)
    out, _ = attention_step(block, z) if name == "attention" else mlp_step(block, z, LIMIT)
    _, exact = torch.func.jvp(
        lambda x: block(x)[0], (z.c[0],), (line[0, :, :, 0] * torch.tensor([[1.0], [0.0]]).double(),)
    )
    torch.testing.assert_close(trace(out.Q)[0, 0].sqrt(), exact.norm(), rtol=1e-3, atol=0.0)


def test_single_key_is_exact_and_softmax_is_silent():
    """The first token of a causal model sees one key: P = 1 whatever moves, so only values change its output."""
    block, before, z, *_ = attention_case(2, (3.0, 1.0), S=3)
    _, step = attention_step(block, z, before)
    assert float(step.softmax.total[:, :, 0].abs().max()) < 1e-12
    assert float((step.softmax.error + step.softmax.scores)[:, :, 0].abs().max()) < 1e-12


def test_chunks_change_nothing():
    block, before, z, *_ = attention_case(4, (0.05, 0.05), m=7)
    plain, step = attention_step(block, z, before)
    chunked, chunked_step = attention_step(block, z, before, limit=1)
    for name in ("c", "G", "Q"):
        torch.testing.assert_close(getattr(chunked, name), getattr(plain, name))
    w = randn(generator(0), 1, 3, 4, 4)
    for a, b in zip(step.pull(w, LIMIT)[1].values(), chunked_step.pull(w, 1)[1].values(), strict=True):
        torch.testing.assert_close(a, b)
    mlp = mlp_block(4, d=4)
    plain, chunked = mlp_step(mlp, z, LIMIT)[0], mlp_step(mlp, z, 1)[0]
    for name in ("c", "G", "Q"):
        torch.testing.assert_close(getattr(chunked, name), getattr(plain, name))


def test_softmax_cover_has_a_direction_for_the_common_part():
    block, before, z, _, pt = attention_case(1, (1.0, 0.0), S=3)
    _, step = attention_step(block, z, before)
    common = dataclasses.replace(
        step.softmax,
        sloped=torch.ones_like(step.softmax.sloped),
        error=0 * step.softmax.error,
        scores=0 * step.softmax.scores,
        common=step.softmax.common + 0.1,
    )
    gram = softmax_cover(common, pt.log_P, pt.values())
    direction = (common.common[..., None, :] @ pt.values()).squeeze(-2)
    size = direction.square().sum(-1)
    torch.testing.assert_close(support(gram, direction[..., None, :]).squeeze(-1), size, rtol=1e-3, atol=1e-9)


def test_row_minkowski_contains_sums():
    g = generator(0)
    A, B = (randn(g, 3, 5, 5) for _ in range(2))
    P = torch.rand(3, 5, generator=g).double().softmax(-1)
    joint = row_minkowski(P, A @ A.mT, B @ B.mT)
    w = randn(g, 3, 20, 5)
    assert (support(joint, w) >= (support(A @ A.mT, w) + support(B @ B.mT, w)) * (1 - 1e-9)).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_heavy_weight_in_a_direction_that_the_error_hardly_has(seed):
    """A column of W_1 of size 1e9, orthogonal to all but 1e-9 of LayerNorm's error: w^T Q w rounds to nothing."""
    g = generator(seed)
    d, radius = 5, 0.25
    norm = Norm(torch.ones(d).double(), torch.zeros(d).double(), 1e-5)
    c, gen = randn(g, d), 0.8 * randn(g, d)
    z0, D = c - c.mean(), gen - gen.mean()
    basis = torch.linalg.qr(torch.stack([torch.ones(d).double(), z0, D, *randn(g, d - 3, d)], 1))[0]
    bent = D - z0 * (z0 @ D) / (d * (1e-5 + z0 @ z0 / d))  # the Jacobian's image, up to a factor
    a = basis[:, 1:3].T @ bent
    across = basis[:, 1:3] @ torch.stack([-a[1], a[0]])
    beside = basis[:, 3:] @ randn(g, d - 3)
    w = 1e9 * (beside / beside.norm() + 1e-9 * across / across.norm())
    block = Block(norm, Mlp(w[:, None], -(w @ norm(c))[None], 2 * randn(g, 1, d), torch.zeros(d).double()))
    z = EllipsoidalZonotope(c[None, None], radius * gen[None, None, None], torch.zeros(1, 1, d, d).double(), math.inf)
    _, step = mlp_step(block, z, LIMIT)
    t = norm(c + torch.linspace(-radius, radius, 401).double()[:, None] * gen) @ w - w @ norm(c)
    bend = gelu(t) - step.slope[0, 0] * t
    assert float(bend.max() - bend.min()) <= 2 * float(step.half) + 1e-6


def test_every_part_of_softmax_enters_the_output_set():
    """No input error: behind W_o the new ellipsoid holds softmax's part and the products' part, head by head, added."""
    block, before, z, _, pt = attention_case(6, (0.3, 0.0), d=4, heads=2)
    out, step = attention_step(block, z, before)
    w = randn(generator(1), 30, 4)
    by_head = (w @ block.branch.w_o.T).unflatten(-1, (2, 2)).transpose(0, 1)  # (H, 30, e)
    cover = softmax_cover(step.softmax, pt.log_P, pt.values())
    for part in (cover, step.product_gram):
        assert float(trace(part)[..., 1:].min()) > 0
    for i in range(4):
        apart = sum(support(part[0, h, i], by_head[h]) for part in (cover, step.product_gram) for h in range(2))
        assert (support(out.Q[0, i], w) >= apart * (1 - 1e-9)).all()
    moved = (step.softmax.shift[..., None] * pt.values()).sum(-2)
    assert float(moved.abs().max()) > 1e-6
    of = block.branch
    torch.testing.assert_close(out.c - z.c - of.b_o, of.join_heads(pt.O + moved) @ of.w_o)


def test_adjoint_takes_the_support_of_every_part_of_softmax():
    """The set is sum_j (xi common_j + xi_j (error_j + scores_j)) v'_j; each part alone, against its own support."""
    block, before, z, _, pt = attention_case(6, (0.3, 0.1), d=4, heads=2)
    _, step = attention_step(block, z, before)
    w = randn(generator(2), 1, 3, 4, 4)
    head = block.branch.split_heads(w @ block.branch.w_o.T)  # (1, K, H, I, e)
    along = torch.einsum("bkhie,bhije->bkhij", head, pt.values())
    amount = 0.1 + torch.rand(pt.P.shape, generator=generator(3)).double()
    nothing = torch.zeros_like(amount)
    silent = {"error": nothing, "scores": nothing, "common": nothing, "sloped": torch.ones_like(step.softmax.sloped)}
    for name, ledger in (("error", "softmax"), ("scores", "scores"), ("common", "softmax")):
        only = dataclasses.replace(step.softmax, **(silent | {name: amount}))
        losses = dataclasses.replace(step, softmax=only).pull(w, LIMIT)[1]
        if name == "common":
            wanted = (amount[:, None] * along).sum(-1).abs().sum((-1, -2))
        else:
            wanted = (amount[:, None] * along.abs()).sum((-1, -2, -3))
        torch.testing.assert_close(losses[ledger], wanted)


@pytest.mark.parametrize("reach", [(0.05, 0.0), (0.1, 0.05)])
@pytest.mark.parametrize("seed", range(3))
def test_layernorm_gram_holds_the_line_and_the_copy_of_d_together(seed, reach):
    norm, z = (
        layer_norm(generator(seed), 5),
        ellipsoidal(seed, n=3, d=5, m=3, radius=reach[0], error=reach[1], p=math.inf),
    )
    step = layernorm_step(norm, z, LIMIT)
    assert step.sloped.all()
    spread = SymbolSums(math.inf)
    spread.add(z.G - z.G.mean(-1, keepdim=True))
    Q_D = minkowski(spread.cover, centred_gram(norm, z.Q))
    bend = step.a0.rsqrt() / (2 * 5 * step.a0) * support(Q_D, step.z0[..., None, :])[..., 0]
    factor = torch.minimum(step.largest + bend, step.delta)
    w = torch.cat([randn(generator(seed), 1, 3, 40, 5), step.z0[..., None, :]], dim=-2)
    along = (w @ step.z0[..., None])[..., 0].abs() * step.half[..., None]
    apart = along + factor[..., None] * support(Q_D, w)
    assert (support(step.error_gram, w / norm.gamma) >= apart * (1 - 1e-9)).all()


def test_adjoint_knows_that_rows_without_a_slope_stay_between_their_values():
    block, before, z, _, pt = attention_case(6, (0.3, 0.1), d=4, heads=2)
    _, step = attention_step(block, z, before)
    w = randn(generator(2), 1, 3, 4, 4)
    along = torch.einsum("bkhie,bhije->bkhij", block.branch.split_heads(w @ block.branch.w_o.T), pt.values())
    nothing, lost = torch.zeros_like(pt.P), torch.zeros_like(step.softmax.sloped)
    for error in (10.0, 1e-3):
        row = dataclasses.replace(
            step.softmax, sloped=lost, common=nothing, scores=nothing, error=torch.full_like(nothing, error)
        )
        loss = dataclasses.replace(step, softmax=row).pull(w, LIMIT)[1]["softmax"]
        visible = (-along).masked_fill(pt.hidden[:, None], -math.inf).amax(-1).clamp(min=0)
        wanted = torch.minimum(error * along.abs().sum(-1), visible).sum((-1, -2))
        torch.testing.assert_close(loss, wanted)


@pytest.mark.parametrize(("S", "heavy"), [(2, 1.4), (3, 0.0), (12, 0.0), (12, 2.0)])
@pytest.mark.parametrize("reach", [2.0, 5.0, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_rows_without_a_slope_are_covered_by_the_hull_of_their_values(seed, reach, S, heavy):
    """All keys may rise by `reach`, but not together: sum_j p_j v'_j for the p that score changes really make."""
    g = generator(seed)
    U = 0.1 * randn(g, 1, 1, 1, S)
    U[..., 0] += heavy
    log_P = U.log_softmax(-1)
    V = randn(g, 1, 1, S, 1 + seed)
    values = (V - log_P.exp()[0, 0] @ V)[:, :, None]
    nothing = torch.zeros_like(log_P)
    s = softmax_step(
        log_P,
        nothing,
        nothing + reach,
        torch.zeros(1, 1, 1, S, S).double(),
        torch.linalg.vector_norm(values, dim=-1),
        torch.zeros(1, 1, 1).double(),
    )
    cover = softmax_cover(s, log_P, values)[0, 0, 0]
    assert not s.sloped.any()
    up = torch.cat([torch.eye(S), 1 - torch.eye(S), torch.randint(2, (200, S), generator=g)]).double()
    p = (U[0, 0, 0] + reach * (2 * up - 1)).softmax(-1)
    w = torch.cat([randn(g, 50, 1 + seed), values[0, 0, 0]])
    assert ((p @ values[0, 0, 0] @ w.T).abs().amax(0) <= support(cover, w) * (1 + 1e-9)).all()
    if S == 12 and reach > 4:  # twelve keys that could each take the row: a box adds them up
        box = (s.error * torch.linalg.vector_norm(values, dim=-1)).sum()
        assert float(trace(cover).sqrt()) < 0.5 * float(box)


def test_the_range_of_layernorm_survives_squares_that_overflow():
    """In float32 lengths of 1.5e19 are finite and their squares are not: the range must not shrink to nothing."""
    norm = Norm(torch.ones(2), torch.zeros(2), 1e-5)
    seen = 0
    for size, reach in ((1.2e19, 1.2e19), (1e18, 1.1e19), (1.0, 1.2e19)):
        z = EllipsoidalZonotope(
            torch.tensor([[[size, -size]]]) / math.sqrt(2),
            reach * torch.tensor([[[[1.0, -1.0]]]]) / math.sqrt(2),
            torch.zeros(1, 1, 2, 2),
            math.inf,
        )
        try:
            step = layernorm_step(norm, z, LIMIT)
        except NonFiniteBoundError:
            continue
        seen += 1
        assert float(step.ball) >= 1.41
    assert seen
