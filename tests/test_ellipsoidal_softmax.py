"""Softmax of method E: the exact formula, its slopes and errors, and the traps of exponentials."""

import math

import pytest
import torch

from builders import generator, randn
from zonogpt.domains.ellipsoidal import support
from zonogpt.transforms.ellipsoidal.softmax import chord_of_psi, log_phi, psi
from zonogpt.transforms.ellipsoidal.softmax import largest_zeta as zeta_of_rounded_row
from zonogpt.transforms.ellipsoidal.softmax import softmax_step as step_of_rounded_row
from zonogpt.transforms.softmax import softmax_deviation

WIDTHS = torch.cat([torch.logspace(-9, 1.3, 60), torch.tensor([0.0, 0.4999, 0.5, 0.5001, 1.0])]).double()


def softmax_step(log_P, *bounds):
    """The step of a row whose probabilities count as exact."""
    return step_of_rounded_row(log_P, *bounds, torch.zeros_like(log_P[..., 0]))


def largest_zeta(log_P, *bounds):
    return zeta_of_rounded_row(log_P, *bounds, torch.zeros_like(log_P[..., 0]))


def exact_psi(t):
    """e^t - 1 - t without cancellation: by its series below 1, else directly."""
    term, total = t.square() / 2, torch.zeros_like(t)
    for k in range(3, 40):
        total = total + term
        term = term * t / k
    return torch.where(t.abs() < 1, total, torch.expm1(t) - t)


def test_psi_is_an_upper_bound_and_sharp():
    t = torch.cat([WIDTHS, -WIDTHS])
    assert (psi(t) >= exact_psi(t)).all()
    torch.testing.assert_close(psi(t), exact_psi(t), rtol=2e-6, atol=0.0)


def test_phi_is_an_upper_bound_and_sharp():
    phi = torch.where(WIDTHS > 0, 2 * exact_psi(WIDTHS) / WIDTHS.square().clamp(min=1e-300), torch.ones_like(WIDTHS))
    assert (log_phi(WIDTHS).exp() >= phi).all()
    torch.testing.assert_close(log_phi(WIDTHS).exp(), phi, rtol=1e-3, atol=0.0)
    assert log_phi(torch.tensor(5000.0)).isfinite()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_chord_of_psi(dtype):
    chord, middle, half = (x.double() for x in chord_of_psi(WIDTHS.to(dtype)))
    for share in torch.linspace(-1, 1, 201).double():
        t = share * WIDTHS.to(dtype).double()
        assert ((exact_psi(t) - chord * t - middle).abs() <= half * (1 + 1e-9)).all()
    # The ends attain it.
    ends = exact_psi(WIDTHS) - chord * WIDTHS - middle
    torch.testing.assert_close(ends, half, rtol=1e-4, atol=1e-20)


def case(seed, S, width, heavy=0.0, rank=3):
    """log P, a factor of the linear score changes (already centred), bounds R_U, and |v'| of one."""
    g = generator(seed)
    U = randn(g, 1, 1, 1, S)
    U[..., 0] += heavy
    log_P = U.log_softmax(-1)
    P = log_P.exp()
    F = randn(g, 1, 1, 1, S, rank)
    F = F - (P[..., None, :] @ F)
    F = F * width / F.norm(dim=-1).mean()
    R_U = 0.3 * width * torch.rand(1, 1, 1, S, generator=g).double()
    return log_P, F, R_U


def movements(log_P, F, R_U, seed):
    """Centred score changes: the linear part in the ellipsoid F, the products within R_U; (N, S) each."""
    g = generator(seed)
    a = randn(g, 4000, F.shape[-1])
    a = a / a.norm(dim=-1, keepdim=True)
    a[:100] *= torch.rand(100, 1, generator=g).double()
    rows = F[0, 0, 0]
    pick = rows[torch.randint(len(rows), (1000,), generator=g)]
    a[1000:2000] = pick / (pick.norm(dim=-1, keepdim=True) + 1e-300)  # the extreme of one key
    linear = a @ rows.T
    r = R_U[0, 0, 0] * (2 * torch.rand(4000, rows.shape[0], generator=g).double() - 1).sign()
    r[2000:2500] = 0.0
    return linear, r


