"""What a verdict says: the claim that fits the kind of model, and what its proof rests on."""

import dataclasses
import json
import math

import pytest
import torch
from transformers import GPT2ForSequenceClassification
from typer.testing import CliRunner

import exact
import zonogpt
from builders import config, image_model
from zonogpt.cli.answers.telling import describe
from zonogpt.cli.app import app
from zonogpt.errors import OptionError, SpecError
from zonogpt.methods import METHODS
from zonogpt.model.sensitivity import Shaken
from zonogpt.search.falsify import replay

IDS = [3, 5, 1, 2]


def classifier(seed=0, **changes):
    torch.manual_seed(seed)
    return GPT2ForSequenceClassification(config(pad_token_id=0, **changes)).eval()


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# Multi-label, regression


@pytest.fixture
def multi_label():
    """A model with outputs of both signs, for which a claim about the largest output alone is wrong."""
    net = classifier(problem_type="multi_label_classification", num_labels=4)
    model = zonogpt.load(net)
    assert len(set((zonogpt.logits(model, IDS) > 0).tolist())) == 2
    return model


def test_every_label_of_a_multi_label_classifier_keeps_its_side(multi_label):
    spec = zonogpt.embedding_ball(multi_label, IDS, [1], 1e-5)
    result = zonogpt.verify(multi_label, spec)
    output = zonogpt.logits(multi_label, IDS)
    assert result.status == "verified"
    assert result.label is None
    assert "each of 4 labels keeps its side of 0" in result.claim
    torch.testing.assert_close(result.margins, output.abs().double(), atol=1e-3, rtol=0)


def test_a_multi_label_answer_changes_though_the_largest_output_stays():
    """The claim of a single-label classifier would hold here."""
    net = classifier(problem_type="multi_label_classification", num_labels=2)
    with torch.no_grad():
        hidden = net.transformer(torch.tensor([IDS])).last_hidden_state[0, -1]
        across = torch.randn(len(hidden))
        across -= (across @ hidden) / (hidden @ hidden) * hidden
        net.score.weight.copy_(torch.stack([hidden, across + 1e-6 * hidden]))  # the second output is nearly 0
    model = zonogpt.load(net)
    spec = zonogpt.embedding_ball(model, IDS, [3], 1e-4)
    result = zonogpt.verify(model, spec, attack=True)
    assert result.status == "falsified"
    assert result.answer is None
    single = dataclasses.replace(model, problem=None)
    assert zonogpt.verify(single, zonogpt.embedding_ball(single, IDS, [3], 1e-4)).status == "verified"


def test_a_multi_label_classifier_has_no_label_to_name(multi_label):
    with pytest.raises(SpecError, match="every label keeps its side"):
        zonogpt.embedding_ball(multi_label, IDS, [1], 1e-5, label=1)
    spec = zonogpt.embedding_ball(multi_label, IDS, [1], 1e-5).with_claim([[1.0, -1.0, 0.0, 0.0]], [10.0])
    assert zonogpt.verify(multi_label, spec).status == "verified"  # unless other rows are asked for


def test_regression_needs_an_interval():
    model = zonogpt.load(classifier(problem_type="regression", num_labels=1))
    value = float(zonogpt.logits(model, IDS))
    with pytest.raises(SpecError, match="interval"):
        zonogpt.embedding_ball(model, IDS, [1], 1e-5)
    with pytest.raises(SpecError, match="not both"):
        zonogpt.embedding_ball(model, IDS, [1], 1e-5, label=0, interval=(0, 1))
    for low, high, status in ((-1, 1, "verified"), (-0.01, math.inf, "verified"), (0.01, math.inf, "falsified")):
        spec = zonogpt.embedding_ball(model, IDS, [1], 1e-5, interval=(value + low, value + high))
        result = zonogpt.verify(model, spec)
        assert result.status == status
        assert len(result.margins) == (2 if math.isfinite(high) else 1)
        if status == "verified":
            assert float(result.margins[0]) == pytest.approx(-low, abs=1e-3)


@pytest.mark.parametrize("interval", [(1, 0), (0, 0), (-math.inf, math.inf), (math.nan, 1), 3, (1, 2, 3), ("a", 2)])
def test_odd_intervals_are_refused(interval):
    model = zonogpt.load(classifier(problem_type="regression", num_labels=1))
    with pytest.raises(SpecError, match="interval"):
        zonogpt.embedding_ball(model, IDS, [1], 1e-5, interval=interval)


def test_regression_of_two_outputs_and_intervals_of_others():
    model = zonogpt.load(classifier(problem_type="regression", num_labels=2))
    result = zonogpt.verify(model, zonogpt.embedding_ball(model, IDS, [1], 1e-6, interval=(-9, 9)))
    assert (result.status, len(result.margins)) == ("verified", 4)
    with pytest.raises(SpecError, match="for regression"):
        zonogpt.embedding_ball(zonogpt.load(classifier()), IDS, [1], 1e-6, interval=(-9, 9))


