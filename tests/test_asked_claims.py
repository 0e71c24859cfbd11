"""Claims that are asked for by name: targets, the k largest, signs, rows. Each is held against its definition."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import zonogpt
from builders import generator, image_model, text_classifier
from program import zono
from zonogpt.cli.options import number, two_numbers
from zonogpt.errors import CertificateError
from zonogpt.model.nodes import Head
from zonogpt.spec.claims import TopClaim, interval_claim, margin_claim, top_claim
from zonogpt.support.numbers import exact

IMAGES, TEXTS = zonogpt.load(image_model()), zonogpt.load(text_classifier())
IMAGE = torch.rand(6, 4, generator=generator(5), dtype=torch.float64)


def ball(radius=1e-4, **asked):
    return zonogpt.image_ball(IMAGES, IMAGE, radius, **asked)


def output(spec):
    wide = IMAGES.converted(IMAGES.device, torch.float64)
    return wide.forward(spec.input.embed(spec.input.anchor))


def test_top_k_is_what_it_says():
    """On random outputs, ties included: by definition, fewer than k rivals reach the label."""
    g = generator(1)
    for _ in range(300):
        n = int(torch.randint(3, 7, (1,), generator=g))
        y = torch.randint(-2, 3, (n,), generator=g).double()
        label, k = int(torch.randint(0, n, (1,), generator=g)), int(torch.randint(1, n, (1,), generator=g))
        claim = top_claim(label, n, k)
        rows = claim.margins(y)
        holds = int((y >= y[label]).sum()) - 1 < k
        assert claim.proved(rows) == holds
        assert (float(claim.value(rows)) > 0) == holds
        assert claim.broken(rows < 0) == (int((y > y[label]).sum()) >= k)
        assert float(rows[claim.deciding_row(rows)]) == float(claim.value(rows))


def test_top_k_as_groups():
    """The same claim, written out: of every k rivals, one stays below."""
    spec = ball()
    n = IMAGES.n_outputs
    rows = margin_claim(0, n).margins(torch.eye(n).double()).T
    groups = list(itertools.combinations(range(n - 1), 2))
    written = spec.with_claim(rows, [0.0] * (n - 1), groups)
    asked = ball(label=0, top_k=2)
    for _ in range(50):
        margins = written.claim.margins(torch.randn(n, dtype=torch.float64))
        assert written.claim.proved(margins) == asked.claim.proved(margins)
        assert float(written.claim.value(margins)) == float(asked.claim.value(margins))


def test_a_margin_that_is_nan_proves_nothing():
    claim = top_claim(0, 4, 2)
    assert claim.proved(torch.tensor([1.0, 1.0, float("nan")]))  # one rival may pass
    assert not claim.proved(torch.tensor([1.0, float("nan"), float("nan")]))
    assert claim.value(torch.tensor([1.0, 1.0, float("nan")])).isnan()


@pytest.mark.parametrize("method", ["E", "A", "crown", "ibp"])
def test_top_k_is_proved_where_the_label_alone_is_not(method):
    """The runner-up stays among the two largest, and is not the largest."""
    y = output(ball())
    second = int(y.argsort(descending=True)[1])
    wrong = zonogpt.verify(IMAGES, ball(1e-9, label=second), method=method)
    assert wrong.status == "falsified"
    result = zonogpt.verify(IMAGES, ball(1e-9, label=second, top_k=2), method=method, attack=True)
    assert result.verified
    assert result.label is None
    assert "stays among the 2 largest outputs" in result.claim
    third = int(y.argsort(descending=True)[2])
    assert zonogpt.verify(IMAGES, ball(1e-9, label=third, top_k=2), method=method).status == "falsified"


def test_no_proof_of_top_k_survives_an_attack():
    for radius in (1e-3, 1e-2, 1e-1, 1.0):
        for k in (1, 2):
            spec = ball(radius, top_k=k)
            result = zonogpt.verify(IMAGES, spec)
            found = zonogpt.attack(IMAGES, spec)
            assert not (result.verified and found.broken)
            assert (found.margins >= result.margins - 1e-9).all()


def test_top_one_is_the_label():
    assert ball(top_k=1) == ball()
    assert isinstance(ball(top_k=2).claim, TopClaim)


def test_certificates_have_no_words_for_top_k(tmp_path):
    with pytest.raises(CertificateError, match="not every row need hold"):
        zonogpt.write_certificate(IMAGES, ball(1e-9, top_k=2), tmp_path / "x.cert")


def test_targets_are_rivals_alone():
    y = output(ball())
    label = int(y.argmax())
    rivals = [k for k in range(IMAGES.n_outputs) if k != label]
    whole = zonogpt.verify(IMAGES, ball())
    for target in rivals:
        one = zonogpt.verify(IMAGES, ball(target=target))
        assert one.margins.shape == (1,)
        assert float(one.margins[0]) == pytest.approx(float(whole.margins[rivals.index(target)]), rel=1e-9)
    both = ball(target=rivals)
    assert both.claim.words == f"label {label} stays above {', '.join(map(str, rivals))}"
    for wrong in (label, [], [rivals[0], rivals[0]], 99):
        with pytest.raises(zonogpt.SpecError):
            ball(target=wrong)


def test_signs_are_kept():
    spec = ball(1e-9, keep_sign=True)
    margins = spec.claim.margins(output(spec))
    assert torch.equal(margins, output(spec).abs())
    assert zonogpt.verify(IMAGES, spec).verified


def test_a_claim_is_one_of_them():
    for asked in ({"target": 1, "top_k": 2}, {"keep_sign": True, "label": 1}, {"interval": (0, 1), "top_k": 1}):
        with pytest.raises(zonogpt.SpecError, match=r"a claim is one of|not both"):
            ball(**asked)
    for k in (0, 3, True, 1.0):
        with pytest.raises(zonogpt.SpecError, match="top_k must lie in 1"):
            ball(top_k=k)
    with pytest.raises(zonogpt.SpecError, match="keep_sign is True or False"):
        ball(keep_sign=1)


def test_the_command_line_asks_the_same(tmp_path):
    image_model().save_pretrained(tmp_path / "model")

    np.save(tmp_path / "image.npy", IMAGE.numpy())
    rows = {"rows": [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]], "offset": [9.0, 9.0], "groups": [[0, 1]]}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    label = int(output(ball()).argmax())
    other = (label + 1) % 3
    for extra, spec in (
        (("--target", other), ball(target=other)),
        (("--top-k", 2), ball(top_k=2)),
        (("--keep-sign",), ball(keep_sign=True)),
        (("--rows", tmp_path / "rows.json"), ball().with_claim(**rows)),
        (("--label", other, "--top-k", 2), ball(label=other, top_k=2)),
    ):
        run = zono("verify", tmp_path / "model", "--image", tmp_path / "image.npy", "--radius", "1e-4", *extra,
                   "--json", tmp_path / "out.json")  # fmt: skip
        found = zonogpt.Result.from_json((tmp_path / "out.json").read_text())
        wanted = zonogpt.verify(IMAGES, spec)
        assert found.status == wanted.status, run.stderr
        assert found.claim == wanted.claim
        assert torch.equal(found.margins, wanted.margins)
    for bad in ('{"rows": [[1]]}', "[1]", "{", '{"rows": [[1, 2, 3]], "offset": [1], "more": 1}'):
        (tmp_path / "rows.json").write_text(bad)
        run = zono("verify", tmp_path / "model", "--image", tmp_path / "image.npy", "--radius", "1e-4",
                   "--rows", tmp_path / "rows.json")  # fmt: skip
        assert run.returncode == 2, bad
        assert run.stderr.startswith("error: ")
        assert run.stderr.count("\n") == 1


def test_functionals_of_top_k_are_those_of_its_margins():
    g = generator(3)
    head = Head(None, "last", torch.randn(4, 5, generator=g), torch.randn(5, generator=g))
    asked, plain = top_claim(2, 5, 3), margin_claim(2, 5)
    for ours, theirs in zip(asked.functionals(head), plain.functionals(head), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(asked.functional_sizes(head), plain.functional_sizes(head))
    y = torch.rand(5, generator=g)
    assert torch.equal(asked.spread(y), plain.spread(y))
    assert torch.equal(asked.magnitude(y), plain.magnitude(y))


def test_a_fraction_is_rounded_up():
    for text in ("8/255", "1/3", "2/3", "1/10", "0.5/255", "1e-3/7"):
        above, below = map(Fraction, text.split("/"))
        found = number(text, "--radius")
        assert Fraction(found) >= above / below > Fraction(math.nextafter(found, 0))
    assert number("1/4", "--radius") == 0.25


def test_a_fraction_is_a_radius(tmp_path):
    run = zono("verify", "zoo:digits", "--image", "zoo:digits/0", "--radius", "1/1024", "--json", tmp_path / "r.json")
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "r.json").read_text())["radius"] == 2**-10
    for bad in ("1/0", "a/b", "1/2/3", ""):
        run = zono("verify", "zoo:digits", "--image", "zoo:digits/0", "--radius", bad)
        assert (run.returncode, "as 0.01 or 8/255" in run.stderr) == (2, True)


def test_words_say_no_more_than_is_claimed():
    assert exact(0.001) == "0.001"
    assert exact(0.00099999996) == "0.00099999996"
    assert interval_claim((0.2, 0.50000049), 1).words == "the output stays between 0.2 and 0.50000049"
    spec = ball(0.00099999996)
    assert "radius 0.00099999996" in repr(spec)
    assert "radius 0.00099999996" in repr(zonogpt.verify(IMAGES, spec))


def test_an_interval_has_no_fractions():
    with pytest.raises(zonogpt.OptionError, match="LOW,HIGH"):
        two_numbers("0,1/3", "--interval")


def test_numbers_of_numpy_and_torch_are_numbers():
    assert ball(label=0, target=torch.tensor(1)) == ball(label=0, target=np.int64(1)) == ball(label=0, target=1)
    assert ball(label=0, top_k=np.int64(2)) == ball(label=0, top_k=2)
