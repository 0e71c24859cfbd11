"""Tokens as text, labels by name: what a user says and reads, and that nothing moves that is not shown."""

import json
import re

import pytest
import torch
import typer.testing

import zonogpt
from builders import config, image_model, language_model, text_classifier
from named_model import LABELS, save_named_model
from program import zono
from zonogpt.cli.answers.inputs import one_input
from zonogpt.cli.app import app
from zonogpt.cli.asking import Inputs
from zonogpt.model.names import labels_of, output_number
from zonogpt.spec.positions import Positions

HOMES = {"verify": "verdict", "radius": "radius", "compare": "comparison"}
FILM = "a good film, a good story"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_named_model(tmp_path_factory.mktemp("named"), pad_token_id=329)


@pytest.fixture(scope="module")
def model(folder):
    return zonogpt.load(folder)


@pytest.fixture(scope="module")
def framed(tmp_path_factory):
    """A model whose tokenizer puts <s> before a text and </s> after it."""
    return zonogpt.load(save_named_model(tmp_path_factory.mktemp("framed"), adds_tokens=True, pad_token_id=329))


def test_a_text_is_its_tokens(model):
    text = zonogpt.text(model, FILM)
    assert "".join(text.tokens) == FILM
    assert list(text) == list(text.ids)
    assert len(text) == len(text.tokens) == len(text.special)
    assert not any(text.special)


def test_a_word_is_found_wherever_it_stands_and_whole(model):
    text = zonogpt.text(model, FILM)
    good = text.at("good")
    assert len(good) == 2
    assert {text.tokens[k].strip() for k in good} == {"good"}
    split = zonogpt.text(model, "it is unforgettably good")
    pieces = split.at("unforgettably")
    assert len(pieces) > 1
    assert "".join(split.tokens[k] for k in pieces).strip() == "unforgettably"
    assert set(split.at("good", "unforgettably")) == set(pieces) | set(split.at("good"))
    for absent in ("great", "goo", "", "Good"):
        with pytest.raises(zonogpt.SpecError, match="does not occur in the text"):
            text.at(absent)


def test_a_text_takes_the_place_of_its_ids(model):
    text = zonogpt.text(model, FILM)
    spec = zonogpt.embedding_ball(model, text, text.at("film"), 1e-6)
    assert spec == zonogpt.embedding_ball(model, list(text.ids), text.at("film"), 1e-6)
    assert torch.equal(zonogpt.logits(model, text), zonogpt.logits(model, list(text.ids)))
    assert zonogpt.embedding_ball(model, torch.tensor([text.ids]), [1], 1e-6) == zonogpt.embedding_ball(
        model, text, [1], 1e-6
    )
    with pytest.raises(zonogpt.SpecError, match=r"\(S,\) or \(1, S\)"):
        zonogpt.embedding_ball(model, [list(text.ids)] * 2, [1], 1e-6)


def test_tokens_that_the_tokenizer_adds_are_there_and_do_not_move(framed):
    """As in transformers' own pipeline. By number, they can be asked to move."""
    from transformers import pipeline

    text = zonogpt.text(framed, "a good film")
    assert (text.tokens[0], text.tokens[-1]) == ("<s>", "</s>")
    assert text.special == (True, *[False] * (len(text) - 2), True)
    inside = tuple(range(1, len(text) - 1))
    assert zonogpt.embedding_ball(framed, text, "all", 1e-6).input.embed.positions == inside
    assert zonogpt.embedding_ball(framed, text, "last", 1e-6).input.embed.positions == inside[-1:]
    assert Positions.parse("random:99").of(text, len(text)) == list(inside)
    for seed in range(20):
        assert set(Positions.parse("random:1").of(text, len(text), seed)) <= set(inside)
    assert zonogpt.embedding_ball(framed, text, [0], 1e-6).input.embed.positions == (0,)
    ours = zonogpt.logits(framed, text).softmax(-1)
    theirs = pipeline("text-classification", str(framed.folder), top_k=None)("a good film")
    theirs = theirs[0] if isinstance(theirs[0], list) else theirs  # as old releases of transformers return it
    assert {one["label"] for one in theirs} == set(LABELS.values())
    for one in theirs:
        number = framed.labels.index(one["label"])
        assert float(ours[number]) == pytest.approx(one["score"], abs=1e-5)


def test_a_typed_special_token_is_a_token_like_others(framed):
    text = zonogpt.text(framed, "a </s> film")
    at = text.tokens.index("</s>")
    assert not text.special[at]


