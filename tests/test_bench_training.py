"""Training for the benchmark: data, interval loss, reproducible checkpoints."""

import io
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import GPT2ForSequenceClassification

import zonogpt
from bench_data import sentences, write_data, write_sst
from builders import config as text_config
from builders import generator, layer_norm, text_classifier
from zonogpt.errors import ModelError, OptionError, SpecError
from zonogpt.model.nodes import Attention, Block, Norm
from zonogpt.support.tensors import moved
from zonogpt_apps.bench.grid import PAPER_MODELS, ModelId, config, parse_models
from zonogpt_apps.bench.train import train
from zonogpt_apps.bench.training import data as data_module
from zonogpt_apps.bench.training.data import read_images, read_sentences, read_tokenizer
from zonogpt_apps.bench.training.intervals import Ball, _attention, _gelu, _layernorm, _softmax, worst_margins
from zonogpt_apps.bench.training.record import RECORD, Training, class_accuracies, counted_parameters
from zonogpt_apps.bench.training.schedule import schedule_of
from zonogpt_apps.bench.training.sst import Batch, Radius, by_length, pad, start, train_on_sentences

IMAGES, TEXTS = ModelId("mnist", "tiny", 1), ModelId("sst", "tiny", 1)


def test_sixteen_models_with_the_parameters_of_the_papers_table():
    assert len(PAPER_MODELS) == 16
    counts = {}
    for model in PAPER_MODELS:
        with torch.device("meta"):
            kind = zonogpt.GPT2ForImageClassification if model.task == "mnist" else GPT2ForSequenceClassification
            net = kind(config(model, 50257))
        counts[str(model)] = counted_parameters(model, {name: p.numel() for name, p in net.named_parameters()})
    ends = ["mnist-small-2", "mnist-small-12", "mnist-medium-2", "mnist-medium-24",
            "sst-small-2", "sst-small-12", "sst-medium-2", "sst-medium-24"]  # fmt: skip
    assert [f"{counts[name] / 1e6:.1f}" for name in ends] == [
        "14.2", "85.1", "25.3", "302.4", "52.8", "123.7", "76.7", "353.8"
    ]  # fmt: skip


def test_configuration_is_hugging_faces_but_for_sizes():
    text, image = config(ModelId("sst", "small", 2), 50257), config(ModelId("mnist", "medium", 4), 50257)
    assert (text.n_positions, text.n_embd, text.n_head, text.n_layer, text.num_labels) == (48, 768, 12, 2, 2)
    assert (image.n_positions, image.n_embd, image.n_head, image.n_layer, image.num_labels) == (28, 1024, 16, 4, 10)
    assert text.activation_function == "gelu_new"
    assert text.layer_norm_epsilon == 1e-5


@pytest.mark.parametrize("text", ["mnist-small", "mnist-huge-2", "sst-small-0", "cifar-small-2", "sst-small-x"])
def test_unknown_models_are_refused(text):
    with pytest.raises(OptionError, match="TASK-SIZE-BLOCKS"):
        parse_models(text)


def test_models_by_task_and_by_name():
    assert len(parse_models("sst")) == 8
    assert parse_models("mnist-small-2,mnist")[0] == ModelId("mnist", "small", 2)
    assert len(parse_models("mnist-small-2,mnist")) == 8
    assert parse_models(None) == PAPER_MODELS


# Data


def test_data_from_files(tmp_path):
    folder = write_data(tmp_path)
    images, tokenizer = read_images(folder, "test"), read_tokenizer(folder)
    assert images.pixels.shape == (20, 28, 28)
    assert images.pixels.dtype == torch.uint8
    found = read_sentences(folder, "validation", tokenizer)
    assert list(zip(found.texts, found.labels, strict=True)) == sentences()
    assert tokenizer.decode(found.ids[3]) == found.texts[3]


def test_sentences_longer_than_the_positions_are_left_out(tmp_path):
    folder = write_data(tmp_path)
    write_sst(folder / "sst2", "validation", [("x" * 48, 1), ("y" * 49, 0)])
    assert read_sentences(folder, "validation", read_tokenizer(folder)).texts == ["x" * 48]


