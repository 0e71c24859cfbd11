"""inspect(): the paper's numbers, and predictions that hold."""

import json
import math
import subprocess
import sys
from unittest import mock

import pytest
import torch
from transformers import GPT2LMHeadModel

import zonogpt
from builders import config, image_config, language_model
from zonogpt.cli.answers.inspection import PROCESS_BYTES, duration
from zonogpt.domains.structured import generator_limit
from zonogpt.errors import OptionError
from zonogpt.methods import METHODS, plan
from zonogpt.methods.method import Numerics
from zonogpt.methods.plan import Sizes, chunk_bytes, filling_batch, plan_ellipsoidal
from zonogpt.methods.structured import VARIANTS
from zonogpt.methods.tape import forward
from zonogpt.methods.walk import Walk
from zonogpt.model.ir import Model
from zonogpt.model.nodes import Shape
from zonogpt.support.tensors import map_tensors, tensors_in
from zonogpt.verification import inspection
from zonogpt.verification.inspection import dense_bytes, structured_bytes

GIB = 2**30


def wide_image_model(width, heads):
    cfg = image_config(n_embd=width, n_head=heads, n_layer=1, n_positions=28, num_labels=10)
    cfg.image_size, cfg.patch_size = (28, 28), (1, 28)
    return zonogpt.load(zonogpt.GPT2ForImageClassification(cfg))


@pytest.mark.parametrize(("width", "heads", "mnist", "sst"), [(768, 12, 6241, 5461), (1024, 16, 4681, 4096)])
def test_pool_sizes_of_the_appendix(width, heads, mnist, sst):
    assert zonogpt.inspect(wide_image_model(width, heads)).generator_limit == mnist
    text = GPT2LMHeadModel(config(n_embd=width, n_head=heads, n_layer=1, n_positions=48))
    assert zonogpt.inspect(zonogpt.load(text), tokens=32).generator_limit == sst


def test_storage_example_of_the_paper():
    assert structured_bytes(512, 768) / GIB == 2.25
    assert dense_bytes(512, 768) / GIB == 1152
    text = zonogpt.load(GPT2LMHeadModel(config(n_embd=768, n_head=12, n_layer=1, n_positions=512)))
    found = zonogpt.inspect(text)
    assert (found.structured_input_bytes / GIB, found.dense_input_bytes / GIB) == (2.25, 1152)


def test_bundled_model():
    found = zonogpt.inspect(zonogpt.load(zonogpt.zoo.path("digits")))
    assert (found.tokens, found.width, found.n_layers, found.inputs) == (7, 64, 2, 784)
    assert found.n_parameters == 108_426
    assert found.n_parameters * 4 < 2_000_000
    assert set(found.plans) == set(zonogpt.METHODS)


@pytest.mark.parametrize("method", list(VARIANTS))
@pytest.mark.parametrize("budget", [None, 300_000])
def test_predicted_generator_counts_are_what_happens(method, budget):
    """The plan's counts against a propagation in which every pixel moves."""
    from zonogpt.domains.structured import reduce, settled
    from zonogpt.methods.structured import pool_limit

    model = map_tensors(zonogpt.load(zonogpt.zoo.path("digits")), lambda t: t.double())
    plan = zonogpt.inspect(model, budget_bytes=budget).plans[method]
    limit = pool_limit(7, 64, torch.float64, budget)
    assert plan.pool == limit
    variant = VARIANTS[method]
    z = variant.initial(zonogpt.image_ball(model, torch.full((28, 28), 0.5), 1e-4), limit, torch.float64)
    most = z.q
    for block in model.blocks:
        z = reduce(variant.step(block, settled(z))[0], limit)
        most = max(most, z.q)
    assert (z.m, most) == (plan.shared, plan.local)


def test_predicted_tape_of_method_e_is_what_a_run_leaves_behind():
    model = map_tensors(zonogpt.load(zonogpt.zoo.path("digits")), lambda t: t.double())
    spec = zonogpt.image_ball(model, torch.full((28, 28), 0.5), 1e-4)
    with torch.no_grad():
        tape = forward(Walk(model, 1 << 28), [spec], torch.float64)
    weights = {t.untyped_storage().data_ptr() for t in tensors_in(model)}
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_in(tape)}
    left = sum(size for at, size in memory.items() if at not in weights)
    plan = zonogpt.inspect(model).plans["E"]
    assert math.isclose(left, plan.tape_bytes, rel_tol=0.05)
    assert plan.peak_bytes > plan.tape_bytes