def test_image_classifiers_have_the_same_problem_types():
    net = image_model()
    net.config.problem_type = "multi_label_classification"
    model = zonogpt.load(net)
    spec = zonogpt.image_ball(model, torch.full(model.embedding.image_size, 0.5), 1e-5)
    assert spec.label is None
    assert spec.claim.n_rows == model.n_outputs


def test_data_sets_of_such_models(multi_label):
    regression = zonogpt.load(classifier(problem_type="regression", num_labels=1))

    class Ids:
        def __init__(self, label):
            self.given = label

        def __len__(self):
            return 1

        def label(self, index):
            return self.given

        def read(self, index):
            return torch.tensor(IDS)

        def name(self, index):
            return "the text"

    with pytest.raises(SpecError, match=r"the text: .*multi-label"):
        zonogpt.certify(multi_label, Ids(1), [1e-6])
    with pytest.raises(SpecError, match=r"the text: .*regression"):
        zonogpt.certify(regression, Ids(None), [1e-6])
    (row,) = zonogpt.certify(multi_label, Ids(None), [1e-6]).rows
    assert (row.status, row.predicted) == ("verified", None)


def test_interval_on_the_command_line(tmp_path):
    classifier(problem_type="regression", num_labels=1).save_pretrained(tmp_path)
    given = ("verify", tmp_path, "--ids", "3,5,1,2", "--positions", "1", "--radius", "1e-5")
    out = run(*given, "--interval", "-9,9")
    assert out.exit_code == 0
    assert "the output stays between -9 and 9" in out.stdout
    out = run(*given, "--interval", "3")
    assert isinstance(out.exception, OptionError)
    assert "two numbers" in str(out.exception)
    out = run(*given)
    assert isinstance(out.exception, SpecError)
    assert "--interval" in str(out.exception)


# Falsified: by more than rounding


def test_claims_that_hold_by_less_than_rounding_are_not_falsified():
    """Margins that are exactly 0 in float64, whatever the true value is."""
    for seed in range(20):
        model = zonogpt.load(classifier(seed, num_labels=2))
        spec = zonogpt.embedding_ball(model, IDS, [1], 0.0)
        wide = model.converted(model.device, torch.float64)
        output = wide.forward(spec.input.embed(spec.input.anchor))
        for nudge in (0.0, 1e-16, -1e-16):
            close = spec.with_claim([[1.0, 0.0]], [-float(output[0]) + nudge])
            for attack in (False, True):
                result = zonogpt.verify(model, close, attack=attack)
                assert result.status == "unknown"
                assert nudge > 0 or "rounding may have moved by" in result.reason
        clear = spec.with_claim([[1.0, 0.0]], [-float(output[0]) - 1e-4])
        assert zonogpt.verify(model, clear).status == "falsified"


def test_rounding_of_a_counterexample_covers_what_float64_rounds():
    """Networks whose outputs float64 gets wrong by much more than a unit: cancelling rows, cancelling weights, GELU at
    -6 seen through large weights. The truth is ball arithmetic's."""
    wrong = 0
    for seed in range(30):
        net = classifier(seed, num_labels=2)
        with torch.no_grad():
            mlp = net.transformer.h[0].mlp
            mlp.c_fc.bias -= 6
            mlp.c_proj.weight *= 1e6
            mlp.c_proj.bias.copy_(1e6 * torch.randn(len(mlp.c_proj.bias)))
        model = zonogpt.load(net)
        wide = model.converted(model.device, torch.float64)
        spec = zonogpt.embedding_ball(model, IDS, [1], 0.0)
        output = wide.forward(spec.input.embed(spec.input.anchor))
        rows = torch.tensor([[1e8, -1e8]], dtype=torch.float64)
        offset = -float((rows @ output)[0])
        claim = spec.with_claim(rows, [offset])
        finding = replay(wide, claim, model.source, claim.input.anchor)
        truth = exact.outputs(wide, exact.matrix(spec.input.embed(spec.input.anchor)))
        margin = exact.arb(1e8) * (truth[0] - truth[1]) + exact.arb(offset)
        wrong += margin > 0
        assert finding.counterexample is None or margin < 0
    assert wrong > 3  # zero in float64, but positive in truth


def test_gelu_rounds_in_units_of_its_input():
    """1 + tanh cancels far below zero: GELU in float64 is off there by much more than a unit of its value."""
    x = torch.linspace(-7, -5, 200, dtype=torch.float64)
    plain = torch.nn.functional.gelu(x, approximate="tanh")
    truth = torch.tensor([float(exact.gelu(exact.number(float(value))).mid()) for value in x], dtype=torch.float64)
    with Shaken(0):
        moved = torch.nn.functional.gelu(x, approximate="tanh")
    assert ((plain - truth).abs() > 1e-9 * truth.abs()).any()
    assert ((plain - truth).abs() < (moved - plain).abs()).all()


# What a proof rests on