@pytest.mark.parametrize("heavy", [0.0, 4.0, 12.0])
@pytest.mark.parametrize("width", [1e-4, 0.1, 0.4, 0.7, 1.5, 4.0])
@pytest.mark.parametrize(("rank", "products"), [(1, 0.0), (1, 1.0), (3, 1.0)])
@pytest.mark.parametrize("seed", range(3))
def test_contract_of_the_step(seed, rank, products, width, heavy):
    log_P, F, R_U = case(seed, 2 + 2 * seed, width, heavy, rank)
    R_U = products * R_U
    P = log_P.exp()[0, 0, 0]
    step = softmax_step(log_P, F.norm(dim=-1), R_U, F @ F.mT, torch.ones_like(log_P))
    linear, moved = movements(log_P, F, R_U, seed)
    mean = (moved @ P)[:, None]
    delta = linear + moved - mean
    Z = (P * delta.exp()).sum(-1, keepdim=True)
    zeta, p = 1 - 1 / Z, P * delta.exp() / Z
    rest = R_U + (P * R_U).sum()
    assert (zeta[:, 0] <= largest_zeta(log_P, F.norm(dim=-1) + rest, rest, F @ F.mT) + 1e-9).all()
    names = ("slope", "shift", "common", "error", "scores", "total", "residual")
    slope, shift, common, error, scores, total, residual = (getattr(step, name)[0, 0, 0] for name in names)
    assert (zeta[:, 0] <= step.zeta[0, 0, 0] + 1e-9).all()
    assert ((p - P).abs() <= total + 1e-12).all()
    assert ((p - P - P * linear).abs() <= residual + 1e-12).all()
    # The coefficients of v' are determined up to a multiple of P, for sum_j P_j v'_j = 0.
    sloped = bool((slope != 0).any())
    exact = P * (delta + (1 - zeta) * exact_psi(delta) - zeta * delta + mean) if sloped else p - P
    left = exact - P * slope * linear - shift
    # One xi in [-1, 1] serves all keys: the intervals that the keys allow must meet.
    room, used = error + scores + 1e-14, common > 1e-9
    low = torch.where(used, (left - room) / common.clamp(min=1e-300), -1.0).amax(-1)
    high = torch.where(used, (left + room) / common.clamp(min=1e-300), 1.0).amin(-1)
    assert (low <= high + 1e-6).all()
    assert (low <= 1 + 1e-6).all()
    assert (high >= -1 - 1e-6).all()
    assert (left.abs() <= room + common + 1e-12).all()


@pytest.mark.parametrize("seed", range(3))
def test_bounds_are_attained_up_to_a_factor(seed):
    """For small changes the error is just half of the second-order term's range."""
    log_P, F, R_U = case(seed, 4, 1e-3)
    step = softmax_step(log_P, F.norm(dim=-1), 0 * R_U, F @ F.mT, torch.ones_like(log_P))
    W, P = F.norm(dim=-1), log_P.exp()
    torch.testing.assert_close(step.error, P * W.square() / 4, rtol=0.01, atol=0.0)
    torch.testing.assert_close(step.slope, torch.ones_like(P), rtol=0.0, atol=1e-5)