def test_depth_does_not_raise_the_prediction_once_the_pool_binds():
    peaks = set()
    for layers in (2, 4, 12):
        cfg = image_config(n_embd=64, n_head=4, n_layer=layers, n_positions=28)
        cfg.image_size, cfg.patch_size = (28, 28), (1, 28)
        model = zonogpt.load(zonogpt.GPT2ForImageClassification(cfg))
        peaks.add(zonogpt.inspect(model, budget_bytes=1 << 24).plans["A"].peak_bytes)
    assert len(peaks) == 1


def test_tied_head_counts_once():
    tied, untied = (zonogpt.load(language_model(cfg=config(tie_word_embeddings=t))) for t in (True, False))
    assert zonogpt.inspect(untied).n_parameters - zonogpt.inspect(tied).n_parameters == 17 * 12


MEASURE = """
import json, sys, torch, zonogpt
from transformers import GPT2Config, GPT2LMHeadModel
from zonogpt.support.memory import peak_bytes, reset_peak, resident_bytes
sizes, tokens, methods = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
torch.manual_seed(0)
GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).save_pretrained(sys.argv[4])
cpu, model = torch.device("cpu"), zonogpt.load(sys.argv[4])
found, out = zonogpt.inspect(model, tokens, "last"), {}
for method in methods:
    seen = []
    for label in (3, None):  # falsified, so that the judge is there in float32; then proved, or unknown
        resident_bytes(cpu)
        reset_peak(cpu)
        spec = zonogpt.embedding_ball(model, range(tokens), [tokens - 1], 1e-6, label)
        zonogpt.verify(model, spec, method=method)
        seen.append(peak_bytes(cpu))
    out[method] = (found.plans[method].peak_bytes + found.weight_bytes, max(seen))
print(json.dumps(out))
"""


