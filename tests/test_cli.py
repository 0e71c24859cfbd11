"""The command line as a user meets it: real processes, exit codes, first line, nothing half-written."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import zonogpt
from builders import language_model, text_classifier

DIGITS = str(zonogpt.zoo.path("digits"))


PROGRAM = str(Path(sys.executable).parent / "zonogpt")


def zono(*args, cwd=None):
    command = [PROGRAM, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A digit as .png and .npy, and a small text model."""
    path = tmp_path_factory.mktemp("cli")
    images, _ = zonogpt.zoo.samples("digits")
    np.save(path / "digit.npy", images[0].numpy())
    Image.fromarray((images[0] * 255).round().to(torch.uint8).numpy()).save(path / "digit.png")
    text_classifier().save_pretrained(path / "text")
    return path


def test_verified(folder):
    run = zono("verify", DIGITS, "--image", folder / "digit.npy", "--radius", "1e-4")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "verified (rounding bounded, real arithmetic)"
    assert "label 0" in run.stdout
    assert run.stderr == ""  # no bar in a pipe


def test_picture_and_array_agree_and_json_is_whole(folder):
    for suffix in ("npy", "png"):
        run = zono("verify", DIGITS, "--image", folder / f"digit.{suffix}", "--radius", "1e-4", "--quiet",
                   "--method", "A-literal", "--json", folder / f"{suffix}.json", "--dtype", "float32")  # fmt: skip
        assert (run.returncode, run.stdout) == (0, "verified (rounding bounded, real arithmetic)\n"), run.stderr
    a, b = (zonogpt.Result.from_json((folder / f"{s}.json").read_text()) for s in ("npy", "png"))
    torch.testing.assert_close(a.margins, b.margins)
    assert a.method == "A-literal"
    assert a.dtype == "float32"
    assert not list(folder.glob(".*json*"))


def test_unknown_falsified_and_timeout(folder):
    base = ("verify", DIGITS, "--image", folder / "digit.npy", "--quiet", "--method", "M")
    for extra, code, word in (
        (("--radius", "0.1"), 10, "unknown"),
        (("--radius", "0.1", "--label", "3"), 20, "falsified"),
        (("--radius", "0.1", "--timeout", "1e-9"), 30, "timeout"),
    ):
        run = zono(*base, *extra)
        assert (run.returncode, run.stdout) == (code, word + "\n"), run.stderr


def test_token_ids(folder):
    run = zono("verify", folder / "text", "--ids", "3,5,1", "--positions", "1,2", "--radius", "1e-7")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("verified (")


