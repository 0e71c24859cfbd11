"""verify(): verdicts, options, timeouts, non-finite bounds, and results as JSON."""

import dataclasses
import json
import math

import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

import zonogpt
from builders import image_model, language_model, text_classifier
from zonogpt.errors import OptionError, SpecError
from zonogpt.methods.baselines import BASELINES
from zonogpt.methods.method import Bounds
from zonogpt.search.falsify import Finding
from zonogpt.spec.claims import margin_claim
from zonogpt.support.tensors import map_tensors
from zonogpt.verification.session import judged
from zonogpt.verification.verdict import judge, rounding_allowance

IMAGE = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def model():
    return zonogpt.load(image_model())


def test_verified_unknown_and_falsified(model):
    small = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-5))
    assert small.status == "verified"
    assert (small.margins > 0).all()
    large = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 0.5))
    assert large.status == "unknown"
    assert "not certified" in large.reason
    other = (small.label + 1) % 3
    wrong = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-5, label=other))
    assert wrong.status == "falsified"
    assert wrong.counterexample.shape == (6, 4)
    assert int(zonogpt.logits(model, wrong.counterexample.float()).argmax()) != other
    assert wrong.margins.tolist() == [-math.inf] * 2


def test_result_fields(model):
    result = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4), method="F")
    assert (result.method, result.radius, result.dtype, result.device) == ("F", 1e-4, "float64", "cpu")
    assert result.margins.dtype == torch.float64
    assert result.seconds > 0
    assert result.peak_bytes > 1 << 20


def test_ledger_names_every_block_and_adds_up(model):
    result = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4), method="A")
    ledger = result.ledger
    assert ledger.blocks() == [1, 2, 3, 4, 5]
    steps = {e.block: [x.step for x in ledger.entries if x.block == e.block] for e in ledger.entries}
    assert steps[1] == ["carried", "cross-token", "layernorm", "softmax", "product", "rounding", "reduction"]
    assert steps[2] == ["carried", "layernorm", "gelu", "rounding", "reduction"]
    assert steps[5] == ["carried", "layernorm", "rounding"]
    assert all(e.width >= 0 and math.isfinite(e.width) for e in ledger.entries)
    # what the head loses is exactly the gap between the margin at the centre and the certified one
    spec = zonogpt.image_ball(model, IMAGE, 1e-4)
    centre = (spec.input.lower + spec.input.upper) / 2
    wide = map_tensors(model, lambda t: t.double())
    gap = (spec.claim.margins(wide.forward(spec.input.embed(centre))) - result.margins).mean()
    assert ledger.total(5) == pytest.approx(float(gap), rel=0.05)


def test_ledger_total_is_the_radius(model):
    from zonogpt.domains.structured import convert
    from zonogpt.methods.structured import VARIANTS

    wide = map_tensors(model, lambda t: t.double())
    for name, variant in VARIANTS.items():
        z = variant.initial(zonogpt.image_ball(model, IMAGE, 1e-3), 1000, torch.float64)
        for block in wide.blocks:
            z, widths = variant.step(block, convert(z))
            assert sum(widths.values()) == pytest.approx(float(z.radius.mean()), rel=1e-9), name


def test_progress_is_reported(model):
    seen = []
    zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4), on_block=seen.append)
    blocks = [(1, 4, "attention"), (2, 4, "mlp"), (3, 4, "attention"), (4, 4, "mlp")]
    assert [(p.block, p.blocks, p.kind) for p in seen if p.part == "forward"] == blocks
    assert [(p.block, p.blocks, p.kind) for p in seen if p.part == "backward"] == blocks[::-1]
    assert len(seen) == 8
    shares = [p.done for p in seen]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] < 1.0


@pytest.mark.parametrize("method", ["A", "crown", "ibp", "deepz"])
def test_progress_of_other_methods_goes_up(model, method):
    seen = []
    zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4), method=method, on_block=seen.append)
    shares = [p.done for p in seen]
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] < shares[-1] < 1.0


