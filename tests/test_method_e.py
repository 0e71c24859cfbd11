"""Method E as a whole, against its plain form and attacks: causality, norms, batches, and what a user is told."""

import dataclasses
import math
import re
from types import SimpleNamespace

import pytest
import torch

import zonogpt
from builders import config, image_config, image_model, language_model, text_classifier
from plain_e import plain_margins
from trained import IMAGE_SHAPES, NAMES, instances, pictures, trained
from zonogpt.domains.finite import require_finite
from zonogpt.errors import OptionError
from zonogpt.methods import adjoint, ellipsoidal, start, tape, walk
from zonogpt.methods.method import NonFiniteBlockError, Numerics
from zonogpt.methods.plan import plan_ellipsoidal
from zonogpt.search.descent import attack
from zonogpt.support.tensors import moved

LIMIT = 1 << 30
RADII = (1e-4, 1e-3, 4e-3)


def margins_of(model, spec):
    wide = moved(model, model.device, torch.float64)
    with torch.no_grad():
        return ellipsoidal.METHOD_E.bound_many(wide, [spec], Numerics(), None)[0].margins


@pytest.mark.parametrize("name", NAMES)
def test_trained_models_learned_something(name):
    model = trained(name)
    if name in IMAGE_SHAPES:
        x, y = pictures(100, 11)
        right = sum(int(zonogpt.logits(model, image).argmax()) == int(label) for image, label in zip(x, y, strict=True))
        assert right >= 90
    else:
        margins = [
            s.claim.margins(model.forward(s.input.embed(s.input.anchor).float())).min() for s in instances(name, 0, 20)
        ]
        assert float(torch.stack(margins).median()) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_never_looser_than_the_plain_transcription(name):
    model = trained(name)
    for radius in RADII:
        for spec in instances(name, radius, 3):
            with torch.no_grad():
                plain = plain_margins(model, spec)
            fast = margins_of(model, spec)
            # The plain form does not bound rounding: where it explodes, even the sign of its bounds is noise.
            meant = torch.where(plain.abs() < 1e6, plain, -math.inf)
            assert (fast >= meant - 1e-4 * plain.abs().clamp(min=1e-3)).all(), (radius, fast, plain)
            if radius == RADII[0]:  # where both are nearly linear they agree
                torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("norm", [math.inf, 2.0, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_no_attack_goes_below_a_certified_margin(name, norm):
    model = trained(name)
    scale = {math.inf: 1.0, 2.0: 5.0, 1.0: 20.0}[norm]
    for radius in (1e-3, 5e-3, 2e-2, 0.1, 0.5):
        for spec in instances(name, radius * scale, 2, norm):
            margins = margins_of(model, spec)
            assert margins.isfinite().all()
            assert (attack(model, spec, restarts=3, steps=15).margins >= margins - 1e-9).all()


def test_smaller_balls_are_easier():
    model = trained("bands")
    for norm in (2.0, 1.0):
        box, ball = (instances("bands", 5e-3, 1, p)[0] for p in (math.inf, norm))
        assert (margins_of(model, ball) > margins_of(model, box)).all()
    two, one = (instances("bands", 5e-2, 1, p)[0] for p in (2.0, 1.0))
    assert (margins_of(model, one) >= margins_of(model, two) - 1e-6).all()


def test_the_last_block_has_one_query_for_a_last_token_head():
    model = zonogpt.load(text_classifier(3).double())
    spec = zonogpt.embedding_ball(model, [3, 5, 1, 12, 7], [1], 1e-3)
    with torch.no_grad():
        passed = tape.forward(walk.Walk(model, LIMIT), [spec], torch.float64)
    assert [step.point.n_queries for step in passed.steps if step.kind == "attention"] == [4, 1]
    assert passed.head.z.n_tokens == 1


def test_adjoint_is_never_worse_than_the_forward_bound():
    model = zonogpt.load(image_model(1).double())
    image = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))
    for radius in (1e-3, 1e-2, 5e-2):
        with torch.no_grad():
            passed = tape.forward(walk.Walk(model, LIMIT), [zonogpt.image_ball(model, image, radius)], torch.float64)
            margins, _ = adjoint.backward(passed)
            direct = passed.value - passed.head.loss(adjoint._pooled_rows(passed, torch.tensor([[0, 1]])), LIMIT)
        assert (margins >= direct - 1e-9).all()


