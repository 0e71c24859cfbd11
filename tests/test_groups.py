"""Claims with groups of rows: in every group some row must hold, and not the same one for every input."""

import dataclasses
import itertools
import math

import pytest
import torch

import zonogpt
from builders import generator, image_model, text_classifier
from zonogpt.errors import CertificateError, SpecError
from zonogpt.methods import METHODS
from zonogpt.search.falsify import falsify, replay
from zonogpt.spec.claims import linear_claim, margin_claim
from zonogpt.verification.verdict import judge

MODEL, TEXTS = zonogpt.load(image_model()), zonogpt.load(text_classifier())
IMAGE = torch.rand(6, 4, generator=generator(5), dtype=torch.float64)
WIDE = MODEL.converted(MODEL.device, torch.float64)


def outputs(spec, raw):
    return WIDE.forward(spec.input.embed(raw))


def ball(radius):
    return zonogpt.image_ball(MODEL, IMAGE, radius)


def either_way(spec, gap):
    """Rows and offsets: output 0 is `gap` above its value at the anchor, or `gap` below. True with a gap below zero."""
    here = float(outputs(spec, spec.input.anchor)[0])
    return [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], [-here - gap, here - gap]


@pytest.mark.parametrize("attack", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_true_of_every_input_by_another_row_is_unknown(method, attack):
    """No row is positive everywhere, so nothing is proved; no input breaks both, so nothing is falsified."""
    spec = ball(0.02)
    rows, offset = either_way(spec, -1e-6)
    any_row = spec.with_claim(rows, offset, [[0, 1]])
    found = zonogpt.attack(MODEL, any_row)
    assert (found.margins < 0).all()  # each row is negative somewhere
    assert 0 < found.lowest < 1.1e-6
    assert not found.broken
    result = zonogpt.verify(MODEL, any_row, method=method, attack=attack)
    assert result.status == "unknown"
    assert "not every group has a certified margin" in result.reason
    both = zonogpt.verify(MODEL, spec.with_claim(rows, offset), method=method, attack=True)
    assert both.status == "falsified"  # that both hold is wrong


@pytest.mark.parametrize("method", METHODS)
def test_one_row_that_is_positive_everywhere_is_enough(method):
    spec = ball(1e-9)
    rows, _ = either_way(spec, 0.0)
    here = float(outputs(spec, spec.input.anchor)[0])
    offset = [-here + 0.5, here - 0.5]  # the first is about 0.5, the second about -0.5
    for groups, status in (([[0, 1]], "verified"), ([[1, 0]], "verified"), ([[0], [0, 1]], "verified"),
                           ([[0, 1], [1]], "falsified"), (None, "falsified")):  # fmt: skip
        result = zonogpt.verify(MODEL, spec.with_claim(rows, offset, groups), method=method)
        assert result.status == status, groups
        if status == "verified":
            assert result.margins.sign().tolist() == [1.0, -1.0]
            assert "every group has a certified margin" in result.reason


def test_a_group_all_of_whose_rows_fail_is_falsified_by_a_replayed_input():
    spec = ball(0.02)
    rows, offset = either_way(spec, 0.01)
    at_once = zonogpt.verify(MODEL, spec.with_claim(rows, offset, [[0, 1]]))
    assert at_once.status == "falsified"
    assert "unperturbed input" in at_once.reason
    # The rows of the second group are positive at the anchor, and both negative elsewhere.
    here = outputs(spec, spec.input.anchor)
    reach = zonogpt.attack(MODEL, spec.with_claim([[1.0, 0.0, 0.0]], [0.0])).lowest
    down = 0.5 * (float(here[0]) - reach)
    rows = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    offset = [1.0, -float(here[0]) + down, -2 * float(here[0]) + 1.9 * down]
    hidden = spec.with_claim(rows, offset, [[0, 1], [1, 2]])
    assert zonogpt.verify(MODEL, hidden).status == "unknown"
    result = zonogpt.verify(MODEL, hidden, attack=True)
    assert result.status == "falsified"
    margins = hidden.claim.margins(outputs(hidden, result.counterexample))
    assert margins[0] > 0
    assert (margins[1:] < 0).all()
    assert max(result.replayed.values()) < 0
    assert result.replayed["float64"] == pytest.approx(float(margins[1:].max()), abs=1e-9)
    theirs = hidden.claim.margins(MODEL.source.on_image(result.counterexample, torch.float32))
    assert result.replayed["float32"] == pytest.approx(float(theirs[1:].max()), abs=1e-12)


def test_the_search_lowers_the_largest_row():
    """Each row alone is lowest where the other is high: going down one of them breaks nothing, the largest does."""
    spec = ball(0.3)
    here = outputs(spec, spec.input.anchor)
    up, down = torch.eye(3).double()[0], -torch.eye(3).double()[0]
    lowest = [zonogpt.attack(MODEL, spec.with_claim(r[None], [0.0])).lowest for r in (up, down)]
    middle = (lowest[0] - lowest[1]) / 2  # of what output 0 can be
    assert abs(middle - float(here[0])) > 0.05  # and not what it is
    narrow = 0.02 * (-lowest[1] - lowest[0])
    # One of: above the middle by `narrow`, below it by `narrow`. It is broken in the strip between.
    claim = spec.with_claim(torch.stack([up, down]), [-middle - narrow, middle - narrow], [[0, 1]])
    found = zonogpt.attack(MODEL, claim)
    assert found.broken
    margins = claim.claim.margins(outputs(claim, found.input))
    assert float(margins.max()) == pytest.approx(found.lowest, abs=1e-9)
    assert (found.margins <= margins + 1e-9).all()
    assert zonogpt.verify(MODEL, claim, attack=True).status == "falsified"


def test_all_rows_of_the_group_must_be_broken_by_more_than_rounding():
    spec = zonogpt.embedding_ball(TEXTS, [3, 5, 1, 2], [1], 0.0)
    wide = TEXTS.converted(TEXTS.device, torch.float64)
    here = wide.forward(spec.input.embed(spec.input.anchor))
    rows = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    clear, tie = (-float(here[0]) - 1e-3, -float(here[1]))
    for offset, groups, broken in (
        ([clear, tie], [[0, 1]], False),
        ([clear, tie], None, True),
        ([clear, tie - 1e-3], [[0, 1]], True),
    ):
        claimed = spec.with_claim(rows, offset, groups)
        finding = replay(wide, claimed, TEXTS.source, spec.input.anchor)
        assert (finding.counterexample is not None) == broken
        assert (zonogpt.verify(TEXTS, claimed).status == "falsified") == broken
        assert falsify(wide, claimed, TEXTS.source, steps=1).lowest <= 0
    kept = replay(wide, spec.with_claim(rows, [clear, tie + 1e-3], [[0, 1]]), TEXTS.source, spec.input.anchor)
    assert kept.counterexample is None
    assert kept.lowest == pytest.approx(1e-3, abs=1e-9)  # the group's value, not its lowest row's
    assert (
        "rounding may have moved by"
        in replay(wide, spec.with_claim(rows, [clear, tie], [[0, 1]]), TEXTS.source, spec.input.anchor).said
    )


def test_certificates_refuse_groups_by_name(tmp_path):
    spec = ball(1e-6)
    rows, offset = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [9.0, 9.0]
    with pytest.raises(CertificateError, match="not every row need hold"):
        zonogpt.write_certificate(MODEL, spec.with_claim(rows, offset, [[0, 1]]), tmp_path / "c")
    assert not (tmp_path / "c").exists()
    zonogpt.write_certificate(MODEL, spec.with_claim(rows, offset, [[1], [0]]), tmp_path / "c", check=False)
    assert (tmp_path / "c").exists()  # all rows must hold


GROUPS = [None, [[0, 1, 2]], [[0, 1], [2]], [[0, 2], [1, 2]], [[2], [0, 1], [1, 2, 0]]]


@pytest.mark.parametrize("groups", GROUPS)
def test_what_a_claim_says_of_its_margins(groups):
    claim = linear_claim(torch.eye(3), torch.zeros(3), 3, groups)
    said = [[k] for k in range(3)] if groups is None else groups
    for values in itertools.product((-1.0, 0.0, 2.0, math.inf, -math.inf, math.nan), repeat=3):
        margins = torch.tensor(values, dtype=torch.float64)
        proved = all(any(values[k] > 0 for k in group) for group in said)
        assert claim.proved(margins) == proved
        assert (judge(claim, margins)[0] == "verified") == proved
        broken = any(all(values[k] < 0 for k in group) for group in said)
        assert claim.broken(margins < 0) == broken
        assert not (proved and broken)
        if not margins.isnan().any():
            lowest = min(max(values[k] for k in group) for group in said)
            assert float(claim.value(margins)) == lowest == values[claim.deciding_row(margins)]
            assert (lowest <= 0) == (not proved)
        else:
            assert not claim.value(margins) <= 0
    batch = torch.randn(4, 5, 3, generator=generator(0), dtype=torch.float64)
    assert claim.group_values(batch).shape == (4, 5, len(said))
    assert torch.equal(claim.value(batch)[1, 2], claim.value(batch[1, 2]))


def test_margins_that_are_nan_prove_nothing():
    for claim in (margin_claim(0, 3), linear_claim([[1.0, 0.0]] * 2, [0.0] * 2, 2, [[0, 1]])):
        nothing = torch.tensor([math.nan, math.nan])
        assert not claim.proved(nothing)
        assert not claim.broken(nothing < 0)
        assert judge(claim, nothing)[0] == "unknown"
    assert not claim.proved(torch.tensor([math.nan, 0.0]))


def test_groups_of_one_row_are_no_groups():
    spec = ball(1e-3)
    rows, offset = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0.1, 0.2]
    plain = spec.with_claim(rows, offset)
    assert spec.with_claim(rows, offset, [[1], [0]]) == plain
    assert spec.with_claim(rows, offset, [[0, 1]]) != plain
    assert spec.with_claim(rows, offset, iter([iter([1, 0])])).claim.groups == ((1, 0),)
    assert plain.claim.groups is None
    assert "any row of each of 1 groups" in spec.with_claim(rows, offset, [[0, 1]]).claim.words