def test_progress_of_a_text_counts_the_tokens_that_do_not_move():
    texts = zonogpt.load(text_classifier())
    seen = []
    spec = zonogpt.embedding_ball(texts, [3, 5, 1, 7, 2], [4], 0.05)
    zonogpt.verify(texts, spec, on_block=seen.append, attack=True, hint=True)
    searched = [p.done for p in seen if p.part == "search"]
    assert searched == sorted(searched)
    assert 0 < searched[0] < 0.1
    assert searched[-1] == 1.0
    assert [p.part for p in seen][: len(searched)] == ["search"] * len(searched)
    verdict = [p for p in seen[len(searched) :] if not p.task]
    parts = [p.part for p in verdict]
    assert parts.index("forward") > parts.index("still tokens") == 0
    assert parts.index("backward") > parts.index("forward")
    shares = [p.done for p in verdict]
    assert shares == sorted(shares)
    assert 0.0 < shares[parts.index("forward")] < shares[parts.index("backward")] < 1.0
    assert {p.task for p in seen} <= {"", "hint"}


def test_the_deadline_is_looked_at_on_the_way_back(model, monkeypatch):
    from zonogpt.methods.work import Teller
    from zonogpt.verification import session

    clock = [0.0]
    monkeypatch.setattr(session.time, "perf_counter", lambda: clock[0])
    tick = Teller.tick
    monkeypatch.setattr(
        Teller, "tick", lambda self, part: clock.__setitem__(0, 9.0) or tick(self, part) if part == "backward"
        else tick(self, part),
    )  # fmt: skip
    result = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4), timeout=1.0)
    assert result.status == "timeout"
    assert "block 4 of 4 on the way back" in result.reason


def test_timeout(model):
    result = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4), timeout=1e-9)
    assert result.status == "timeout"
    assert "block 1 of 4" in result.reason
    assert result.margins.tolist() == [-math.inf] * 2


@pytest.mark.parametrize("method", list(zonogpt.METHODS))
def test_overflow_is_unknown_and_names_its_place(method):
    """Finite weights whose products overflow: the verdict says where, and invents no bound."""
    hf = image_model()
    with torch.no_grad():
        hf.transformer.h[1].attn.c_attn.weight *= 1e36
    model = zonogpt.load(hf)
    label = int(zonogpt.logits(zonogpt.load(hf.double()), IMAGE.double()).argmax())  # float64 does not overflow
    spec = zonogpt.image_ball(model, IMAGE, 1e-4, label=label)
    result = zonogpt.verify(model, spec, method=method, dtype="float32")
    assert result.status == "unknown"
    # Operator by operator the scores overflow too, but a softmax weight stays in [0, 1]; the next block gives up.
    assert ("block 4 (mlp)" if method in BASELINES else "block 3 (attention)") in result.reason
    assert "step" in result.reason
    assert result.margins.tolist() == [-math.inf] * 2


def test_overflow_in_the_head_is_named_too():
    hf = image_model().double()
    label = zonogpt.image_ball(zonogpt.load(hf), IMAGE, 0.1).label
    with torch.no_grad():
        hf.classifier.weight *= 1e308
        hf.classifier.bias.zero_()
    model = zonogpt.load(hf)
    result = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 0.1, label=label))
    assert result.status == "unknown"
    assert "head" in result.reason


def test_no_prediction_without_a_finite_output():
    hf = image_model()
    with torch.no_grad():
        hf.classifier.weight.fill_(3e38)
    with pytest.raises(SpecError, match="no answer to keep"):
        zonogpt.image_ball(zonogpt.load(hf), IMAGE, 0.1)


def test_huge_radius_stays_finite_through_the_caps():
    model = zonogpt.load(language_model())
    spec = zonogpt.embedding_ball(model, [3, 5, 1], [0, 1], 1e12)
    for method in zonogpt.METHODS:
        result = zonogpt.verify(model, spec, method=method)
        assert result.status == "unknown"
        assert result.margins.isfinite().all()


def test_out_of_memory_is_unknown(model, monkeypatch):
    def hungry(*args):
        torch.empty(1 << 55)

    for method in ("A", "E"):
        monkeypatch.setattr(type(zonogpt.METHODS[method]), "bound_many", hungry)
        result = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4), method=method)
        assert result.status == "unknown"
        assert "out of memory" in result.reason


