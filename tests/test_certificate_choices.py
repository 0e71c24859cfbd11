"""The checker accepts what the prover proves of ordinary models, and no choice in the file makes it accept more."""

import collections
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import zonogpt
import zonogpt.verification.certificate
from certified import contents, rewritten
from program import zono
from tiny_models import NORMS, awkward, image, ordinary, saved
from zonogpt.errors import CertificateError, OptionError
from zonogpt_check.attention import Attention
from zonogpt_check.ball import Ball
from zonogpt_check.certificate import Lines
from zonogpt_check.check import check
from zonogpt_check.norm import Norm
from zonogpt_check.sets import InvalidError, UnreadableError, cover, sum_of


def outcome(made, folder):
    """The outcome of writing a proof as a certificate."""
    try:
        model, spec = saved(made, folder)
    except zonogpt.ZonoGptError:
        return "no spec"
    if zonogpt.verify(model, spec).status != "verified":
        return "not proved"
    file = folder / "c"
    file.unlink(missing_ok=True)
    try:
        zonogpt.write_certificate(model, spec, file, check=False)
    except CertificateError:
        assert not file.exists()
        return "no room"
    check(file, folder)
    return "valid"


def count(population, folder):
    found = collections.Counter()
    for k, made in enumerate(population):
        try:
            found[outcome(made, folder)] += 1
        except InvalidError as error:
            pytest.fail(f"number {k}: {error}")
    return found


@pytest.mark.parametrize("norm", NORMS)
def test_ordinary_models_of_width_two(norm, tmp_path):
    """LayerNorm of two features leaves only a sign: whole blocks move by rounding alone, and enclosures are tied."""
    population = (ordinary(seed, 2, norm, times) for seed in (0, 3, 10, 11) for times in (1.0, 10.0))
    assert count(population, tmp_path) == {"valid": 8}


def test_tiny_images(tmp_path):
    """In number 110 only rounding moves the scores; in number 142 the range makes a loss negative."""
    assert count(map(image, [*range(10), 110, 142]), tmp_path)["valid"] >= 11


def test_awkward_texts(tmp_path):
    assert count(map(awkward, range(24)), tmp_path)["valid"] >= 18


@pytest.mark.slow
def test_many_ordinary_models(tmp_path):
    sizes = [(width, norm, times) for width in (2, 8, 16) for norm in NORMS for times in (1.0, 10.0)]
    assert count((ordinary(seed, *size) for size in sizes for seed in range(12)), tmp_path) == {"valid": 216}


@pytest.mark.slow
def test_many_tiny_images(tmp_path):
    assert count(map(image, range(300)), tmp_path)["valid"] > 285


@pytest.mark.slow
def test_many_awkward_texts(tmp_path):
    """Where numbers of 1e10 meet an epsilon of 1e-30, a proof may find no room; but every written file is accepted."""
    found = count(map(awkward, range(500)), tmp_path)
    assert found["no room"] <= 10
    assert found["valid"] > 400


CHOICES = r".*\.(t(_\w+)?|\w+_round|flat|hull|sloped|polar|rows|shift|slope|mid)"


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    """A certificate of the l_1 norm, which has every choice there is, and one with rows that have no slope."""
    out = []
    for norm, radius in ((1.0, 1e-3), (math.inf, 0.3)):
        folder = tmp_path_factory.mktemp("model")
        model, spec = saved(ordinary(3, 8, norm, 10.0), folder)
        ids = spec.input.embed.ids.tolist()
        spec = zonogpt.embedding_ball(model, ids, [0, len(ids) - 1], radius, norm=norm)
        spec = spec.with_claim([[1.0, -1.0, 0.0]], [100.0])  # holds, however wide the bounds
        zonogpt.write_certificate(model, spec, folder / "c")
        out.append((model, spec, folder))
    return out


def stopped(file, folder):
    with pytest.raises((InvalidError, UnreadableError)) as caught:
        check(file, folder)
    return str(caught.value)