def test_text_with_a_tokenizer(tmp_path):
    """A byte-level tokenizer beside the model; a word is found as the tokens that spell it."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2TokenizerFast

    from builders import config

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(["a good film", "a bad film"], vocab_size=290, min_frequency=1)
    GPT2TokenizerFast(tokenizer_object=bpe._tokenizer).save_pretrained(tmp_path)
    language_model(cfg=config(vocab_size=300, n_positions=32)).save_pretrained(tmp_path)
    model = zonogpt.load(tmp_path)
    text = zonogpt.text(model, "a good film")
    assert bpe.decode([text[p] for p in text.at("good")]).strip() == "good"
    twice = zonogpt.text(model, "ad bad film, a bad ad")  # whole words, every occurrence
    assert bpe.decode([twice[p] for p in twice.at("ad")]).replace(" ", "") == "adad"
    run = zono("verify", tmp_path, "--text", "a good film", "--words", "good", "--radius", "1e-8")
    assert run.returncode == 0, run.stderr
    run = zono("verify", tmp_path, "--text", "a good film", "--words", "great", "--radius", "1e-8")
    assert run.returncode == 2
    assert "great" in run.stderr


def broken_model(folder, name, change):
    target = folder / name
    language_model().save_pretrained(target)
    change(target)
    return target


def nan_weights(target):
    tensors = load_file(target / "model.safetensors")
    tensors["transformer.ln_f.weight"] *= float("nan")
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def changed_config(**changes):
    def change(target):
        file = target / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


MODELS = {
    "corrupt": (lambda t: (t / "model.safetensors").write_bytes(b"garbage"), "safetensors"),
    "llama": (changed_config(model_type="llama", architectures=["LlamaForCausalLM"]), "llama"),
    "relu": (changed_config(activation_function="relu"), "activation_function"),
    "nan": (nan_weights, "NaN"),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_bad_models(tmp_path, name):
    change, word = MODELS[name]
    target = broken_model(tmp_path, name, change)
    for command in (("verify", target, "--ids", "1,2", "--positions", "0", "--radius", "0.1", "--json", "r.json"),
                    ("inspect", target, "--json", "r.json")):  # fmt: skip
        run = zono(*command, cwd=tmp_path)
        assert run.returncode == 2
        assert word in run.stderr
        assert run.stderr.startswith("error: ")
        assert "Traceback" not in run.stderr
        assert run.stdout == ""
        assert [f.name for f in tmp_path.iterdir()] == [name]  # nothing half-written


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--image", "missing.npy"), "missing.npy"),
        (("--image", "."), "directory"),
        (("--image", "bytes.npy"), "255"),
        (("--image", "objects.npy"), "objects.npy"),
        (("--image", "small.npy"), "(27, 28)"),
        (("--image", "bright.npy"), "[0, 1]"),
        (("--image", "notes.png"), "not a readable picture"),
        (("--image", "deep.png"), "mode"),
        (("--image", "digit.npy", "--radius", "-0.1"), "radius"),
        (("--image", "digit.npy", "--radius", "nan"), "radius"),
        (("--image", "digit.npy", "--label", "10"), "label"),
        (("--image", "digit.npy", "--method", "Z"), "method"),
        (("--image", "digit.npy", "--budget", "lots"), "budget"),
        (("--image", "digit.npy", "--budget", "9" * 400), "budget"),
        (("--image", "digit.npy", "--norm", "3"), "norm"),
        (("--image", "digit.npy", "--json", "no/such/place.json"), "cannot write"),
        (("--image", "digit.npy", "--ids", "1,2"), "exactly one"),
        (("--image", "digit.npy", "--positions", "1"), "--positions"),
        ((), "exactly one"),
    ],
)
def test_bad_image_runs(folder, args, word):
    images, _ = zonogpt.zoo.samples("digits")
    np.save(folder / "small.npy", images[0, 1:].numpy())
    np.save(folder / "bright.npy", images[0].numpy() * 255)
    np.save(folder / "bytes.npy", np.zeros((28, 28), dtype=np.uint8))
    np.save(folder / "objects.npy", np.array([[None] * 28] * 28), allow_pickle=True)
    (folder / "notes.png").write_text("not a picture")
    Image.fromarray(np.zeros((28, 28), dtype=np.uint16)).save(folder / "deep.png")
    before = sorted(folder.iterdir())
    radius = () if "--radius" in args else ("--radius", "1e-4")
    run = zono("verify", DIGITS, *args, *radius, cwd=folder)
    assert run.returncode == 2
    assert word in run.stderr, run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--ids", "1,2,3", "--positions", "3"), "position 3"),
        (("--ids", "1,2,99", "--positions", "1"), "token ids"),
        (("--ids", "1;2", "--positions", "1"), "--ids"),
        (
            (
                "--ids",
                "1,2",
            ),
            "--positions",
        ),
        (("--text", "a film", "--words", "film"), "has no tokenizer"),
    ],
)
def test_bad_text_runs(folder, args, word):
    run = zono("verify", folder / "text", *args, "--radius", "0.1")
    assert run.returncode == 2
    assert word in run.stderr, run.stderr
    assert "Traceback" not in run.stderr


def test_missing_model_and_usage_errors(tmp_path):
    run = zono("verify", tmp_path / "nowhere", "--ids", "1", "--positions", "0", "--radius", "1")
    assert (run.returncode, "nowhere" in run.stderr) == (2, True)
    assert zono("verify", DIGITS).returncode == 2  # no radius
    assert zono("fly").returncode == 2


def test_inspect(folder):
    run = zono("inspect", DIGITS, "--json", folder / "inspect.json")
    assert run.returncode == 0, run.stderr
    assert "108,426 parameters" in run.stdout
    assert "predicted peak" in run.stdout
    found = json.loads((folder / "inspect.json").read_text())
    assert found["plans"]["A"]["peak_bytes"] > 0
    run = zono("inspect", folder / "text", "--tokens", "4", "--positions", "1")
    assert "4 tokens, 1 of which move (12 numbers)" in run.stdout
    run = zono("inspect", folder / "text")
    assert "predicted" not in run.stdout
    assert "--tokens 20 --positions last" in run.stdout


def test_version():
    run = zono("--version")
    assert run.stdout.strip() == f"zonogpt {zonogpt.__version__}"


def test_example_draws_a_picture(tmp_path):
    run = zono("demo", "--example", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "proved" in run.stdout
    with Image.open(tmp_path / "zonogpt-demo-example.png") as picture:
        assert picture.size[0] > 1000


def test_digit_demo_draws_a_picture(tmp_path, monkeypatch):
    """The real command on two digits: the table's numbers are the study's."""
    from zonogpt_apps.cli import demo
    from zonogpt_apps.demo import study

    images, labels = zonogpt.zoo.samples("digits")
    monkeypatch.setattr(study.zoo, "samples", lambda name: (images[:2], labels[:2]))
    found = study.run_study(lambda what, total: None)
    assert found.proved("A", 1e-4) == 2
    assert found.proved("M", 1e-3) == 0
    for digit, radius in enumerate(found.largest):  # the last step of the ladder that is proved
        above = next(step for step in study.LADDER.steps if step > radius)
        model = zonogpt.load("zoo:digits")
        for tried, status in ((radius, "verified"), (above, "unknown")):
            spec = zonogpt.image_ball(model, images[digit], tried, int(labels[digit]))
            assert zonogpt.verify(model, spec, hint=False).status == status
    assert found.clean[0] == pytest.approx(9.9086, abs=1e-3)
    demo.show_study(tmp_path / "two.png", quiet=True)
    with Image.open(tmp_path / "two.png") as picture:
        assert picture.size[0] > 1000


def on_a_terminal(command, cwd):
    """Runs a command whose standard error is a pseudo-terminal: (exit code, standard output, what the terminal got)."""
    parent, child = pty.openpty()
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=child, text=True, cwd=cwd, env={**os.environ, "TERM": "xterm"}
    )
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal closes with the process
        while piece := os.read(parent, 4096):
            shown += piece
    out, _ = run.communicate(timeout=120)
    return run.returncode, out, shown.decode()


def test_progress_bar_on_a_terminal(folder):
    """The bar names blocks; the verdict is still first on standard output."""
    command = [PROGRAM, "verify", DIGITS, "--image", "digit.npy", "--radius", "1e-4"]
    code, out, shown = on_a_terminal(command, folder)
    assert code == 0
    assert out.splitlines()[0] == "verified (rounding bounded, real arithmetic)"
    assert "block" in shown


def test_demo_on_a_terminal(tmp_path):
    """One digit, with the bar: its total is known only once the digits are loaded."""
    script = """