def test_a_key_far_below_the_smallest_float_may_wake_up():
    """P_1 < e^-60 and W_1 > 60: an exponent clamped before log P is added would hide a heavy key."""
    log_P = torch.tensor([0.0, -70.0]).double().log_softmax(-1).reshape(1, 1, 1, 2)
    linear = torch.tensor([1e-6, 75.0]).double().reshape(1, 1, 1, 2)
    gram = torch.diag_embed(linear.square())
    step = softmax_step(log_P, linear, torch.zeros_like(linear), gram, torch.ones_like(linear))
    assert float(step.total[..., 1]) > 0.98
    assert float((step.error + step.scores)[..., 1]) > 0.98 or float(step.slope[..., 1]) > 0
    for dtype in (torch.float32, torch.float64):
        far = softmax_step(*(x.to(dtype) for x in (log_P * 10, linear * 10, 0 * linear, 100 * gram, linear * 0 + 1)))
        for name in ("slope", "shift", "common", "error", "scores", "total", "residual"):
            value = getattr(far, name)
            assert not value.isnan().any(), name
        assert float(far.total[..., 1]) > 0.98  # log P = -700, W = 750
        assert float((far.error + far.scores)[..., 1]) > 0.98


def test_a_key_falls_when_only_others_move():
    """P = (1/2, 1/4, 1/4), scores moving by (0, w, -w): the first key keeps its score, but falls because Z grows."""
    P = torch.tensor([0.5, 0.25, 0.25]).double()
    F = torch.tensor([0.0, 1.0, -1.0]).double().reshape(1, 1, 1, 3, 1)
    step = softmax_step(
        P.log().reshape(1, 1, 1, 3), F.abs()[..., 0], 0 * F[..., 0], F @ F.mT, torch.ones(1, 1, 1, 3).double()
    )
    p = (P.log() + F[0, 0, 0, :, 0]).softmax(-1)
    assert ((p - P).abs() <= step.total[0, 0, 0] + 1e-12).all()
    assert float((P - p)[0]) > 0.1


def test_masked_keys_take_no_part():
    log_P = torch.tensor([0.3, -0.2, -math.inf]).double().log_softmax(-1).reshape(1, 1, 1, 3)
    linear = torch.tensor([0.2, 0.3, 0.0]).double().reshape(1, 1, 1, 3)
    step = softmax_step(log_P, linear, 0 * linear, torch.diag_embed(linear.square()), torch.ones_like(linear))
    for name in ("slope", "shift", "common", "error", "scores", "total", "residual"):
        assert float(getattr(step, name)[..., 2]) == 0.0, name


def test_largest_zeta_uses_all_keys_together():
    """Keys that cannot all move at once: the Gram knows, the single bounds do not."""
    S = 12
    log_P = torch.zeros(1, 1, 1, S).double().log_softmax(-1)
    F = torch.eye(S).double().reshape(1, 1, 1, S, S) - 1 / S
    W = F.norm(dim=-1)
    together = largest_zeta(log_P, W, 0 * W, F @ F.mT)
    apart = largest_zeta(log_P, W, 0 * W, 1e6 * torch.eye(S).double().expand(1, 1, 1, S, S))
    assert float(together) < 0.3 * float(apart)
    assert support(F @ F.mT, torch.eye(S).double()[None, None, None]).shape == (1, 1, 1, S)