def test_many_rows_go_through_the_forward_bound(monkeypatch):
    """A language model's rows: only the open ones go back, and every row stays a lower bound."""
    model = zonogpt.load(language_model(4, config(n_embd=6, n_head=2, vocab_size=40)))
    spec = zonogpt.embedding_ball(model, [3, 5, 1], [1], 2e-3)
    full = margins_of(model, spec)
    monkeypatch.setattr(adjoint, "MOST_ROWS", 5)
    monkeypatch.setattr(adjoint, "ROWS", 2)
    some = margins_of(model, spec)
    assert (some <= full + 1e-9).all()
    assert int(torch.isclose(some, full).sum()) >= 5
    assert (attack(model, spec, restarts=2, steps=8).margins >= some - 1e-9).all()


def test_open_rows_are_chosen_for_each_input(monkeypatch):
    """In a batch every input has its own rivals and its own lowest rows, whatever the others in the batch are."""
    model = zonogpt.load(language_model(4, config(n_embd=6, n_head=2, vocab_size=40)))
    specs = [
        zonogpt.embedding_ball(model, [3, 5, 1], [1], 2e-3),
        zonogpt.embedding_ball(model, [7, 1, 20, 9], [2], 2e-3),
        zonogpt.embedding_ball(model, [3, 5, 1], [1], 0.3),
    ]
    monkeypatch.setattr(adjoint, "MOST_ROWS", 5)
    monkeypatch.setattr(adjoint, "ROWS", 2)
    alone = [margins_of(model, spec) for spec in specs]
    with torch.no_grad():
        together = ellipsoidal.METHOD_E.bound_many(moved(model, model.device, torch.float64), specs, Numerics(), None)
    for spec, expected, bounds in zip(specs, alone, together, strict=True):
        torch.testing.assert_close(bounds.margins, expected)
        assert (attack(model, spec, restarts=2, steps=8).margins >= bounds.margins - 1e-9).all()


def test_exact_tokens_count_in_the_plan():
    """One moving token behind many exact ones: they are keys, and a row of scores has a Gram over all keys."""
    model = moved(trained("text"), torch.device("cpu"), torch.float64)
    size = ellipsoidal.sizes(model, zonogpt.embedding_ball(model, [1, 2, 3, 4, 5, 6], [5], 1e-3))
    assert (size.n_tokens, size.length) == (1, 6)
    far = dataclasses.replace(size, length=600)
    for batch in (1, 10):
        grown = plan_ellipsoidal(far, 8, batch, None).peak_bytes - plan_ellipsoidal(size, 8, batch, None).peak_bytes
        assert grown > 4 * 8 * batch * model.n_heads * 600**2


def test_verify_many_gives_what_verify_gives():
    model = trained("rows")
    specs = [spec for radius in (0.0, 1e-3, 5e-3) for spec in instances("rows", radius, 3)]
    specs.append(zonogpt.image_ball(model, pictures(1, 7)[0][0], 1e-3, label=(specs[0].label + 1) % 4))
    specs.append(specs[0].with_claim([[1.0, 0, 0, -1.0]], [10.0]))
    seen = []
    many = zonogpt.verify_many(model, specs, on_result=lambda i, result: seen.append(i))
    assert sorted(seen) == list(range(len(specs)))
    for spec, together in zip(specs, many, strict=True):
        alone = zonogpt.verify(model, spec)
        assert together.status == alone.status
        torch.testing.assert_close(together.margins, alone.margins, rtol=1e-6, atol=1e-9)
    assert many[-2].status == "falsified"
    assert [r.radius for r in many[:9]] == [0.0] * 3 + [1e-3] * 3 + [5e-3] * 3
    assert zonogpt.verify_many(model, []) == []


def test_batches_keep_to_the_budget():
    model = moved(trained("rows"), torch.device("cpu"), torch.float64)
    specs = instances("rows", 1e-3, 7)
    method = ellipsoidal.METHOD_E
    assert method.batches(model, specs, Numerics()) == [list(range(7))]
    one = plan_ellipsoidal(ellipsoidal.sizes(model, specs[0]), 8, 1, 1).peak_bytes
    assert method.batches(model, specs, Numerics(budget_bytes=one)) == [[i] for i in range(7)]
    with pytest.raises(OptionError, match="method E needs"):
        method.batches(model, specs, Numerics(budget_bytes=one - 1))
    mixed = [*specs, *(zonogpt.image_ball(model, pictures(1, 7)[0][0], 0.2, norm=2.0),)]
    assert sorted(len(batch) for batch in method.batches(model, mixed, Numerics())) == [1, 7]