def test_bad_data_is_refused(tmp_path):
    folder = write_data(tmp_path)
    with pytest.raises(SpecError, match="no folder mnist"):
        read_images(tmp_path / "sst2", "test")
    with pytest.raises(SpecError, match=r"no readable test.tsv"):
        read_sentences(folder, "test", read_tokenizer(folder))
    (folder / "sst2" / "train.tsv").write_text("label\tsentence\n1\tgood\n")
    with pytest.raises(SpecError, match="first line"):
        read_sentences(folder, "train", read_tokenizer(folder))
    (folder / "sst2" / "train.tsv").write_text("sentence\tlabel\ngood\n")
    with pytest.raises(SpecError, match="no readable"):
        read_sentences(folder, "train", read_tokenizer(folder))
    (folder / "gpt2" / "merges.txt").unlink()
    with pytest.raises(SpecError, match="merges"):
        read_tokenizer(folder)


def test_data_from_the_hub_is_the_same(tmp_path, monkeypatch):
    """The hub's own files: parquet with encoded pictures, sentences with a trailing space."""
    import pyarrow
    from pyarrow import parquet

    folder = write_data(tmp_path)
    ours = read_images(folder, "test")
    cells = []
    for picture in ours.pixels.numpy():
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "png")
        cells.append({"bytes": stream.getvalue(), "path": None})
    tables = {
        "mnist/test-00000-of-00001.parquet": {"image": cells, "label": ours.labels.tolist()},
        "data/validation-00000-of-00001.parquet": {
            "idx": list(range(60)),
            "sentence": [f"{text} " for text, _ in sentences()],
            "label": [label for _, label in sentences()],
        },
    }

    def fetch(repository: str, name: str, repo_type: str) -> str:
        assert repo_type == "dataset"
        parquet.write_table(pyarrow.table(tables[name]), tmp_path / "fetched.parquet")
        return str(tmp_path / "fetched.parquet")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    theirs = data_module.read_images(None, "test")
    assert torch.equal(theirs.pixels, ours.pixels)
    assert torch.equal(theirs.labels, ours.labels)
    tokenizer = read_tokenizer(folder)
    assert read_sentences(None, "validation", tokenizer) == read_sentences(folder, "validation", tokenizer)


def test_without_a_network_the_message_says_what_to_do(monkeypatch):
    def fail(*args: object, **kwargs: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    with pytest.raises(OptionError, match="give --data"):
        read_images(None, "test")


# The interval loss


def batch_of_balls(radius: float):
    """Four sentences of different lengths, padded; one token of each moves."""
    model = moved(zonogpt.load(text_classifier(3, text_config(num_labels=3))), torch.device("cpu"), torch.float64)
    g = torch.Generator().manual_seed(1)
    lengths = torch.tensor([5, 3, 4, 2])
    centre = 0.5 * torch.randn(4, 5, model.width, generator=g, dtype=torch.float64)
    radii = torch.zeros_like(centre)
    for row, token in enumerate((1, 2, 0, 1)):
        radii[row, token] = radius
    return model, Ball(centre, radii), lengths - 1, torch.tensor([0, 2, 1, 0])


def exact_margins(model, x, last, labels):
    outputs = torch.stack([model.forward(row[: end + 1]) for row, end in zip(x, last, strict=True)])
    return outputs, outputs.gather(1, labels[:, None]) - outputs


@pytest.mark.parametrize("radius", [0.0, 1e-9, 1e-4, 1e-2, 1.0])
def test_interval_margins_hold_at_vertices(radius):
    model, ball, last, labels = batch_of_balls(radius)
    outputs, margins = worst_margins(model, ball, last, labels)
    torch.testing.assert_close(outputs, exact_margins(model, ball.centre, last, labels)[0])
    g = torch.Generator().manual_seed(0)
    for _ in range(200):
        sign = torch.randint(0, 2, ball.radius.shape, generator=g) * 2.0 - 1
        exact = exact_margins(model, ball.centre + sign * ball.radius, last, labels)[1]
        assert bool((margins <= exact + 1e-12).all())


def test_balls_of_products_and_maps_are_as_small_as_they_can_be():
    one = torch.ones(1, 1, dtype=torch.float64)
    assert float(Ball(0 * one, one).matmul(Ball(0 * one, one)).radius) == 1
    assert float(Ball(2 * one, one).matmul(Ball(3 * one, 0.5 * one)).radius) == 1 * (3 + 0.5) + 2 * 0.5
    weight = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    out = Ball(torch.tensor([[1.0, 1.0]]).double(), torch.tensor([[1.0, 0.5]]).double()).dense(weight, one[0])
    assert (float(out.centre), float(out.radius)) == (0.0, 2.0)
    assert float(Ball(one, 0.25 * one).plus(Ball(one, 0.5 * one)).radius) == 0.75


@pytest.mark.parametrize("radius", [1e-6, 1e-2, 0.3, 3.0])
def test_layernorm_of_a_ball_holds_at_all_vertices(radius):
    """With d = 6 every corner can be looked at."""
    norm = layer_norm(generator(0), 6)
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=6)), dtype=torch.float64)
    for seed in range(50):
        centre = torch.randn(6, generator=generator(seed), dtype=torch.float64)
        out = _layernorm(norm, Ball(centre, torch.full_like(centre, radius)))
        torch.testing.assert_close(out.centre, norm(centre))
        assert bool(((norm(centre + radius * corners) - out.centre).abs() <= out.radius * (1 + 1e-12)).all())