def test_labels_have_the_names_of_the_config(model, folder):
    assert model.labels == tuple(LABELS.values())
    spec = zonogpt.embedding_ball(model, zonogpt.text(model, FILM), "last", 1e-6, "POSITIVE")
    assert spec.label == 1
    assert spec.claim.words == "label 1 ('POSITIVE')"
    assert spec == zonogpt.embedding_ball(model, zonogpt.text(model, FILM), "last", 1e-6, 1)
    for wrong in ("positive", "LABEL_1", "3.0"):
        with pytest.raises(zonogpt.SpecError, match="there are 'NEGATIVE', 'POSITIVE', 'NEUTRAL'"):
            output_number(model, wrong)
    assert "outputs NEGATIVE, POSITIVE, NEUTRAL" in repr(model)


def test_names_that_transformers_made_up_are_none():
    assert labels_of({0: "LABEL_0", 1: "LABEL_1"}) is None
    assert labels_of({"1": "b", "0": "a"}) == ("a", "b")
    assert zonogpt.load(text_classifier()).labels is None
    assert zonogpt.load(image_model()).labels is None


def test_a_name_that_is_another_number_is_refused():
    """Stars 1 to 3 are the outputs 0 to 2: "2" could be either."""
    names = {0: "1", 1: "2", 2: "3"}
    model = zonogpt.load(text_classifier(cfg=config(pad_token_id=0, id2label=names)))
    with pytest.raises(zonogpt.SpecError, match="'2' could be output 2 or the one of that name, 1"):
        output_number(model, "2")
    assert output_number(model, 2) == 2
    assert output_number(model, "0") == 0  # no output has this name
    twice = zonogpt.load(text_classifier(cfg=config(pad_token_id=0, id2label={0: "a", 1: "b", 2: "a"})))
    with pytest.raises(zonogpt.SpecError, match="2 labels are called 'a'"):
        output_number(twice, "a")


def test_labels_of_a_language_model_are_tokens(tmp_path):
    save_named_model(tmp_path)
    language_model(cfg=config(vocab_size=330, n_positions=32)).save_pretrained(tmp_path)
    model = zonogpt.load(tmp_path)
    text = zonogpt.text(model, "it is not")
    good = zonogpt.text(model, "not good").ids[-1]
    spec = zonogpt.embedding_ball(model, text, "last", 1e-6, " good")
    assert spec.label == good
    assert "' good'" in spec.claim.words
    with pytest.raises(zonogpt.SpecError, match="is not one token but"):
        zonogpt.embedding_ball(model, text, "last", 1e-6, " good film")


def test_an_object_may_bring_its_tokenizer(folder):
    from transformers import AutoTokenizer, GPT2ForSequenceClassification

    net = GPT2ForSequenceClassification.from_pretrained(folder)
    alone = zonogpt.load(net)
    with pytest.raises(zonogpt.SpecError, match="came without a tokenizer"):
        zonogpt.text(alone, "a film")
    with pytest.raises(zonogpt.ModelError, match="one of transformers; got str"):
        zonogpt.load(net, tokenizer="gpt2")
    both = zonogpt.load(net, tokenizer=AutoTokenizer.from_pretrained(folder))
    assert zonogpt.text(both, FILM).ids == zonogpt.text(zonogpt.load(folder), FILM).ids


def test_moved_tokens_are_shown_and_measured(model, folder):
    run = zono("verify", folder, "--text", FILM, "--words", "good", "--radius", "1e-6")
    assert run.returncode == 0, run.stderr
    text = zonogpt.text(model, FILM)
    first, second = text.at("good")
    assert re.search(rf"move together:\n  ' good' \({first}\), by .*\n  ' good' \({second}\), by ", run.stdout)
    table = model.embedding.tokens.double()
    own = table[text.ids[first]]
    distance = (table - own).abs().amax(-1)
    distance[text.ids[first]] = torch.inf
    share = 100 * 1e-6 / float(distance.min())
    assert f"by up to {100 * 1e-6 / float(own.abs().max()):.3g} % of its norm (l∞)" in run.stdout
    nearest = text.tokens and zonogpt.model.names.token_names(model, [int(distance.argmin())])[0]
    assert f", {share:.3g} % of the way to the nearest other token, {nearest!r}" in run.stdout


def test_a_ball_that_holds_other_tokens_says_so(folder):
    out = zono("verify", folder, "--text", FILM, "--positions", "1", "--radius", "100").stdout
    assert re.search(r"by up to \S+ times its norm \(l∞\), which is beyond the nearest other token, ", out)


@pytest.mark.parametrize("command", [("verify", "--radius", "1e-6"), ("inspect",)])
def test_what_moves_must_be_said(folder, command):
    run = zono(*command, folder, "--text", "a film")
    assert run.returncode == 2
    assert "say which tokens move, by --positions or --words. The tokens: 0 'a', 1 ' film'" in run.stderr