def test_every_choice_has_its_type_and_its_shape(proved):
    """Weights are positive and finite, flags are flags, and none is left out, moved or of another size."""
    _, _, folder = proved[0]
    arrays, about = contents(folder / "c")
    kinds = {n.rsplit(".", 1)[1]: n for n in sorted(arrays, reverse=True) if re.fullmatch(CHOICES, n)}
    kinds["rows"] = "block 1 (attention).rows"
    for kind, name in kinds.items():
        choice = arrays[name]
        changed = [choice[..., :-1], choice.astype(np.float32), None]
        if choice.dtype == np.float64 and kind.startswith("t"):
            for bad in (0.0, -1.0, np.inf):
                other = choice.copy()
                other.flat[-1] = bad
                changed.append(other)
        for other in changed:
            tampered = {k: x for k, x in arrays.items() if k != name} | ({} if other is None else {name: other})
            assert stopped(rewritten(folder / "c", tampered, about), folder).startswith(name), name
    norm, attention = {"t_deviation", "t_error", "symbols_round", "flat", "sloped", "polar", "shift"}, {"rows", "hull"}
    attention |= {
        "t_keys",
        "t_errors",
        "t_scores",
        "t_values",
        "t_products",
        "t_softmax",
        "t_fresh",
        "t_own",
        "t_local",
    }
    attention |= {"t_crossed", "t_merged", "scores_round", "values_round"}
    assert set(kinds) == norm | attention | {"slope", "mid", "t", "t_box"}


def test_the_old_format_is_refused(proved):
    _, _, folder = proved[0]
    old = (folder / "c").read_bytes().replace(b"zonogpt certificate 2", b"zonogpt certificate 1")
    (folder / "old").write_bytes(old)
    assert stopped(folder / "old", folder).endswith("is not a 'zonogpt certificate 2'")


class Filled(Lines):
    """A certificate whose claims are whatever the checker needs: only its choices decide what is proved."""

    least: np.ndarray

    def of(self, part):
        return Filled(self.certificate, f"{self.place}.{part}")

    def at_least(self, name, bound):
        super().at_least(name, Ball(np.zeros(bound.shape)))
        return Ball(bound.upper())

    def require(self, name, holds, what, *numbers):
        if name == "margins" and len(numbers) == 2:
            Filled.least = numbers[1]
        if (self.place.endswith(".loss") or name == "zeta") and len(numbers) == 2:
            numbers[0][...] = numbers[1]  # the claim is used next
        elif name != "margins" or len(numbers) < 2:
            super().require(name, holds, what, *numbers)


def chosen(arrays, kind, wide, rng):
    """Other choices of one kind: weights larger or smaller by up to a factor of three, any flags; and larger sets."""
    out = dict(arrays)
    for name in (n for n in arrays if n.rsplit(".", 1)[1] == kind and n != "claim.rows"):
        if arrays[name].dtype == np.bool_:
            out[name] = rng.random(arrays[name].shape) < 0.5
        elif kind == "shift":
            out[name] = arrays[name] * rng.uniform(-2, 2, arrays[name].shape)
        else:
            out[name] = arrays[name] * 3 ** rng.uniform(-1, 1, arrays[name].shape)
    for name in (n for n in arrays if re.fullmatch(r"block .*\.Q", n)):
        number = int(name.split()[1])  # sets behind larger sets are larger still
        size = np.trace(arrays[name], axis1=1, axis2=2)[:, None, None]
        out[name] = wide**number * (arrays[name] + 0.1 * size * np.eye(arrays[name].shape[-1]))
    return out


def lowest(model, spec, samples):
    """The smallest value of the claim's row at random points of the set, many of them extreme."""
    g = torch.Generator().manual_seed(0)
    box = spec.input
    worst = math.inf
    for k in range(samples):
        noise = torch.randn(*box.anchor.shape, generator=g, dtype=torch.float64)
        if spec.input.norm == 1.0:
            at = int(torch.randint(noise.numel(), (), generator=g))
            noise = (
                torch.zeros_like(noise).flatten().index_fill(0, torch.tensor([at]), 1.0 - 2 * (k % 2)).view_as(noise)
            )
        else:
            noise = noise.sign()
        raw = box.anchor.double() + spec.radius * noise
        value = model.source.on_embeddings(box.embed.ids, box.embed.positions, raw, torch.float64)
        worst = min(worst, float(value[0] - value[1]) + 100.0)
    return worst