@pytest.mark.parametrize("method", METHODS)
def test_the_guarantee_stands_beside_every_verdict(method, tmp_path):
    model = zonogpt.load(classifier())
    spec = zonogpt.embedding_ball(model, IDS, [1], 1e-6)
    result = zonogpt.verify(model, spec, method=method)
    expected = "estimated" if method in ("crown", "deepz", "covenn") else "bounded"
    assert result.status == "verified"
    assert result.guarantee == json.loads(result.to_json())["guarantee"] == expected
    assert result.verdict == f"verified (rounding {expected}, real arithmetic)"
    assert zonogpt.Result.from_json(result.to_json()).guarantee == expected
    assert ("if rounding is as estimated" in describe(result)) == (expected == "estimated")


def test_the_guarantee_on_the_command_line_and_in_tables(tmp_path):
    digits = ("zoo:digits", "--data", "zoo:digits", "--count", "1")
    given = ("--method", "crown", "--quiet")
    classifier().save_pretrained(tmp_path / "model")
    out = run("verify", tmp_path / "model", "--ids", "3,5,1", "--positions", "1", "--radius", "1e-6", *given)
    assert out.stdout == "verified (rounding estimated, real arithmetic)\n"
    out = run("verify", tmp_path / "model", "--ids", "3,5,1", "--positions", "1", "--radius", "1e-6", "--quiet",
              "--arithmetic", "float32")  # fmt: skip
    assert out.stdout == "verified (rounding bounded, float32 arithmetic)\n"
    out = run("certify", *digits, "--radius", "1e-6", "--no-attack", *given, "--json", tmp_path / "certify.json")
    assert "rounding estimated, real arithmetic" in out.stdout
    whole = json.loads((tmp_path / "certify.json").read_text())
    assert {part["guarantee"] for part in (*whole["table"], *whole["rows"])} == {"estimated"}
    assert {part["arithmetic"] for part in (*whole["table"], *whole["rows"])} == {"real"}
    out = run("radius", *digits, "--high", "1e-4", "--no-attack", *given, "--json", tmp_path / "radius.json")
    assert "rounding estimated, real arithmetic" in out.stdout
    whole = json.loads((tmp_path / "radius.json").read_text())
    assert {part["guarantee"] for part in (*whole["table"], *whole["rows"])} == {"estimated"}
    out = run("compare", *digits, "--methods", "crown,ibp,attack", "--radius", "1e-5", "--json", tmp_path / "both.json")
    assert "(rounding estimated)" in out.stdout.splitlines()[0]
    assert {"estimated", "bounded"} <= set(out.stdout.split())
    whole = json.loads((tmp_path / "both.json").read_text())
    assert [line["guarantee"] for line in whole["table"]] == ["estimated", "bounded", None]


# Weights


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_said(tmp_path, dtype):
    kind = getattr(torch, dtype)
    classifier().to(kind).save_pretrained(tmp_path / "half")
    classifier().save_pretrained(tmp_path / "rounded")
    settings = json.loads((tmp_path / "rounded" / "config.json").read_text()) | {"dtype": dtype}
    (tmp_path / "rounded" / "config.json").write_text(json.dumps(settings))
    for name, stored in (("half", dtype), ("rounded", "float32")):
        model = zonogpt.load(tmp_path / name)
        result = zonogpt.verify(model, zonogpt.embedding_ball(model, IDS, [1], 1e-6))
        assert (result.weights, result.stored) == (dtype, stored)
        assert f"a run in {dtype} rounds more and is not covered" in result.meaning
        assert ("rounded from float32" in result.meaning) == (name == "rounded")
        out = run("verify", tmp_path / name, "--ids", "3,5,1,2", "--positions", "1", "--radius", "1e-6")
        assert result.meaning in out.stdout
    model = zonogpt.load(classifier().to(kind))
    assert (model.weights, model.stored) == (dtype, dtype)


def test_full_precision_needs_no_such_words():
    model = zonogpt.load(classifier())
    result = zonogpt.verify(model, zonogpt.embedding_ball(model, IDS, [1], 1e-6))
    assert result.meaning == "the network in exact arithmetic, with these weights"


# A radius that was stopped


def test_a_stopped_radius_says_so():
    model = zonogpt.load(classifier())

    def spec_at(radius):
        return zonogpt.embedding_ball(model, IDS, [1], radius)

    found = zonogpt.certified_radius(model, spec_at, 1e-6, 1.0, timeout=1e-9)
    certified, attacked = found
    assert (certified, attacked) == (found.certified, found.attacked) == (0.0, math.inf)
    assert found.stopped == "proofs: timeout, attack: timeout"
    assert "timeout" in repr(found)
    found = zonogpt.certified_radius(model, spec_at, 1e-6, 1e-5, attack=False)
    assert found.stopped == ""
    assert found.certified > 0


def test_a_stopped_radius_on_the_command_line(tmp_path):
    classifier().save_pretrained(tmp_path)
    out = run("radius", tmp_path, "--ids", "3,5,1", "--positions", "1", "--timeout", "1e-9")
    assert "certified none of the radii tried, not broken, stopped early by timeout" in out.stdout.splitlines()[0]