def test_judge_never_accepts_nan():
    claim = margin_claim(0, 3)
    assert judge(claim, torch.tensor([1.0, math.nan]))[0] == "unknown"
    assert judge(claim, torch.tensor([1.0, 0.0]))[0] == "unknown"
    assert judge(claim, torch.tensor([1.0, 1e-300], dtype=torch.float64))[0] == "verified"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"method": "Z"}, "A, F, M, D"),
        ({"dtype": "float16"}, "float64"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
        ({"device": "toaster"}, "toaster"),
        ({"device": ["cpu"]}, "cpu"),
        ({"device": "meta"}, "meta"),
        ({"device": "hpu"}, "hpu"),  # torch looks for a module of that name
        ({"device": 10**20}, "1000000"),
        ({"method": ["A"]}, "method"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": 10**400}, "timeout"),
        ({"budget_bytes": 0}, "budget"),
        ({"budget_bytes": 1.5}, "budget"),
    ],
)
def test_bad_options(model, options, word):
    with pytest.raises(OptionError, match=word):
        zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4), **options)


def test_spec_of_another_model_is_refused(model):
    from builders import image_config

    images = [zonogpt.load(image_model(0, image_config(n_embd=24))), zonogpt.load(image_model(1))]
    for other in images:  # another width, and the same shape with other weights
        with pytest.raises(SpecError, match="another model"):
            zonogpt.verify(other, zonogpt.image_ball(model, IMAGE, 1e-4))
    a, b = (zonogpt.load(language_model(seed)) for seed in (0, 1))
    with pytest.raises(SpecError, match="another model"):
        zonogpt.verify(b, zonogpt.embedding_ball(a, [3, 5, 1], [0], 1e-4))
    with pytest.raises(SpecError, match="another model"):
        zonogpt.verify(model, zonogpt.embedding_ball(zonogpt.load(text_classifier()), [3, 5, 1], [0], 1e-4))


def test_spec_of_the_same_weights_is_welcome(model):
    again = zonogpt.load(image_model())
    assert zonogpt.verify(again, zonogpt.image_ball(model, IMAGE, 1e-5)).status == "verified"


def allowance_at(exact, spec, dtype):
    """The rounding allowance, for the model in float64."""
    x = spec.input.embed(spec.input.anchor)
    rounded = exact.converted(exact.device, torch.float32).forward(x.float()).double()
    return rounding_allowance(spec.claim, exact.forward(x), rounded, dtype)


def test_methods_that_do_not_bound_rounding_take_an_allowance_off_and_say_so(model):
    spec = zonogpt.image_ball(model, IMAGE, 0.0)
    exact = spec.claim.margins(map_tensors(model, lambda t: t.double()).forward(spec.input.embed(spec.input.anchor)))
    for method in zonogpt.METHODS:
        result = zonogpt.verify(model, spec, method=method, dtype="float32")
        assert (result.margins < exact).all()
        assert (result.guarantee == "estimated") == (method in ("deepz", "crown", "covenn"))
    wide = map_tensors(model, lambda t: t.double())
    for dtype, limit in ((torch.float32, 1e-3), (torch.float64, 1e-12)):
        allowance = allowance_at(wide, spec, dtype)
        assert allowance.shape == (spec.claim.n_rows,)
        assert ((allowance > 0) & (allowance < limit)).all()


def test_autocast_does_not_reach_the_bounds(model):
    spec = zonogpt.image_ball(model, IMAGE, 1e-4)
    plain = zonogpt.verify(model, spec, dtype="float32").margins
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(zonogpt.verify(model, spec, dtype="float32").margins, plain)