def test_layernorm_of_a_ball_where_the_variance_rises_more_than_it_can_fall():
    """Almost constant tokens: the variance cannot fall below 0, but can rise by much."""
    d, tau = 768, 1e-5
    norm = Norm(torch.ones(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64), tau)
    sign = torch.ones(d, dtype=torch.float64)
    sign[::2] = -1
    spike = torch.zeros(d, dtype=torch.float64)
    spike[1] = math.sqrt(0.1 * tau * d)
    for centre in (math.sqrt(0.1 * tau) * sign, spike):
        radius = torch.full_like(centre, math.sqrt(3 * tau))
        out = _layernorm(norm, Ball(centre, radius))
        for corner in (sign, -sign, torch.where(torch.arange(d) == 1, 0.0, sign), torch.where(centre > 0, -1.0, sign)):
            assert bool(((norm(centre + radius * corner) - out.centre).abs() <= out.radius * (1 + 1e-9)).all())


def test_gelu_of_a_ball_holds_where_gelu_is_steepest():
    t = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    for radius in (1e-4, 0.1, 2.0):
        out = _gelu(Ball(t, torch.full_like(t, radius)))
        for end in (t - radius, t + radius):
            moved = torch.nn.functional.gelu(end, approximate="tanh") - out.centre
            assert bool((moved.abs() <= out.radius).all())


def test_softmax_moves_where_only_another_score_moves():
    visible = torch.zeros(1, 2, dtype=torch.bool)
    out = _softmax(Ball(torch.zeros(1, 2).double(), torch.tensor([[0.5, 0.0]]).double()), visible)
    for move in (-0.5, 0.5):
        exact = torch.tensor([[move, 0.0]]).double().softmax(-1)
        assert bool(((exact - out.centre).abs() <= out.radius).all())
    assert float(out.radius[0, 1]) < 0.5


def test_softmax_of_scores_that_move_by_hundreds():
    """A key of weight e^-80 may take it all: an exponent must not be cut before it meets a tiny weight."""
    eye, zeros = torch.eye(3).double(), torch.zeros(3).double()
    attention = Attention(eye.roll(1, 0), eye, eye, eye, zeros, zeros, zeros, zeros, n_heads=1)
    block = Block(Norm(zeros + 9, zeros, 1e-5), attention)
    reader = torch.tensor([1.0, 0.0, -1.0]).double()
    wanted = reader @ attention.w_q  # the key that the second token looks for
    before, after = torch.stack([-wanted, reader]), torch.stack([wanted, reader])
    out = _attention(block, Ball(before, (after - before).abs()))
    moved = (block(after) - after) - (block(before) - before)
    assert float(moved[1].abs().max()) > 1  # from its own value to the first token's
    assert bool((moved.abs() <= out.radius + 1e-9).all())