def test_named_tokens_move_together_or_one_by_one(folder, model, tmp_path):
    """The same words mean the same in every command."""
    base = ("--text", FILM, "--words", "good", "--no-attack", "--tolerance", "0.5", "--high", "1e-2")
    at = zonogpt.text(model, FILM).at("good")
    for extra, moving in ((("--each",), [[at[0]], [at[1]]]), ((), [list(at)])):
        run = zono("radius", folder, *base, *extra, "--json", tmp_path / "radius.json")
        assert run.returncode == 0, run.stderr
        rows = json.loads((tmp_path / "radius.json").read_text())["rows"]
        assert [row["positions"] for row in rows] == moving
        assert {token for row in rows for token in row["tokens"]} == {" good"}
    one, both = (
        zono("verify", folder, "--text", FILM, "--words", "good", "--radius", "1e-6", *extra, "--json", "-")
        for extra in ((), ("--each",))
    )
    assert [m["position"] for m in json.loads(one.stdout)["input"]["moved"]] == list(at)
    results = json.loads(both.stdout)["results"]
    assert [[m["position"] for m in result["input"]["moved"]] for result in results] == [[k] for k in at]
    assert "verified" in both.stderr  # for people


def test_random_positions_of_a_single_text_are_drawn_with_the_seed(model):
    text = zonogpt.text(model, FILM)
    drawn = [one_input(model, Inputs(text=FILM, positions="random:1", seed=seed)).moving for seed in range(8)]
    assert drawn == [Positions.parse("random:1").of(text, len(text), seed) for seed in range(8)]
    assert len({position for (position,) in drawn}) > 1


@pytest.mark.parametrize("command", ["verify", "radius", "compare"])
def test_the_seed_of_the_command_line_is_that_of_random_positions(folder, command, monkeypatch):
    asked = []
    monkeypatch.setattr(f"zonogpt.cli.answers.{HOMES[command]}.answer", lambda *args: asked.append(args[1]) or 0)
    args = [command, str(folder), "--text", FILM, "--positions", "random:1", "--seed", "3"]
    result = typer.testing.CliRunner().invoke(app, [*args, *(["--radius", "1e-6"] * (command == "verify"))])
    assert result.exit_code == 0, result.output
    assert asked[0].seed == 3


def test_a_file_of_texts_with_names_for_labels(folder, model, tmp_path):
    (tmp_path / "data.tsv").write_text("label\ttext\nPOSITIVE\ta good film\nNEGATIVE\tit is not good\n")
    data = zonogpt.open_dataset(tmp_path / "data.tsv", model)
    assert [data.label(0), data.label(1)] == [1, 0]
    found = zonogpt.certify(model, data, [1e-7], positions="words:good", each=True, attack=False)
    assert {row.tokens[0] for row in found.rows} == {" good"}
    (tmp_path / "bad.tsv").write_text("label\ttext\nGOOD\ta good film\n")
    with pytest.raises(zonogpt.SpecError, match="line 2: no label is called 'GOOD'"):
        zonogpt.open_dataset(tmp_path / "bad.tsv", model)
    (tmp_path / "other.tsv").write_text("label\ttext\n1\ta bad film\n")
    with pytest.raises(zonogpt.SpecError, match=r"line 2: the word 'good' does not occur"):
        zonogpt.certify(model, zonogpt.open_dataset(tmp_path / "other.tsv", model), [1e-7], positions="words:good")


def test_a_data_set_says_which_tokens_moved(folder, tmp_path):
    """A word that occurs twice in a text moves twice there, and the output says so."""
    (tmp_path / "data.txt").write_text("a good film\na good film, a good story\n")
    run = [str(folder), "--data", str(tmp_path / "data.txt")]
    fast = ["--radius", "1e-7", "--no-attack"]
    words = zono("certify", *run, *fast, "--words", "good").stdout
    assert "moves: 1 to 2 tokens of each text, together; most: ' good' (1), ' good' (5) in line 2" in words
    last = zono("certify", *run, *fast).stdout
    assert "moves: one token of each text, as ' film' (2) in line 1" in last
    each = zono("compare", *run, "--words", "good", "--each", "--radius", "1e-7", "--methods", "ibp").stdout
    assert "moves: one token at a time, 3 tokens of 2 texts, as ' good' (1) in line 1" in each
    assert "moves" not in zono("certify", "zoo:digits", "--data", "zoo:digits", "--count", "1", *fast).stdout