def test_underflowed_softmax_is_not_verified():
    """A key with P = 0 in floating point can become the heaviest in the ball: the true margin is -0.88 at radius 1."""
    config = GPT2Config(n_embd=2, n_layer=1, n_head=2, n_positions=2, vocab_size=2, num_labels=2, pad_token_id=None)
    hf, scale = GPT2ForSequenceClassification(config).double().eval(), math.sqrt(1000.0)
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        h = hf.transformer.h[0]
        for norm in (h.ln_1, h.ln_2, hf.transformer.ln_f):
            norm.weight.fill_(1)
        hf.transformer.wte.weight[:] = torch.tensor([[-0.5, 0.5], [0.004, -0.004]])
        h.attn.c_attn.bias[0], h.attn.c_attn.weight[0, 2], h.attn.c_attn.weight[0, 4] = scale, scale, -1.0
        h.attn.c_proj.weight[0, 0], h.attn.c_proj.bias[0] = 1.0, 0.98
        hf.score.weight[:] = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    model = zonogpt.load(hf)
    spec = zonogpt.embedding_ball(model, [0, 1], [0], 1.0)
    steps = torch.linspace(0, 1, 61, dtype=torch.float64)
    x = spec.input.lower + torch.cartesian_prod(steps, steps).reshape(-1, 1, 2) * (spec.input.upper - spec.input.lower)
    truth = float(spec.claim.margins(model.forward(spec.input.embed(x))).min())
    assert truth < -0.8
    for method in zonogpt.METHODS:
        result = zonogpt.verify(model, spec, method=method)
        assert result.status == "unknown"
        assert float(result.margins.min()) <= truth


@pytest.mark.parametrize("label", [None, 0, 1, 2])
def test_json_round_trip(model, label):
    result = zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-4, label=label))
    text = result.to_json()
    assert "Infinity" not in text
    assert "NaN" not in text
    assert json.loads(text)["status"] == result.status
    again = zonogpt.Result.from_json(text)
    for field in dataclasses.fields(result):
        if field.name == "subject":
            assert again.about == result.about
            continue
        ours, theirs = getattr(result, field.name), getattr(again, field.name)
        if isinstance(ours, torch.Tensor):
            assert torch.equal(ours, theirs), field.name
        else:
            assert ours == theirs, field.name


def test_rounding_allowance_grows_with_the_claim(model):
    """Rows of size 1e5 amplify what float32 rounds; the margins must give way by as much."""
    spec = zonogpt.image_ball(model, IMAGE, 1e-6)
    rows = torch.zeros(1, 3)
    rows[0, spec.label], rows[0, (spec.label + 1) % 3] = 1.0, -1.0
    exact = map_tensors(model, lambda t: t.double())
    small, large = (allowance_at(exact, spec.with_claim(k * rows, [0.0]), torch.float32) for k in (1.0, 1e5))
    assert float(large) >= 1e4 * float(small)
    offset = allowance_at(exact, spec.with_claim(rows, [1e6]), torch.float32)
    assert float(offset) >= 1e6 * 2**-24


def test_rounding_allowance_of_float64_is_seen_through_float32(model):
    """float64 has no wider type to compare with: the allowance is float32's rounding, in float64's units."""
    spec = zonogpt.image_ball(model, IMAGE, 1e-6)
    exact = map_tensors(model, lambda t: t.double())
    narrow, wide = (allowance_at(exact, spec, dtype) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(wide, narrow * 2.0**-29)
    output = exact.forward(spec.input.embed(IMAGE.double()))
    assert (wide > 64 * torch.finfo(torch.float64).eps * spec.claim.magnitude(output)).all()


def test_outputs_beyond_float32_are_unknown_and_say_why(model):
    """Rounding is estimated by float32; where that overflows, nothing is known about it."""
    wide = map_tensors(model, lambda t: t.double())
    head = dataclasses.replace(wide.head, weight=1e40 * wide.head.weight)
    huge = dataclasses.replace(wide, head=head, source=None)
    spec = zonogpt.image_ball(huge, IMAGE, 1e-6)
    result = zonogpt.verify(huge, spec, method="crown")
    assert result.status == "unknown"
    assert "overflows float32" in result.reason
    assert zonogpt.verify(huge, spec).status == "verified"  # rounding is bounded, not estimated by float32


def test_a_search_that_saw_no_number_forbids_a_proof(model):
    """NaN is not a positive margin."""
    spec = zonogpt.image_ball(model, IMAGE, 1e-6)
    result = zonogpt.verify(model, spec)
    bounds = Bounds(result.margins, result.ledger)
    assert judged(spec.claim, result, bounds, Finding(None, math.inf), None).status == "verified"
    for lowest in (math.nan, 0.0):
        assert judged(spec.claim, result, bounds, Finding(None, lowest), None).status == "unknown"