def test_interval_margins_at_radius_zero_are_exact():
    model, ball, last, labels = batch_of_balls(0.0)
    _, margins = worst_margins(model, ball, last, labels)
    torch.testing.assert_close(margins, exact_margins(model, ball.centre, last, labels)[1])


def test_interval_margins_are_no_looser_than_method_ibp():
    """Plain intervals lose orders of magnitude; the loss must not lose more than the method that proves."""
    torch.manual_seed(0)
    net = zonogpt.load(GPT2ForSequenceClassification(text_config(num_labels=3)).eval())
    net = moved(net, torch.device("cpu"), torch.float64)
    ids, labels = [1, 2, 3, 4, 5], torch.tensor([0])
    x = net.embedding(torch.tensor(ids))[None]
    for radius in (1e-7, 1e-6, 1e-5):
        radii = torch.zeros_like(x)
        radii[0, 1] = radius
        _, margins = worst_margins(net, Ball(x, radii), torch.tensor([4]), labels)
        proved = zonogpt.verify(net, zonogpt.embedding_ball(net, ids, [1], radius, 0), method="ibp").margins
        assert bool((margins[0, 1:] >= proved).all())


def test_small_radii_are_not_lost_in_rounding():
    """1e-19 is far below what float32 can add to a centre, but bounds still grow in proportion to it."""
    model, ball, last, labels = batch_of_balls(1.0)
    model, ball = moved(model, torch.device("cpu"), torch.float32), Ball(ball.centre.float(), ball.radius.float())
    lost = []
    for radius in (1e-19, 1e-18):
        x = Ball(ball.centre, radius * ball.radius)
        (slope,) = torch.autograd.grad(
            worst_margins(model, Ball(x.centre, x.radius.requires_grad_()), last, labels)[1].sum(), x.radius
        )
        lost.append((slope * x.radius).sum().item())
    assert lost[0] < 0
    assert lost[1] == pytest.approx(10 * lost[0], rel=1e-4)


def test_the_radius_follows_the_loss():
    radius = Radius(1e-8, 1e-8)
    radius.follow(interval=1.0, plain=0.6)
    assert radius.value > 1e-8
    radius.follow(interval=2.0, plain=0.6)
    radius.follow(interval=float("nan"), plain=0.6)
    assert radius.value < 1e-8
    assert radius.first == 1e-8


def test_batches_hold_every_example_once():
    lengths = torch.randint(1, 30, (103,), generator=torch.Generator().manual_seed(0))
    batches = by_length(lengths, 8, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(batches).tolist()) == list(range(103))
    spread = [int(lengths[batch].max() - lengths[batch].min()) for batch in batches]
    assert sum(spread) / len(spread) < 5


def test_where_intervals_say_nothing_the_fallback_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("zonogpt_apps.bench.training.sst.SMALLEST_RADIUS", 1.0)
    (record,) = train([TEXTS], write_data(tmp_path / "data"), tmp_path / "models")
    assert record.loss == "cross-entropy"
    assert record.schedule.interval_weight == 0
    assert "fallback" in record.remark
    assert record.interval_radius is None


def test_the_first_radius_is_the_largest_that_says_something(tmp_path):
    model = zonogpt.load(text_classifier(3))
    padded, lengths = pad([[1, 2, 3], [4, 5]], 6)
    batch = Batch.of(torch.arange(2), padded, lengths, torch.tensor([0, 1]), torch.device("cpu"))
    radius = start(model, batch)
    assert radius is not None
    assert 1e-12 < radius.value < 1e-3


def test_interval_training_raises_the_radius_it_can_bear(tmp_path):
    folder = write_data(tmp_path)
    tokenizer = read_tokenizer(folder)
    training = read_sentences(folder, "train", tokenizer)
    torch.manual_seed(0)
    schedule = replace(schedule_of(TEXTS), epochs=20)
    _, radius = train_on_sentences(TEXTS, training, tokenizer, schedule, torch.device("cpu"))
    assert radius is not None
    assert radius.value > 10 * radius.first