def test_whatever_is_chosen_the_bound_holds(proved, monkeypatch):
    """The checker computes all claims itself here, from random choices: its margin never exceeds what is attained."""
    for name in ("norm", "attention", "mlp", "softmax", "inputs", "check"):
        monkeypatch.setattr(f"zonogpt_check.{name}.Lines", Filled)
    accepted, finite = set(), 0
    for model, spec, folder in proved:
        attained = lowest(model, spec, 60)
        arrays, about = contents(folder / "c")
        kinds = sorted({n.rsplit(".", 1)[1] for n in arrays if re.fullmatch(CHOICES, n)} - {"slope", "mid"})
        for (seed, kind), wide in itertools.product(enumerate(kinds), (2.0, 100.0, 3000.0)):
            Filled.least = np.array([np.inf])
            file = rewritten(folder / "c", chosen(arrays, kind, wide, np.random.default_rng(seed)), about)
            try:
                check(file, folder)
            except InvalidError as error:
                if ".Q[" not in str(error):
                    raise
                continue  # too small for this choice, or for its centre
                continue
            assert Filled.least <= attained
            accepted.add(kind)
            finite += int(np.isfinite(Filled.least[0]))
    assert len(accepted) >= 20  # the others would need other centres, too
    assert finite >= 50


@pytest.mark.parametrize("p", NORMS)
def test_covers_contain_their_set_by_any_choice(p):
    """Both covers of an l_1 ball, and sums with any weights."""
    rng = np.random.default_rng(0)
    T = rng.normal(size=(40, 5, 3)) * np.exp(rng.normal(size=(40, 5, 1)))
    eps = rng.normal(size=(200, 5))
    length = np.abs(eps).max(-1) if p == math.inf else np.linalg.norm(eps, ord=p, axis=-1)
    points = (eps / length[:, None]) @ T  # (40, 200, 3)
    Q = np.einsum("kab,kcb->kac", *[rng.normal(size=(40, 3, 3))] * 2)
    extra = np.einsum("kab,knb->kna", np.linalg.cholesky(Q), rng.normal(size=(40, 200, 3)))
    extra /= np.sqrt(np.einsum("kna,kab,knb->kn", extra, np.linalg.inv(Q), extra))[..., None]
    for round_ in [None] if p != 1 else [np.zeros(40, bool), np.ones(40, bool)]:
        gram = cover(Ball(T), p, round_)
        for ask, members in ((gram, points), (sum_of([gram, Ball(Q)], rng.uniform(0.01, 10, (2, 40))), points + extra)):
            inside = np.einsum("kna,kab,knb->kn", members, np.linalg.inv(ask.mid), members)
            assert inside.max() <= 1 + 1e-9


def test_a_hull_is_for_rows_without_a_slope_only(proved, monkeypatch):
    """The flag of a row with a slope changes nothing."""
    _, _, folder = proved[0]
    arrays, about = contents(folder / "c")
    name = "block 1 (attention).hull"
    assert arrays["block 1 (attention).rows"].any()
    grams = []
    kept = Attention.__init__

    def noting(self, *args):
        kept(self, *args)
        grams.append(self.softmax.cover(Ball(np.ones((*self.P.shape, 4)))).mid[self.softmax.sloped])

    monkeypatch.setattr(Attention, "__init__", noting)
    for hull in (False, True):
        flags = np.where(arrays["block 1 (attention).rows"], hull, arrays[name])
        file = rewritten(folder / "c", arrays | {name: flags}, about)
        check(file, folder)
    assert np.array_equal(grams[0], grams[2])