from pathlib import Path
from zonogpt_apps.cli import demo
from zonogpt_apps.demo import study
images, labels = study.zoo.samples("digits")
study.zoo.samples = lambda name: (images[:1], labels[:1])
demo.show_study(Path("one.png"), quiet=False)
"""
    code, out, shown = on_a_terminal([sys.executable, "-c", script], tmp_path)
    assert code == 0, shown
    assert "digit 1 of 1" in shown
    assert "Digits proved, of 1" in out
    assert "largest radius that E proves, searched to 2%: from 0.00409 to 0.00409" in out


def test_json_follows_links_and_leaves_no_draft(folder, tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    base = ("verify", DIGITS, "--image", folder / "digit.npy", "--radius", "1e-5", "--method", "M", "-q", "--json")
    assert zono(*base, tmp_path / "link.json").returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert zonogpt.Result.from_json((tmp_path / "real.json").read_text()).method == "M"
    for bad in (tmp_path / ("x" * 250 + "/y.json"), tmp_path / "real.json" / "y.json", tmp_path / ("x" * 300)):
        run = zono(*base, bad)
        assert run.returncode == 2
        assert "cannot write" in run.stderr
        assert "Traceback" not in run.stderr
    assert sorted(f.name for f in tmp_path.iterdir()) == ["link.json", "real.json"]