# Checkpoints


def test_training_is_reproducible_and_its_checkpoints_are_whole(tmp_path):
    folder = write_data(tmp_path / "data")
    seen = []
    first = train([IMAGES, TEXTS], folder, tmp_path / "models", on_model=lambda *news: seen.append(news))
    again = train([IMAGES, TEXTS], folder, tmp_path / "again")
    kept = train([IMAGES, TEXTS], folder, tmp_path / "models")
    assert [record.weights_sha256 for record in first] == [record.weights_sha256 for record in again]
    assert kept == first
    assert [(str(model), record is None) for model, record, _ in seen] == [
        ("mnist-tiny-1", True), ("mnist-tiny-1", False), ("sst-tiny-1", True), ("sst-tiny-1", False)
    ]  # fmt: skip
    for record in first:
        assert not record.fails
        model = zonogpt.load(tmp_path / "models" / str(record.model))
        assert model.n_outputs == len(record.class_accuracy)
    assert first[1].loss == "interval bounds"
    assert zonogpt.load(tmp_path / "models" / "sst-tiny-1").pad_token_id == 256


def test_a_record_is_of_its_own_weights(tmp_path):
    folder = write_data(tmp_path / "data")
    (record,) = train([IMAGES], folder, tmp_path / "models")
    place = tmp_path / "models" / "mnist-tiny-1"
    assert Training.read(place) == record
    with pytest.raises(ModelError, match=r"no training.json"):
        Training.read(tmp_path)
    weights = bytearray((place / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (place / "model.safetensors").write_bytes(weights)
    with pytest.raises(ModelError, match="train it again"):
        Training.read(place)
    with pytest.raises(ModelError, match="train it again"):  # a changed model is not overwritten
        train([IMAGES], folder, tmp_path / "models")
    (place / RECORD).write_text(json.dumps({"task": "mnist"}))
    with pytest.raises(ModelError, match="not the record"):
        Training.read(place)
    (place / RECORD).unlink()  # half done: begun anew
    assert train([IMAGES], folder, tmp_path / "models")[0].weights_sha256 == record.weights_sha256


def test_accuracy_floors(tmp_path):
    (record,) = train([TEXTS], write_data(tmp_path / "data"), tmp_path / "models")
    assert not replace(record, accuracy=0.79, class_accuracy=(0.71, 0.86)).fails
    assert "below 0.78" in replace(record, accuracy=0.77).fails
    assert "of a class" in replace(record, accuracy=0.79, class_accuracy=(0.69, 0.88)).fails
    assert class_accuracies([0, 0, 1, 0], [0, 1, 1, 1]) == (1.0, 1 / 3)


def test_a_folder_of_another_model_is_refused(tmp_path: Path):
    folder = write_data(tmp_path / "data")
    train([IMAGES], folder, tmp_path / "models")
    (tmp_path / "models" / "mnist-tiny-1").rename(tmp_path / "models" / "mnist-tiny-2")
    with pytest.raises(ModelError, match="holds mnist-tiny-1"):
        train([ModelId("mnist", "tiny", 2)], folder, tmp_path / "models")


def test_layernorms_interval_holds_where_the_variance_falls():
    """Balls that nearly reach a variance of zero: 1 / sqrt(a) rises most there, and the range is no help yet."""
    g = torch.Generator().manual_seed(0)
    for d in (2, 3, 5):
        norm = Norm(torch.ones(d).double(), torch.zeros(d).double(), 0.5)
        for _ in range(200):
            c = torch.randn(d, generator=g, dtype=torch.float64)
            r = c.std() * torch.rand(d, generator=g, dtype=torch.float64) * (torch.rand(d, generator=g) < 0.6)
            ball = _layernorm(norm, Ball(c, r))
            x = c + r * (2 * torch.rand(4000, d, generator=g, dtype=torch.float64) - 1).sign()
            x[:2000] = c + r * (2 * torch.rand(2000, d, generator=g, dtype=torch.float64) - 1)
            assert ((norm(x) - ball.centre).abs() <= ball.radius + 1e-12).all()