@pytest.mark.parametrize(
    ("positions", "each", "said"),
    [
        ("last", False, "l∞ changes of the last token"),
        ("all", True, "l∞ changes of all tokens, one at a time"),
        ("random:2", False, "l∞ changes of 2 random tokens"),
        ("words:good", False, "l∞ changes of good"),
        ("0,1", False, "l∞ changes of tokens 0,1"),
    ],
)
def test_a_study_of_texts_is_about_what_moved(folder, model, tmp_path, positions, each, said):
    (tmp_path / "data.txt").write_text("a good film\n")
    data = zonogpt.open_dataset(tmp_path / "data.txt", model)
    found = zonogpt.certify(model, data, [1e-7], positions=positions, each=each, attack=False)
    assert found.changes == said
    assert said in found.plot().axes[0].get_title(loc="left")
    assert found.counted == ("3 tokens of 1 texts" if each else "1")


def test_a_counterexample_speaks_the_users_language(folder):
    run = zono("verify", folder, "--text", FILM, "--positions", "all", "--radius", "1", "--attack", "--label", "1")
    assert run.returncode == 20, run.stderr + run.stdout
    assert "instead of 1 ('POSITIVE')" in run.stdout
    assert "token ' film' at position" in run.stdout


def test_a_folder_that_is_written_anew_has_its_new_tokenizer(tmp_path):
    old = zonogpt.load(save_named_model(tmp_path, pad_token_id=329))
    before = zonogpt.text(old, "a good film").ids
    save_named_model(tmp_path, adds_tokens=True, pad_token_id=329)
    assert zonogpt.text(old, "a good film").ids == before  # as it was loaded
    anew = zonogpt.load(tmp_path)
    assert zonogpt.text(anew, "a good film").ids != before
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text() + "\n")
    late = zonogpt.load(tmp_path)
    file.write_text(file.read_text() + "\n")  # behind its back
    with pytest.raises(zonogpt.ZonoGptError, match=r"tokenizer\.json has changed since"):
        zonogpt.text(late, "a bad film")


def test_overlapping_words_and_signs_are_found(model):
    text = zonogpt.text(model, "good good good! film")
    goods = text.at("good")
    assert text.at("good good") == goods
    assert "".join(text.tokens[k] for k in text.at("!")).strip() == "!"


def test_what_is_no_token_is_no_label(tmp_path):
    save_named_model(tmp_path)
    language_model(cfg=config(vocab_size=330, n_positions=32)).save_pretrained(tmp_path)
    run = zono("verify", tmp_path, "--text", "a good film", "--words", "film", "--radius", "1e-7", "--target", " good")
    assert "' good'" in run.stdout  # and not 'good', which is another token
    with pytest.raises(zonogpt.SpecError, match="is a number or a name; got True"):
        output_number(zonogpt.load(tmp_path), True)


def test_ids_may_be_used_again(model):
    ids = torch.tensor(zonogpt.text(model, FILM).ids)
    result = zonogpt.verify(model, zonogpt.embedding_ball(model, ids, [1], 1e-7))
    kept = ids.tolist()
    ids[0] = 7
    assert result.about["input"]["ids"] == kept


def test_a_text_is_of_the_model_that_it_was_read_for(model, framed):
    with pytest.raises(zonogpt.SpecError, match="was read for another model"):
        zonogpt.embedding_ball(model, zonogpt.text(framed, FILM), "last", 1e-7)


def test_the_class_of_a_tokenizer_is_the_configs(tmp_path):
    """If only config.json names the class, it is used, as by transformers' own AutoTokenizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import AutoTokenizer

    text_classifier(cfg=config(pad_token_id=0)).save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "good": 2, "film": 3}, unk_token="<unk>"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)("A good film")["input_ids"]
    assert zonogpt.text(zonogpt.load(tmp_path), "A good film").ids == tuple(theirs) == (1, 2, 3)


def test_an_unknown_word_is_no_label_of_a_language_model(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "good": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    model = zonogpt.load(language_model(), tokenizer=PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>"))
    assert output_number(model, "good") == 1
    with pytest.raises(zonogpt.SpecError, match="'xyzzy' is no token"):
        output_number(model, "xyzzy")


def test_a_prefix_that_pipelines_would_add_is_refused():
    with pytest.raises(zonogpt.ModelError, match="prefix"):
        zonogpt.load(language_model(cfg=config(prefix="it is not ")))


def test_an_exact_name_comes_before_a_trimmed_one():
    names = {0: " A", 1: "A", 2: "B"}
    model = zonogpt.load(text_classifier(cfg=config(pad_token_id=0, id2label=names)))
    assert [output_number(model, name) for name in (" A", "A", " B ")] == [0, 1, 2]