def predicted_and_seen(folder, sizes, tokens, methods):
    """Bytes by method, predicted and seen in a fresh process; Python with torch and transformers is PROCESS_BYTES."""
    command = [sys.executable, "-c", MEASURE, json.dumps(sizes), str(tokens), ",".join(methods), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stderr[-2000:]
    return {method: (predicted + PROCESS_BYTES, seen) for method, (predicted, seen) in json.loads(run.stdout).items()}


GRID = {
    "tiny": ({"n_embd": 32, "n_head": 2, "n_layer": 2, "vocab_size": 500, "n_positions": 32}, 8),
    "a large vocabulary": ({"n_embd": 64, "n_head": 4, "n_layer": 1, "vocab_size": 100_000, "n_positions": 16}, 5),
    "wide": ({"n_embd": 256, "n_head": 4, "n_layer": 2, "vocab_size": 20_000, "n_positions": 16}, 5),
    "deep": ({"n_embd": 96, "n_head": 4, "n_layer": 6, "vocab_size": 5_000, "n_positions": 16}, 5),
    "long": ({"n_embd": 32, "n_head": 2, "n_layer": 1, "vocab_size": 1_000, "n_positions": 128}, 120),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a part of a run is known on Linux only")
@pytest.mark.parametrize("name", GRID)
def test_language_models_take_no_more_than_is_predicted(tmp_path, name):
    """The claim's rows, the model's float64 copies and its judge are counted, each once."""
    sizes, tokens = GRID[name]
    for method, (predicted, seen) in predicted_and_seen(tmp_path, sizes, tokens, ("E", "M", "ibp")).items():
        assert seen <= predicted <= 2 * seen + 200 * 2**20, (method, predicted / GIB, seen / GIB)


@pytest.mark.slow
def test_gpt2_takes_no_more_than_is_predicted(tmp_path):
    """124 million parameters."""
    for method, (predicted, seen) in predicted_and_seen(tmp_path, {}, 6, ("E",)).items():
        assert seen <= predicted <= 2 * seen, (method, predicted / GIB, seen / GIB)


def sizes_of(device, n_tokens=20, width=768, moving=1, blocks=4, rows=1):
    pair = ("attention", Shape(heads=12, inner=width)), ("mlp", Shape(hidden=4 * width))
    return Sizes(n_tokens, n_tokens, width, pair * (blocks // 2), moving * width, width, rows, device)


def test_a_gpu_gets_what_helps_and_no_more():
    assert filling_batch(sizes_of("cuda")) == 11  # see benchmarks/batches.py
    assert filling_batch(sizes_of("cuda", n_tokens=300)) == 1
    assert filling_batch(sizes_of("cuda", width=64)) > 1000  # small calls are worth joining
    assert filling_batch(sizes_of("cpu")) > 10**9  # on a CPU the budget is the limit
    text = sizes_of("cuda")
    together = plan_ellipsoidal(text, 8, filling_batch(text), None).peak_bytes
    assert together < 40 * GIB
    assert plan_ellipsoidal(text, 8, 36, None).peak_bytes > 2 * together
    for moving in (1, 3, 14):
        assert chunk_bytes(sizes_of("cuda", moving=moving), 8, 36, None) <= 2 * GIB


def test_batches_stop_where_the_device_is_full(monkeypatch):
    """However much memory is free, a device that the ellipsoids of 8 such texts fill gets batches of 8."""
    model = zonogpt.load(language_model())
    specs = [zonogpt.embedding_ball(model, [1 + i, 2, 3, 4], [0], 1e-3) for i in range(12)]
    assert [len(batch) for batch in METHODS["E"].batches(model, specs, Numerics())] == [12]
    monkeypatch.setattr(plan, "FULL", {"cpu": 8 * 4 * 12 * 12 * 8})
    assert [len(batch) for batch in METHODS["E"].batches(model, specs, Numerics())] == [8, 4]
    assert [len(batch) for batch in METHODS["E"].batches(model, specs, Numerics(budget_bytes=1 << 33))] == [8, 4]


def test_rows_of_the_claim_are_planned_for():
    for name, method in METHODS.items():
        few, many = (
            method.plan(sizes_of("cpu", n_tokens=4, width=64, rows=rows), Numerics()).peak_bytes for rows in (1, 50_000)
        )
        assert many >= few, name
        assert many >= 3 * 50_000 * 64 * 8, name


def test_the_run_holds_one_copy_in_float64():
    """And one in float32 exactly if the method estimates rounding by it; the hint's runs share both."""
    model = zonogpt.load(language_model())
    spec = zonogpt.embedding_ball(model, [1, 2], [0], 0.5)
    for method, wanted in (("E", [torch.float64]), ("ibp", [torch.float64]), ("crown", [torch.float64, torch.float32])):
        with mock.patch.object(Model, "converted", autospec=True, side_effect=Model.converted) as converted:
            result = zonogpt.verify(model, spec, method=method, hint=True)
        made = [call.args[2] for call in converted.call_args_list if call.args[0] is model]
        assert made == wanted
        assert (result.certified_radius is not None) == (method == "E")


def test_bad_options():
    images, text = wide_image_model(64, 4), zonogpt.load(language_model())
    for model, options in (
        (images, {"tokens": 3}), (text, {"tokens": 9}), (text, {"tokens": 0}), (text, {"positions": [0]}),
        (text, {"tokens": 4, "positions": [4]}),
        (text, {"dtype": "int8"}),
        (text, {"budget_bytes": 0}),
    ):  # fmt: skip
        with pytest.raises((OptionError, zonogpt.SpecError)):
            zonogpt.inspect(model, **options)
    found = zonogpt.inspect(text, 4, [1, 3])
    assert (found.tokens, found.moving, found.inputs) == (4, 2, 24)
    assert generator_limit(1, 1, 1) == 64


def test_time_is_told_where_it_can_be(monkeypatch):
    """Twice the work at the same speed takes longer, twice the speed takes less; the prediction has one digit."""
    text = zonogpt.load(language_model())
    assert zonogpt.inspect(text).seconds is None
    monkeypatch.setattr(inspection, "multiply_adds_per_second", lambda device: 1e6)
    few, many = (zonogpt.inspect(text, 6, at).seconds for at in ([5], "all"))
    assert 0 < few < many
    monkeypatch.setattr(inspection, "multiply_adds_per_second", lambda device: 2e6)
    assert zonogpt.inspect(text, 6, "all").seconds < many
    said = [duration(seconds) for seconds in (0.0123, 1.44, 96.0, 700.0, 9000.0)]
    assert said == ["0.01 s", "1 s", "100 s", "10 minutes", "2 hours"]
