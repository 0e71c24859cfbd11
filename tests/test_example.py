"""The paper's worked example: its numbers, its slips, and the effect of the caps."""

import torch

from zonogpt.domains.structured import from_promoted
from zonogpt.methods.structured import VARIANTS
from zonogpt.transforms.structured.layernorm import layernorm_bounds, taylor_remainder
from zonogpt_apps.demo import worked_example as ex


def outputs():
    """Sampled [A]_11: random, faces, and all 81 points of the grid {-1, 0, 1}^4."""
    grid = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)] * 4).reshape(-1, 2, 2)
    x = torch.cat([ex.sampled_inputs(200_000), ex.CENTRE + ex.RADIUS * grid])
    return ex.BLOCK(x)[:, 0, 0]


def test_centre_and_sampled_range_are_the_papers():
    assert round(float(ex.BLOCK(ex.CENTRE)[0, 0]), 3) == 0.400
    y = outputs()
    assert round(float(y.min()), 3) == 0.234
    assert round(float(y.max()), 3) == 0.420


def test_every_variant_contains_the_samples():
    y = outputs()
    for name in VARIANTS:
        low, high = ex.interval(ex.bound(name))
        assert low <= float(y.min()), name
        assert float(y.max()) <= high, name


def test_fused_proves_the_property_inside_the_papers_interval():
    for name in ("A", "F", "A-literal", "F-literal"):
        low, high = ex.interval(ex.bound(name))
        assert ex.PAPER_FUSED[0] < low
        assert high < ex.PAPER_FUSED[1]
        assert low > 0


def test_method_e_proves_it_and_contains_the_samples():
    y = outputs()
    low, high = ex.interval_by_adjoint()
    assert low <= float(y.min())
    assert float(y.max()) <= high
    assert ex.PAPER_FUSED[0] < low
    assert high < ex.PAPER_FUSED[1]


def test_deepz_is_the_papers():
    """34 generators, centre 0.36, sum 1.61, [-1.24, 1.98], all as printed (its lower end is -1.2433)."""
    z, generators = ex.bound_by_deepz()
    assert generators == len(z.G) == ex.PAPER_DEEPZ_GENERATORS
    assert round(float(z.c[0, 0]), 2) == ex.PAPER_DEEPZ_CENTRE
    assert round(float(z.G[:, 0, 0].abs().sum()), 2) == 1.61
    low, high = ex.interval_by_operators("deepz")
    assert abs(low - ex.PAPER_DEEPZ[0]) < 0.01
    assert abs(high - ex.PAPER_DEEPZ[1]) < 0.01


def test_baselines_contain_the_samples_and_prove_nothing():
    y = outputs()
    for name in ("ibp", "deepz", "crown"):
        low, high = ex.interval_by_operators(name)
        assert low <= float(y.min()), name
        assert float(y.max()) <= high, name
        assert low < 0
    assert list(ex.intervals())[:2] == ["sampled", "E"]


def test_decomposed_does_not():
    low, high = ex.interval(ex.bound("D"))
    assert low < 0
    assert high - low > 1.5


def test_printed_remainder_explodes_at_the_constant_token():
    """z0 = 0 at token 1: the printed R_N is in the hundreds; the range, with slope 0, is below 1."""
    z = ex.input_set("A")
    gens = z.G.transpose(0, 1)
    centred = gens - gens.mean(-1, keepdim=True)
    z0 = z.c - z.c.mean(-1, keepdim=True)
    norm2 = z0.square().sum(-1)
    a0 = 1e-5 + norm2 / 2
    z0_dot = (centred @ z0[:, :, None]).abs().sum((1, 2))
    # the printed bound has no cap on d_rho: 1/2 r_cen a_min^(-3/2) r_a
    _, a_min, _ = taylor_remainder(z0, norm2, a0, 1e-5, centred.abs().sum(1), z0_dot)
    r_cen = centred.abs().sum(1)
    r_a = r_cen.square().sum(-1) / 2
    printed = ex.BLOCK.norm.gamma * 0.5 * r_cen * (a_min.pow(-1.5) * r_a)[:, None]
    assert 200 < float(printed[0].min()) < float(printed[0].max()) < 230
    bounds = layernorm_bounds(ex.BLOCK.norm, z)
    assert not bool(bounds.sloped[0])
    assert bool(bounds.sloped[1])
    assert float(bounds.R_hat[0].max()) < 1


def test_projections_contain_their_samples():
    """What the picture shows: every sample inside the outline (checked along 90 directions)."""
    angle = torch.linspace(0, 2 * torch.pi, 90, dtype=torch.float64)
    w = torch.stack([angle.cos(), angle.sin()])
    for step in (*ex.deepz_projections(), *ex.fused_projections()):
        inside = (step.samples @ w).amax(0) <= (step.outline @ w).amax(0) + 1e-9
        assert bool(inside.all()), step.title


def test_zonogon_is_the_boundary():
    g = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    corners = ex.zonogon(torch.zeros(2, dtype=torch.float64), g)
    angle = torch.linspace(0, 2 * torch.pi, 50, dtype=torch.float64)
    w = torch.stack([angle.cos(), angle.sin()])
    torch.testing.assert_close((corners @ w).amax(0), (g @ w).abs().sum(0), rtol=1e-9, atol=1e-9)
    assert from_promoted(ex.CENTRE, torch.zeros(2, 1, 2).double(), pool=9).m == 0