@pytest.mark.parametrize(
    "groups", [[], [[]], [[0]], [[0, 1], []], [[0, 0], [1]], [[0, 2]], [[-1, 0]], [[0.5, 1]], "01", 3, [0, 1]]
)
def test_bad_groups(groups):
    with pytest.raises(SpecError, match="group"):
        ball(0.1).with_claim([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0.0, 0.0], groups)


class Elsewhere:
    """An original that is no code of transformers': what proof and search may ask, and nothing else."""

    name = "another program"

    def __init__(self, net, off=0.0, where=(torch.float32, torch.float64)):
        self.net, self.off, self.where = net, off, where
        self.agreed, self.asked = set(), 0

    def on_image(self, image, dtype):
        self.asked += 1
        net = self.net.converted(torch.device("cpu"), dtype)
        output = net.forward(self.net.embedding(image.to(self.net.dtype)).to(dtype)).double()
        return output + self.off if dtype in self.where else output

    def on_embeddings(self, ids, positions, raw, dtype):
        raise AssertionError("this model reads images")

    def on_disk(self, scratch):
        raise AssertionError("nobody asked for a certificate")


def test_proof_and_search_ask_the_protocol_only():
    net = zonogpt.load(image_model().double())
    judged = dataclasses.replace(net, source=Elsewhere(net))
    spec = zonogpt.image_ball(judged, IMAGE, 1e-5)
    assert zonogpt.verify(judged, spec).status == "verified"
    asked = judged.source.asked
    assert zonogpt.verify(judged, spec.shrunk(1e-6)).status == "verified"
    assert judged.source.asked == asked  # what agreed at this centre is remembered
    wrong = zonogpt.image_ball(judged, IMAGE, 1e-5, label=(spec.label + 1) % 3)
    assert zonogpt.verify(judged, wrong).status == "falsified"
    other = dataclasses.replace(net, source=Elsewhere(net, torch.tensor([1e-3, 0.0, 0.0])))
    with pytest.raises(zonogpt.ModelError, match="another program and zonogpt's disagree: on the unperturbed input"):
        zonogpt.verify(other, spec)
    assert falsify(net, wrong, Elsewhere(net), steps=1).counterexample is not None
    for where in ((torch.float32,), (torch.float64,)):  # it must break the claim in both
        keeps = Elsewhere(net, 10 * torch.eye(3)[wrong.label], where)
        finding = falsify(net, wrong, keeps, steps=1)
        assert finding.counterexample is None
        assert "but another program has" in finding.said