def test_a_token_without_a_slope_is_flat(proved, monkeypatch):
    """Whatever its flags say, only its range is used."""
    _, _, folder = proved[1]
    norms = []
    kept = Norm.__init__

    def noting(self, *args):
        kept(self, *args)
        norms.append(self)

    monkeypatch.setattr(Norm, "__init__", noting)
    check(folder / "c", folder)
    dropped = [norm for norm in norms if not norm.sloped.all()]
    assert dropped
    for norm in dropped:
        functionals, rows = np.ones((1, *norm.z.c.shape)) * np.arange(norm.z.c.shape[-1]), np.array([0])
        pulled = []
        for flag in (False, True):
            norm.flat = np.where(norm.sloped, True, flag)[None]
            pulled.append([x.mid for x in norm.pull(functionals, rows)])
        assert all(np.array_equal(one, other) for one, other in zip(*pulled, strict=True))


def test_what_the_checker_rejects_is_not_written(tmp_path, monkeypatch):
    model, spec = saved(ordinary(0, 8, math.inf), tmp_path / "model")
    kept = zonogpt.verification.certificate._packed

    def damaged(arrays, about):
        return kept(arrays | {"block 2 (mlp).radius": arrays["block 2 (mlp).radius"] * 0.5}, about)

    monkeypatch.setattr(zonogpt.verification.certificate, "_packed", damaged)
    with pytest.raises(CertificateError, match=r"its checker rejects it: block 2 \(mlp\)\.radius\[0, 0\] is too small"):
        zonogpt.write_certificate(model, spec, tmp_path / "c")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    (tmp_path / "c").write_text("an older one")
    with pytest.raises(CertificateError):
        zonogpt.write_certificate(model, spec, tmp_path / "c")
    assert (tmp_path / "c").read_text() == "an older one"
    zonogpt.write_certificate(model, spec, tmp_path / "c", check=False)
    assert "radius" in stopped(tmp_path / "c", tmp_path / "model")


def test_the_check_reads_the_model_from_the_disk(tmp_path):
    """Weights that were changed in memory after loading are noticed."""
    made = ordinary(0, 8, math.inf)
    model, spec = saved(made, tmp_path / "model")
    with torch.no_grad():
        made[0].transformer.h[0].mlp.c_fc.weight[0, 0] += 1
    made[0].save_pretrained(tmp_path / "model")
    with pytest.raises(CertificateError, match="these are not the weights"):
        zonogpt.write_certificate(model, spec, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_model_object_is_checked_as_it_was_loaded(tmp_path):
    net, spec_of = ordinary(0, 8, math.inf)
    model = zonogpt.load(net)
    said = []
    zonogpt.write_certificate(model, spec_of(model), tmp_path / "c", on_check=lambda: said.append("checking"))
    assert said == ["checking"]
    net.save_pretrained(tmp_path / "model")
    check(tmp_path / "c", tmp_path / "model")


def test_what_cannot_be_checked_says_so(tmp_path):
    model, spec = saved(ordinary(0, 8, math.inf), tmp_path / "model")
    with pytest.raises(OptionError, match="no regular file"):
        zonogpt.write_certificate(model, spec, Path("/dev/null"))
    by_hand = zonogpt.Model(**(vars(model) | {"source": None}))
    with pytest.raises(OptionError, match="put together by hand"):
        zonogpt.write_certificate(by_hand, spec, tmp_path / "c")


def test_on_the_command_line(tmp_path):
    saved(ordinary(0, 2, math.inf), tmp_path / "model")
    ball = ("--ids", "1,2,3", "--positions", "1", "--radius", "1e-5", "--certificate")
    done = zono("verify", tmp_path / "model", *ball, tmp_path / "c")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"certificate: {tmp_path / 'c'}, checked" in done.stdout
    check(tmp_path / "c", tmp_path / "model")
    done = zono("verify", tmp_path / "model", *ball, tmp_path / "d", "--no-check")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"certificate: {tmp_path / 'd'}, not checked" in done.stdout
    check(tmp_path / "d", tmp_path / "model")