PLACES = {  # lengths, and the token that moves
    "anywhere": ((8, 2), (5, 0), (6, 5), (3, 1), (1, 0), (7, 6)),  # some shorter than the longest one's moving part
    "last": ((8, 7), (5, 4), (6, 5), (3, 2), (1, 0), (7, 6)),  # padding among exact tokens
}


def sentences_of_many_lengths(model, places="anywhere", norm=math.inf):
    ids = torch.randint(1, 9, (8,), generator=torch.Generator().manual_seed(3))
    radii = (2e-3, 1e-3, 3e-3, 1e-3, 5e-3, 0.0)
    return [
        zonogpt.embedding_ball(model, ids[:length], [at], radius, norm=norm)
        for (length, at), radius in zip(PLACES[places], radii, strict=True)
    ]


def seeing_all_keys(block):
    if block.kind != "attention":
        return block
    return dataclasses.replace(block, branch=dataclasses.replace(block.branch, mask="bidirectional"))


@pytest.mark.parametrize("norm", [math.inf, 2.0])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("places", PLACES)
def test_sentences_of_different_lengths_share_a_batch(places, causal, norm):
    """Padding in front changes no margin, whichever token moves, and no attack goes below the batch's margins."""
    model = moved(trained("text"), torch.device("cpu"), torch.float64)
    if not causal:
        model = dataclasses.replace(model, blocks=tuple(seeing_all_keys(block) for block in model.blocks))
    specs = sentences_of_many_lengths(model, places, norm)
    with torch.no_grad():
        together = ellipsoidal.METHOD_E.bound_many(model, specs, Numerics(), None)
    for spec, bounds in zip(specs, together, strict=True):
        alone = margins_of(model, spec)
        torch.testing.assert_close(bounds.margins, alone, rtol=1e-7, atol=1e-9)
        assert (attack(model, spec, restarts=2, steps=10).margins >= bounds.margins - 1e-9).all()


def test_verify_many_of_sentences_gives_what_verify_gives(monkeypatch):
    monkeypatch.setattr(ellipsoidal, "LEAST_MOVING", {"cpu": 0.0})
    for model in (trained("text"), zonogpt.load(language_model(3))):
        specs = sentences_of_many_lengths(model)
        for spec, result in zip(specs, zonogpt.verify_many(model, specs), strict=True):
            alone = zonogpt.verify(model, spec)
            assert (result.status, result.reason) == (alone.status, alone.reason)
            torch.testing.assert_close(result.margins, alone.margins, rtol=1e-6, atol=1e-9)


def test_which_sentences_share_a_batch(monkeypatch):
    """On a CPU, those with equally many moving tokens; on a GPU, whose calls are costly, also with a few fewer."""
    model = moved(trained("text"), torch.device("cpu"), torch.float64)
    specs = sentences_of_many_lengths(model)[:5]  # 8, 5, 6, 3, 1 tokens, of which 6, 5, 1, 2, 1 move
    lasts = sentences_of_many_lengths(model, "last")[:5]
    batches = ellipsoidal.METHOD_E.batches
    assert batches(model, specs, Numerics()) == [[0], [1], [2], [3], [4]]
    assert batches(model, lasts, Numerics()) == [
        [0, 1, 2],
        [3],
        [4],
    ]  # none is padded to more than twice its length
    with monkeypatch.context() as patch:
        patch.setattr(ellipsoidal, "SHORT", 5)
        assert batches(model, lasts, Numerics()) == [[0], [1], [2], [3], [4]]
    monkeypatch.setattr(ellipsoidal, "LEAST_MOVING", {"cpu": 0.5})
    assert batches(model, specs, Numerics()) == [[0, 1], [2], [3], [4]]
    one = plan_ellipsoidal(ellipsoidal.sizes(model, specs[0]), 8, 1, 1).peak_bytes
    assert batches(model, specs[:2], Numerics(budget_bytes=one)) == [[0], [1]]
    two = zonogpt.embedding_ball(model, [1, 2, 3], [0, 1], 1e-3)
    assert sorted(map(len, batches(model, [specs[3], two], Numerics()))) == [1, 1]  # twice as many symbols
    assert len(batches(model, [specs[3], specs[3].with_claim([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])], Numerics())) == 2