@pytest.fixture
def flushed():
    """Numbers below the smallest normal one become 0."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    yield
    torch.set_flush_denormal(False)


def sleeping_key(reach, level=-708.9):
    """A key with log P = `level` that wakes up when its score rises by up to `reach`; values 0 and 1."""
    log_P = torch.tensor([0.0, level], dtype=torch.float64).reshape(1, 1, 1, 2).log_softmax(-1)
    W = torch.tensor([0.0, reach], dtype=torch.float64).reshape(1, 1, 1, 2)
    value = torch.tensor([0.0, 1.0], dtype=torch.float64)
    moves = value - (log_P.exp()[0, 0, 0] * value).sum()
    step = softmax_step(log_P, W, torch.zeros_like(W), torch.diag_embed(W.square()), moves.abs().expand_as(W))
    return log_P, W, value, moves, step


@pytest.mark.parametrize("reach", [1.0, 600.0, 705.0, 708.0])
@pytest.mark.parametrize("level", [-708.0, -708.9, -720.0, -744.0, -800.0])
def test_a_key_that_underflowed_has_no_slope(flushed, reach, level):
    """Its slope may be 1e303 and its computed P is 0: their product does not describe how it moves."""
    log_P, W, value, moves, s = sleeping_key(reach, level)
    P = log_P.exp()
    for share in torch.linspace(-1, 1, 201, dtype=torch.float64):
        change = (W * share)[0, 0, 0]
        truth = ((log_P[0, 0, 0] + change).softmax(-1) * value).sum() - (P[0, 0, 0] * value).sum()
        linear = (P * s.slope)[0, 0, 0] @ (change * moves) + s.shift[0, 0, 0] @ moves
        error = (s.error + s.scores)[0, 0, 0] @ moves.abs() + (s.common[0, 0, 0] @ moves).abs()
        assert float((truth - linear).abs()) <= float(error) * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 10, 300])
@pytest.mark.parametrize("width", [0.1, 1.5, 30.0])
def test_hidden_keys_change_no_bound(width, count):
    """Only the order of sums may differ, which is a unit or two; a term that counts hidden keys is a thousand."""
    log_P, F, R_U = case(1, 5, width)

    def step(hidden):
        rows = [torch.nn.functional.pad(x, (0, hidden)) for x in (F.norm(dim=-1), R_U)]
        gram = torch.nn.functional.pad(F @ F.mT, (0, hidden, 0, hidden))
        log_of = torch.nn.functional.pad(log_P, (0, hidden), value=-math.inf)
        return softmax_step(log_of, *rows, gram, torch.ones_like(log_of))

    alone, among = step(0), step(count)
    torch.testing.assert_close(among.zeta, alone.zeta, rtol=2e-15, atol=0.0)
    for name in ("sloped", "slope", "shift", "common", "error", "scores", "total", "residual", "W"):
        one, many = getattr(alone, name), getattr(among, name)
        torch.testing.assert_close(many if name == "sloped" else many[..., :5], one, rtol=2e-15, atol=0.0)


def test_keys_without_a_slope_in_a_row_with_slopes():
    """Such a key adds dp_j + zeta P_j + P_j <e> to the row, not dp_j alone: |e| <= R_U, P_j below the smallest normal
    number."""
    tiny = torch.finfo(torch.float64).tiny
    log_P = torch.tensor([0.0, 0.0, math.log(tiny) - 7], dtype=torch.float64).log_softmax(-1).reshape(1, 1, 1, 3)
    F = torch.tensor([0.5, -0.5, 0.0], dtype=torch.float64).reshape(1, 1, 1, 3, 1)
    R_U = torch.tensor([0.1, 0.1, 0.0], dtype=torch.float64).reshape(1, 1, 1, 3)
    s = softmax_step(log_P, F.abs()[..., 0], R_U, F @ F.mT, torch.ones_like(R_U))
    assert bool(s.sloped)
    assert float(s.slope[..., 2]) == 0.0
    needed = softmax_deviation(log_P, s.W) + tiny * (1 + (log_P.exp() * R_U).sum())
    assert float(s.error[..., 2]) >= float(needed[..., 2])


@pytest.mark.parametrize("width", [0.3, 1.0])
def test_the_middle_of_a_row_is_that_of_both_ends_of_zeta(width):
    """Without (1 - zeta_0) the shift would still be sound, because mu is at most nu: only its value tells."""
    log_P, F, R_U = case(2, 4, width)
    step = softmax_step(log_P, F.norm(dim=-1), 0 * R_U, F @ F.mT, torch.ones_like(log_P))
    assert bool(step.sloped)
    _, middle, half = chord_of_psi(step.W)
    assert (middle < half).all()
    zeta = step.zeta[..., None]
    assert float(zeta) > 0.01
    torch.testing.assert_close(step.shift + step.common, log_P.exp() * middle)
    torch.testing.assert_close(step.shift - step.common, log_P.exp() * (1 - zeta) * middle)
