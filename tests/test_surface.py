"""The public interface: its names, the cost of importing them, and what a person reads."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer

import zonogpt
from builders import generator, image_model
from program import PROGRAM, zono
from zonogpt.cli.app import app, usage
from zonogpt.cli.options import METHOD_NAMES
from zonogpt.errors import ZonoGptError

MODEL = zonogpt.load(image_model())
IMAGE = torch.rand(6, 4, generator=generator(5), dtype=torch.float64)
COMMANDS = ("verify", "check", "radius", "certify", "compare", "inspect", "demo", "bench", "bench train", "bench make",
            "bench run", "bench report")  # fmt: skip


def test_every_public_name_is_there_and_typed():
    """Three lists must agree: __all__, where each name comes from, and what type checkers see."""
    tree = ast.parse(Path(zonogpt.__file__).read_text())
    (block,) = [n for n in tree.body if isinstance(n, ast.If)]
    seen = {alias.asname or alias.name for node in block.body for alias in node.names}
    assert seen | {"__version__"} == set(zonogpt.__all__)
    assert set(zonogpt._HOMES) | {"__version__"} == set(zonogpt.__all__)
    for name in zonogpt.__all__:
        assert getattr(zonogpt, name) is not None
    assert sorted(zonogpt.__all__) == dir(zonogpt)
    with pytest.raises(AttributeError, match="nothing"):
        _ = zonogpt.nothing


def test_every_error_is_public():
    import zonogpt.errors

    classes = {name for name, value in vars(zonogpt.errors).items() if inspect.isclass(value)}
    assert classes <= set(zonogpt.__all__)
    assert issubclass(zonogpt.RecordError, ZonoGptError)


def test_options_are_keyword_only_and_labels_may_be_positional():
    for function, positional in (
        (zonogpt.verify, 2),
        (zonogpt.verify_many, 2),
        (zonogpt.image_ball, 4),
        (zonogpt.embedding_ball, 5),
        (zonogpt.certified_radius, 5),
        (zonogpt.certify, 3),
        (zonogpt.compare, 5),
        (zonogpt.load, 1),
    ):
        kinds = [p.kind for p in inspect.signature(function).parameters.values()]
        assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) == positional, function
    assert zonogpt.image_ball(MODEL, IMAGE, 1e-3, 2).label == 2
    with pytest.raises(TypeError):
        zonogpt.verify(MODEL, zonogpt.image_ball(MODEL, IMAGE, 1e-3), "A")


def test_a_result_is_neither_true_nor_false():
    result = zonogpt.verify(MODEL, zonogpt.image_ball(MODEL, IMAGE, 1e-6))
    assert result.verified is True
    with pytest.raises(TypeError, match=r"result\.verified"):
        bool(result)
    with pytest.raises(TypeError):
        assert result


def test_representations_are_short():
    spec = zonogpt.image_ball(MODEL, IMAGE, 1e-6)
    for value in (MODEL, spec, zonogpt.verify(MODEL, spec), zonogpt.Verifier(MODEL)):
        assert repr(value).count("\n") < 3
        assert len(repr(value)) < 400
    assert "l∞ ball of radius 1e-06" in repr(spec)
    assert "verified (rounding bounded" in repr(zonogpt.verify(MODEL, spec))


def test_representations_of_searches_and_predictions_are_one_line():
    spec = zonogpt.image_ball(MODEL, IMAGE, 1e-3)
    for value in (zonogpt.attack(MODEL, spec, restarts=1, steps=1), zonogpt.inspect(MODEL)):
        assert repr(value).count("\n") == 0
        assert len(repr(value)) < 250


@pytest.mark.parametrize(("norm", "said"), [("inf", "l∞"), ("2", "l2"), ("1", "l1")])
def test_a_verdict_names_its_norm(norm, said, tmp_path):
    """A radius without its norm says nothing."""
    result = zonogpt.verify(MODEL, zonogpt.image_ball(MODEL, IMAGE, 1e-6, norm=norm))
    assert result.norm == norm
    assert result.reach == f"{said} radius 1e-06"
    assert result.reach in repr(result)
    assert result.reach in result._repr_html_()
    run = zono("verify", "zoo:digits", "--image", "zoo:digits/0", "--radius", "1e-6", "--norm", norm)
    assert f"label 0, {said} radius 1e-06, method E" in run.stdout
    assert zonogpt.Result.from_json(result.to_json()).reach == result.reach


def test_a_claim_that_is_false_from_the_start_moves_nothing():
    run = zono("verify", "zoo:digits", "--image", "zoo:digits/0", "--radius", "1e-6", "--label", "3")
    assert run.stdout.startswith("falsified")
    assert "the unperturbed input already breaks the claim" in run.stdout
    assert "pixels change" not in run.stdout
    assert "--counterexample" not in run.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--radius", "-0.1"), "--radius must be 0 or more"),
        (("--radius", "nan"), "--radius must be 0 or more"),
        (("--radius", "1", "--norm", "3"), "--norm is inf, 2 or 1"),
        (("--radius", "1", "--method", "e"), "method 'e' is unknown"),
        (("--radius", "1", "--budget", "lots"), "--budget takes a number of bytes"),
        (("--radius", "1", "--words", "a", "--positions", "1"), "--positions or --words, not both"),
        (("--radius", "1", "--words", "a,,b"), "--words takes words"),
    ],
)
def test_mistakes_are_told_before_torch_is_there(args, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "zonogpt.cli.answers.verdict", None)  # importing it would be another error
    with pytest.raises(ZonoGptError, match=re.escape(said)):
        app(["verify", "zoo:digits", "--image", "zoo:digits/0", *args], standalone_mode=False)


def test_norms_by_name():
    for name, value in (("inf", float("inf")), ("l2", 2), ("1", 1.0), ("L_1", 1)):
        assert zonogpt.image_ball(MODEL, IMAGE, 1e-3, norm=name) == zonogpt.image_ball(MODEL, IMAGE, 1e-3, norm=value)
    for wrong in ("3", "", "two", None, 0.5, True):
        with pytest.raises(zonogpt.SpecError, match="use inf, 2, 1"):
            zonogpt.image_ball(MODEL, IMAGE, 1e-3, norm=wrong)


def test_help_and_version_do_not_import_torch():
    """What makes them quick: torch alone takes a second."""
    code = (
        "import sys\nfrom zonogpt.cli.app import app\n"
        "for args in (['--version'], ['--help'], ['verify', '-h'], ['bench', 'run', '-h'], ['verify', '--nope']):\n"
        "    try: app(args, standalone_mode=False)\n"
        "    except Exception as error: assert hasattr(error, 'format_message'), error\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'matplotlib', 'huggingface_hub'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_import_is_lazy():
    code = "import sys, zonogpt\nassert 'torch' not in sys.modules\nzonogpt.METHODS\nassert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_line_knows_the_methods_by_name():
    assert tuple(zonogpt.METHODS) == METHOD_NAMES


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    """On -h and on --help, with an example."""
    short, long = (zono(*command.split(), flag) for flag in ("-h", "--help"))
    assert short.returncode == long.returncode == 0
    assert short.stdout == long.stdout
    example = re.split("Example|Start with", short.stdout)[1]
    assert f"zonogpt {command}" in " ".join(example.split())


def test_help_has_no_angle_brackets():
    """A help screen would take them for markup and drop the text between."""

    def helps(command):
        yield from (param.help for param in command.params if getattr(param, "help", None))
        for child in getattr(command, "commands", {}).values():
            yield from helps(child)

    found = list(helps(typer.main.get_command(app)))
    assert len(found) > 100
    assert not [text for text in found if "<" in text]


@pytest.mark.parametrize(
    "args",
    [
        ("verify", "--nope"),
        ("verify",),
        ("verify", "zoo:digits"),
        ("nothing",),
        ("verify", "zoo:digits", "--radius", "1", "--seed", "x", "--image", "zoo:digits/0"),
        ("certify", "zoo:digits", "--data", "zoo:digits", "--radius", "1e-3", "--count", "many"),
        ("bench", "nothing"),
    ],
)
def test_mistakes_in_options_are_one_line(args):
    run = zono(*args)
    assert run.returncode == 2
    assert run.stderr.startswith("error: ")
    assert run.stderr.count("\n") == 1, run.stderr
    assert "--help lists all options)" in run.stderr
    assert not run.stdout


def test_other_errors_are_no_mistakes_in_options():
    assert usage(ValueError("x")) is None


def test_nothing_at_all_prints_the_help():
    run = zono()
    assert run.returncode == 0
    assert "verify" in run.stdout


def test_completion_is_offered():
    run = subprocess.run([PROGRAM], capture_output=True, text=True, env={
        "_ZONOGPT_COMPLETE": "complete_bash", "COMP_WORDS": "zonogpt verify --method ", "COMP_CWORD": "3",
        "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert "crown" in run.stdout.split()


@pytest.mark.parametrize("wait", [0.0, 0.05, 0.15, 0.4, 0.8, 1.2])
def test_ctrl_c_while_it_starts_is_quiet(wait):
    """Importing the command line and torch takes a second or two; stopping it must not show a traceback."""
    import signal

    start = "from zonogpt.__main__ import main\nprint('begun', flush=True)\nmain()"
    run = subprocess.Popen(
        [sys.executable, "-c", start, "verify", "zoo:digits", "--image", "zoo:digits/0", "--radius", "1e-3"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert run.stdout.readline() == "begun\n"
    time.sleep(wait)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert "Traceback" not in err, err
    assert run.returncode in (0, 130)


def test_a_verifier_converts_once_and_agrees_with_verify(monkeypatch):
    from zonogpt.model.ir import Model

    calls = []
    converted = Model.converted
    monkeypatch.setattr(Model, "converted", lambda *args: calls.append(1) or converted(*args))
    verifier = zonogpt.Verifier(MODEL)
    specs = [zonogpt.image_ball(MODEL, IMAGE, radius) for radius in (1e-6, 1e-4, 0.5)]
    results = [verifier.verify(spec) for spec in specs]
    assert len(calls) == 1
    for spec, result in zip(specs, results, strict=True):
        alone = zonogpt.verify(MODEL, spec)
        assert (alone.status, alone.margins.tolist()) == (result.status, result.margins.tolist())
    assert [r.status for r in verifier.verify_many(specs)] == [r.status for r in results]
    assert verifier.verify(specs[2], attack=True).status == "falsified"
    assert verifier.verify(specs[0], method="A").method == "A"
    assert verifier.options.method == "E"
    net = image_model().double()
    with torch.no_grad():
        net.classifier.weight *= 1 + 1e-12  # now no float32 numbers
    wide = zonogpt.Verifier(zonogpt.load(net))
    with pytest.raises(zonogpt.OptionError, match="arithmetic 'float32' is about running the model in float32"):
        wide.verify(zonogpt.image_ball(wide.model, IMAGE, 1e-6), arithmetic="float32")
    with pytest.raises(zonogpt.OptionError, match="'device' is no option here"):
        verifier.verify(specs[0], device="cpu")


def test_a_hint_is_given_when_it_is_asked_for_and_its_time_said(monkeypatch):
    from zonogpt.verification.session import Verification

    runs = []
    batch = Verification._batch
    monkeypatch.setattr(Verification, "_batch", lambda *args: runs.append(1) or batch(*args))
    spec = zonogpt.image_ball(MODEL, IMAGE, 0.05)
    plain = zonogpt.verify(MODEL, spec)
    assert (plain.status, plain.certified_radius, plain.hint_seconds, len(runs)) == ("unknown", None, None, 1)
    hinted = zonogpt.verify(MODEL, spec, hint=True)
    assert hinted.certified_radius is not None
    assert hinted.hint_seconds > 0
    assert len(runs) > 3
    assert zonogpt.verify(MODEL, spec.shrunk(hinted.certified_radius)).verified
    with pytest.raises(zonogpt.OptionError, match="hint is True or False"):
        zonogpt.verify(MODEL, spec, hint=1)


def test_a_pipe_gets_no_hint_unless_it_asks(tmp_path):
    base = ("verify", "zoo:digits", "--image", "zoo:digits/0", "--radius", "0.01")
    assert "; radius" not in zono(*base).stdout
    asked = zono(*base, "--hint").stdout
    assert "radius 0.00" in asked
    assert "for the hint" in asked


class Cautious:
    """A method that proves nothing, and says so."""

    name = "cautious"
    summary = "proves nothing"
    rounding_bounded = True

    def __init__(self):
        self.rules = zonogpt.METHODS["ibp"].rules

    def sizes(self, model, spec):
        return zonogpt.METHODS["ibp"].sizes(model, spec)

    def plan(self, sizes, numerics):
        return zonogpt.METHODS["ibp"].plan(sizes, numerics)

    def for_run(self, model, specs, numerics):
        return self

    def batches(self, model, specs, numerics):
        return [[i] for i in range(len(specs))]

    def bound_many(self, model, specs, numerics, on_block):
        from zonogpt.methods.method import Bounds

        return [Bounds(torch.full((spec.claim.n_rows,), -1.0), zonogpt.Ledger()) for spec in specs]


def test_a_method_of_ones_own(monkeypatch):
    import zonogpt.methods

    monkeypatch.setattr(zonogpt.methods, "METHODS", dict(zonogpt.METHODS))
    for wrong, word in ((object(), "has no name"), (zonogpt.METHODS["A"], None)):
        if word is None:
            zonogpt.methods.register_method(wrong)  # once more the same: nothing happens
            continue
        with pytest.raises(zonogpt.OptionError, match=word):
            zonogpt.methods.register_method(wrong)
    taken = Cautious()
    taken.name = "E"
    with pytest.raises(zonogpt.OptionError, match="there is a method 'E' already"):
        zonogpt.methods.register_method(taken)
    monkeypatch.undo()
    zonogpt.register_method(Cautious())
    try:
        result = zonogpt.verify(MODEL, zonogpt.image_ball(MODEL, IMAGE, 1e-6), method="cautious")
        assert (result.status, result.margins.tolist()) == ("unknown", [-1.0, -1.0])
    finally:
        del zonogpt.METHODS["cautious"]


@pytest.mark.parametrize("name", [n for n in zonogpt.__all__ if dataclasses.is_dataclass(getattr(zonogpt, n))])
def test_help_tells_of_every_field(name):
    said = inspect.getdoc(getattr(zonogpt, name))
    for field in dataclasses.fields(getattr(zonogpt, name)):
        assert re.search(rf"\b{field.name}\b", said), field.name


def test_the_library_logs_and_prints_nothing(caplog, capsys):
    with caplog.at_level("INFO", logger="zonogpt"):
        model = zonogpt.load(image_model())
        zonogpt.verify(model, zonogpt.image_ball(model, IMAGE, 1e-6))
    said = [record.getMessage() for record in caplog.records]
    assert any("loaded Model(" in line for line in said)
    assert any("verified by method E in" in line for line in said)
    assert capsys.readouterr() == ("", "")


def test_options_of_a_verifier_stay_where_a_call_names_none():
    verifier = zonogpt.Verifier(MODEL, dtype="float32", hint=True)
    spec = zonogpt.image_ball(MODEL, IMAGE, 1e-6)
    assert verifier.verify(spec, dtype=None).dtype == "float32"
    (result,) = verifier.verify_many([spec])
    assert result.about["options"]["hint"] is False  # a batch gives none