def test_unknown_names_the_block_and_a_radius_that_holds():
    model = trained("bands")
    spec = instances("bands", 0.2, 1)[0]
    result = zonogpt.verify(model, spec, hint=True)
    assert result.status == "unknown"
    assert "precision is lost in block" in result.reason
    assert 0 < result.certified_radius < 0.2
    said = re.search(r"radius (\S+) is certified", result.reason)[1]
    assert float(said) == result.certified_radius
    assert zonogpt.verify(model, spec.shrunk(result.certified_radius)).status == "verified"
    assert zonogpt.verify(model, spec).certified_radius is None
    assert zonogpt.Result.from_json(result.to_json()).certified_radius == result.certified_radius


def test_bounds_level_off_instead_of_exploding():
    """Ranges of LayerNorm and softmax cap everything: from some radius on the bound hardly moves."""
    model = zonogpt.load(image_model(2, image_config(n_embd=8, n_head=1, n_layer=3, num_labels=4)))
    image = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))
    worst = [
        float(margins_of(model, zonogpt.image_ball(model, image, r, clip=(-1e9, 1e9))).min()) for r in (1e2, 1e4, 1e6)
    ]
    assert all(math.isfinite(x) for x in worst)
    assert worst[2] >= worst[0] * 1.01 - 1.0


def test_nan_ends_as_unknown_with_its_place(monkeypatch):
    model, spec = trained("rows"), instances("rows", 1e-3, 1)[0]

    def broken(block, z, at):
        require_finite("GELU input", torch.tensor(math.nan))

    monkeypatch.setitem(walk.STEPS, "mlp", broken)
    result = zonogpt.verify(model, spec)
    assert result.status == "unknown"
    assert "block 2 (mlp), step 'GELU input'" in result.reason
    wide = moved(model, model.device, torch.float64)
    with pytest.raises(NonFiniteBlockError):
        ellipsoidal.METHOD_E.bound_many(wide, [spec], Numerics(), None)


def test_ledger_adds_up_to_the_margin():
    model = moved(trained("rows deep"), torch.device("cpu"), torch.float64)
    spec = instances("rows deep", 2e-3, 1)[0]
    with torch.no_grad():
        passed = tape.forward(walk.Walk(model, LIMIT), [spec], torch.float64)
    bounds = ellipsoidal.METHOD_E.bound_many(model, [spec], Numerics(), None)[0]
    taken = sum(entry.width for entry in bounds.ledger.entries)
    assert math.isclose(float((passed.value[0] - bounds.margins).mean()), taken, rel_tol=1e-9)
    rounded = sum(entry.width for entry in bounds.ledger.entries if entry.step == "rounding")
    assert 0 < rounded < 1e-8 * taken
    steps = {(entry.kind, entry.step) for entry in bounds.ledger.entries}
    assert steps == {
        ("input", "input"), ("attention", "layernorm"), ("attention", "scores"), ("attention", "softmax"),
        ("attention", "product"), ("mlp", "layernorm"), ("mlp", "gelu"), ("head", "layernorm"),
        ("input", "rounding"), ("attention", "rounding"), ("mlp", "rounding"), ("head", "rounding"),
    }  # fmt: skip
    assert all(entry.width >= -1e-12 for entry in bounds.ledger.entries)


def test_float32_bounds_contain_what_float64_finds():
    for name in ("rows", "tiles", "text"):
        model = trained(name)
        for spec in instances(name, 3e-3, 2):
            narrow = zonogpt.verify(model, spec, dtype="float32")
            assert (attack(model, spec, restarts=2, steps=10).margins >= narrow.margins - 1e-5).all()
            torch.testing.assert_close(narrow.margins, margins_of(model, spec), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("seed", range(3))
def test_what_embedding_rounds_off_is_charged_at_the_input(monkeypatch, seed):
    """The box that the input starts with, here a thousandth and not some units: every functional that arrives pays."""
    real = start.embedding_rounding
    monkeypatch.setattr(start, "embedding_rounding", lambda *of: torch.full_like(real(*of), 1e-3))
    model = moved(zonogpt.load(text_classifier(seed)), torch.device("cpu"), torch.float64)
    spec = zonogpt.embedding_ball(model, [1, 2, 3, 4], [2], 1e-12)
    with torch.no_grad():
        passed = tape.forward(walk.Walk(model, LIMIT), [spec], torch.float64)
        first, arrived = passed.steps[0], []

        def pull(w, limit):
            arrived.append(first.pull(w, limit))
            return arrived[-1]

        passed.steps[0] = SimpleNamespace(kind=first.kind, pull=pull)
        _, _, losses = adjoint.adjoint(passed)
    ((w, _),) = arrived
    assert (losses[0, "input", "rounding"] >= 1e-3 * w.abs().sum((2, 3))).all()
