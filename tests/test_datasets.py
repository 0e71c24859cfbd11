"""Data sets: what is read is what was written, lazily and in order; what is broken is refused by name."""

import gzip

import numpy as np
import pytest
import torch
from PIL import Image

import zonogpt
from bench_data import write_tokenizer
from builders import config, language_model, text_classifier
from data_files import idx_bytes, write_mnist
from zonogpt.datasets import open_dataset
from zonogpt.datasets.pictures import read_image
from zonogpt.datasets.tables import read_lines
from zonogpt.spec.positions import Positions

DIGITS = zonogpt.load(zonogpt.zoo.path("digits"))
TEXT = zonogpt.load(text_classifier(3))
IMAGES, LABELS = zonogpt.zoo.samples("digits")


def digits(path, **options):
    return open_dataset(path, DIGITS, "digits", **options)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_files(tmp_path, packed):
    write_mnist(tmp_path, 5, packed=packed)
    write_mnist(tmp_path, 3, "train", packed=packed)
    data = digits(tmp_path)
    assert len(data) == 5
    assert len(digits(tmp_path, split="train")) == 3
    assert (data.name(1), data.label(1)) == ("t10k 1", int(LABELS[7]))
    assert torch.equal(data.read(1), IMAGES[7])  # the very floats of the bundled samples


BROKEN = {
    "magic": (lambda raw: b"\0\0\x0d\x03" + raw[4:], "begin like an MNIST file"),
    "short header": (lambda raw: raw[:10], "begin like an MNIST file"),
    "cut": (lambda raw: raw[:-1], "fewer"),
    "longer": (lambda raw: raw + b"\0", "more"),
    "a lie about the size": (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "promises"),
    "other count": (lambda raw: idx_bytes(np.zeros((4, 28, 28))), "4 images and 5 labels"),
}


@pytest.mark.parametrize("name", list(BROKEN))
@pytest.mark.parametrize("packed", [True, False])
def test_broken_mnist_files(tmp_path, name, packed):
    change, word = BROKEN[name]
    write_mnist(tmp_path, 5, packed=packed)
    file = next(tmp_path.glob("*images*"))
    raw = change(gzip.decompress(file.read_bytes()) if packed else file.read_bytes())
    file.write_bytes(gzip.compress(raw) if packed else raw)
    # An unpacked file's size is known, so there the header is enough to tell.
    word = "promises" if name == "cut" and not packed else word
    with pytest.raises(zonogpt.SpecError, match=word):
        digits(tmp_path)


def test_mnist_files_that_are_no_gzip_or_not_there(tmp_path):
    write_mnist(tmp_path, 5)
    with pytest.raises(zonogpt.SpecError, match="train-images"):
        digits(tmp_path, split="train")
    with pytest.raises(zonogpt.OptionError, match="split"):
        digits(tmp_path, split="validation")
    images = tmp_path / "t10k-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-20])
    with pytest.raises(zonogpt.SpecError, match="cannot be read"):
        digits(tmp_path)
    images.write_text("not packed")
    with pytest.raises(zonogpt.SpecError, match="cannot be read"):
        digits(tmp_path)
    images.unlink()
    (tmp_path / "train-images-idx3-ubyte").touch()
    with pytest.raises(zonogpt.SpecError, match="neither t10k-images"):
        digits(tmp_path)


def test_folder_of_labelled_pictures_takes_the_labels_in_turn(tmp_path):
    for label, name, i in ((10, "a.png", 0), (2, "b.png", 1), (2, "a.npy", 2), (2, "c.png", 3), (10, "b.png", 4)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        file = tmp_path / str(label) / name
        if name.endswith(".npy"):
            np.save(file, IMAGES[i].numpy())
        else:
            Image.fromarray((IMAGES[i] * 255).round().to(torch.uint8).numpy()).save(file)
    (tmp_path / "notes").mkdir()  # holds no picture
    (tmp_path / "2" / "README.txt").write_text("not a picture either")
    data = digits(tmp_path)
    names = [data.name(i) for i in range(len(data))]
    assert names == ["2/a.npy", "10/a.png", "2/b.png", "10/b.png", "2/c.png"]
    assert [data.label(i) for i in range(5)] == [2, 10, 2, 10, 2]
    torch.testing.assert_close(data.read(0), IMAGES[2].double())
    torch.testing.assert_close(data.read(1), IMAGES[0])


def test_flat_folder_has_no_labels(tmp_path):
    for name in "ba":
        np.save(tmp_path / f"{name}.npy", IMAGES[0].numpy())
    data = digits(tmp_path)
    assert [data.name(i) for i in range(2)] == ["a.npy", "b.npy"]
    assert data.label(0) is None
    (tmp_path / "3").mkdir()
    np.save(tmp_path / "3" / "c.npy", IMAGES[0].numpy())
    with pytest.raises(zonogpt.SpecError, match="both"):
        digits(tmp_path)


def test_bad_folders(tmp_path):
    with pytest.raises(zonogpt.SpecError, match="no pictures"):
        digits(tmp_path)
    with pytest.raises(zonogpt.SpecError, match="no file or directory"):
        digits(tmp_path / "nowhere")
    (tmp_path / "cats").mkdir()
    np.save(tmp_path / "cats" / "c.npy", IMAGES[0].numpy())
    with pytest.raises(zonogpt.SpecError, match="cats"):
        digits(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(zonogpt.SpecError, match="directory"):
        digits(tmp_path / "file")
    with pytest.raises(zonogpt.SpecError, match="is a directory"):
        open_dataset(tmp_path, TEXT, "text")


def lines(tmp_path, content, source="no tokenizer here"):
    file = tmp_path / "lines.txt"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_dataset(file, TEXT, source)


def test_lines_of_token_ids(tmp_path):
    data = lines(tmp_path, "1\t5, 7,3\r\n\n0\t2\n")
    assert [(data.name(i), data.label(i), data.read(i)) for i in range(2)] == [
        ("line 1", 1, [5, 7, 3]),
        ("line 3", 0, [2]),
    ]
    data = lines(tmp_path, "5,7\n3")
    assert (data.label(0), data.read(1)) == (None, [3])


def test_lines_of_text(tmp_path):
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2TokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(["a good film", "a bad film"], vocab_size=290, min_frequency=1)
    GPT2TokenizerFast(tokenizer_object=bpe._tokenizer).save_pretrained(tmp_path)
    language_model(cfg=config(vocab_size=300, n_positions=32)).save_pretrained(tmp_path)
    data = lines(tmp_path, "0\ta good film\n1\ta bad\tfilm\n", str(tmp_path))
    assert bpe.decode(data.read(0)) == "a good film"
    assert bpe.decode(data.read(1)) == "a bad\tfilm"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "no examples"),
        ("\n \n", "no examples"),
        ("good\t1,2", "line 1.*no label"),
        ("1\t1,2\n3,4", "line 2 has no label"),
        (b"\xff\xfe\x00", "UTF-8"),
        ("1\ta text", "no directory"),  # needs a tokenizer
        ("1" * 6000, "no directory"),  # no token id
    ],
)
def test_bad_lines(tmp_path, content, word):
    with pytest.raises(zonogpt.ZonoGptError, match=word):
        lines(tmp_path, content)


def labelled(tmp_path, name, content):
    """The examples of a file, as (number of the line, label, text), which need no tokenizer."""
    return [(line.number, line.label, line.text) for line in read_lines(tmp_path / name, content)]


GOOD, BAD = ("1", "good film"), ("0", "bad, really")
TABLES = {
    "label first": ("a.csv", '1,good film\n0,"bad, really"\n', 1),
    "label last": ("a.csv", 'good film,1\n"bad, really",0\n', 1),
    "header": ("a.CSV", 'label,text\r\n1,good film\r\n0,"bad, really"\r\n', 2),
    "header, other order, other columns": ("a.csv", 'idx, Sentence ,label\n7,good film,1\n8,"bad, really",0\n', 2),
    "tabs": ("a.tsv", "1\tgood film\n0\tbad, really\n", 1),
    "tabs, header": ("a.tsv", "sentence\tlabel\ngood film\t1\nbad, really\t0\n", 2),
    "JSON": ("a.jsonl", '{"text": "good film", "label": 1}\n{"label": 0, "text": "bad, really", "idx": 3}\n', 1),
    "plain": ("a.txt", "1\tgood film\n0\tbad, really\n", 1),
}


@pytest.mark.parametrize("name", TABLES)
def test_labelled_lines(tmp_path, name):
    file, content, first = TABLES[name]
    assert labelled(tmp_path, file, content) == [(first, *GOOD), (first + 1, *BAD)]
    assert labelled(tmp_path, f"{file}.gz", content) == [(first, *GOOD), (first + 1, *BAD)]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_labels_by_name(tmp_path, name):
    """Which column of a table without a header is the label is told by the names that the labels have."""
    content = {
        "a.csv": "good film,POSITIVE\nNEGATIVE is a word,NEGATIVE\n",
        "a.tsv": "POSITIVE\tgood film\nNEGATIVE\tNEGATIVE is a word\n",
        "a.jsonl": '{"text": "good film", "label": "POSITIVE"}\n{"label": "NEGATIVE", "text": "NEGATIVE is a word"}\n',
    }[name]
    lines = read_lines(tmp_path / name, content, ("NEGATIVE", "POSITIVE"))
    assert [(line.label, line.text) for line in lines] == [
        ("POSITIVE", "good film"), ("NEGATIVE", "NEGATIVE is a word"),
    ]  # fmt: skip
    if name != "a.jsonl":
        with pytest.raises(zonogpt.SpecError, match="not clear which"):
            read_lines(tmp_path / name, content)


def test_images_are_no_texts(tmp_path):
    texts = zonogpt.load(text_classifier())
    with pytest.raises(zonogpt.SpecError, match=r"zoo:digits holds images; .* reads texts"):
        zonogpt.open_dataset("zoo:digits", texts)
    assert repr(zonogpt.open_dataset("zoo:digits", zonogpt.load("zoo:digits"))).startswith(
        "Given(20 inputs: zoo:digits/0"
    )


def test_lines_without_labels(tmp_path):
    for name, content in (
        ("a.csv", 'good film\n"bad, really"\n'), ("a.csv", 'text\ngood film\n"bad, really"\n'),
        ("a.tsv", "good film\nbad, really\n"), ("a.txt", "good film\nbad, really\n"),
        ("a.jsonl", '{"text": "good film"}\n{"text": "bad, really", "label": null}\n'),
    ):  # fmt: skip
        assert [line[1:] for line in labelled(tmp_path, name, content)] == [(None, GOOD[1]), (None, BAD[1])], name


def test_token_ids_in_tables(tmp_path):
    for name, content in (
        ("a.csv", 'label,ids\n1,"5,7, 3"\n0,2\n'),
        ("a.tsv", "1\t5,7,3\n0\t2\n"),
        ("a.jsonl", '{"ids": [5, 7, 3], "label": 1}\n{"ids": [2], "label": 0}\n'),
    ):
        (tmp_path / name).write_text(content)
        data = open_dataset(tmp_path / name, TEXT, "no tokenizer here")
        assert [(data.label(i), data.read(i)) for i in range(2)] == [(1, [5, 7, 3]), (0, [2])]


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.txt", "1,good film\n0,bad film\n", "looks like CSV.*[.]csv"),
        ("a.txt", "good film,1\nbad film,0\n", "looks like CSV"),
        ("a.txt", "label,text\ngreat,good film\n", "looks like CSV"),
        ("a", "1, 3,000 people\n", "looks like CSV"),
        ("a.txt", '{"text": "good film", "label": 1}\n', "looks like JSON.*[.]jsonl"),
        ("a.json", '[{"text": "good film", "label": 1}]', "looks like JSON"),
        ("a.csv", "good,film\nbad,film\n", "not clear which.*label,text"),
        ("a.csv", "1,5\n0,2\n", "not clear which"),
        ("a.csv", "5,17,3\n2,4,6\n", "not clear which"),
        ("a.csv", "1,good film\n0,bad, really\n", "line 2 has 3 columns"),
        ("a.csv", 'label,text\n1,"good\n', "line 2 is not CSV"),
        ("a.csv", "label,text\ngreat,good film\n", "line 2: no label is called 'great'"),
        ("a.csv", "", "no examples"),
        ("a.csv", "label,text\n", "no examples"),
        ("a.tsv", "1\tgood film\nbad film\n", "line 2 has 1 columns"),
        ("a.jsonl", "good film\n", "line 1 is not JSON"),
        ("a.jsonl", '{"text": "good film", "label": 1.0}\n', "the label an integer"),
        ("a.csv", "label,review\n1,good film\n", "columns label, review, and none of them is the text"),
        ("a.jsonl", '{"text": "good film", "label": true}\n', "the label an integer"),
        ("a.jsonl", '{"review": "good film"}\n', '"text": "a film"'),
        ("a.jsonl", '{"text": "a", "ids": [1]}\n', '"text": "a film"'),
        ("a.jsonl", '{"ids": [1.5]}\n', '"ids"'),
        ("a.jsonl", '["good film"]\n', '"text": "a film"'),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', "line 2: the label is missing"),
    ],
)
def test_tables_that_are_refused(tmp_path, name, content, word):
    (tmp_path / name).write_text(content)
    write_tokenizer(tmp_path)
    language_model(cfg=config(vocab_size=300)).save_pretrained(tmp_path)
    with pytest.raises(zonogpt.SpecError, match=word):
        open_dataset(tmp_path / name, TEXT, str(tmp_path))


def test_texts_with_numbers_and_commas_are_plain(tmp_path):
    content = "1,000 reasons\na film, 2 stars\n"
    assert [line[2] for line in labelled(tmp_path, "a.txt", content)] == content.splitlines()


def test_pictures_in_colour(tmp_path):
    """Grey is read however it is stored; colour and transparency are refused."""
    grey = (IMAGES[0] * 255).round().to(torch.uint8).numpy()
    for mode in ("L", "RGB", "RGBA", "LA", "P"):
        Image.fromarray(grey).convert(mode).save(tmp_path / "grey.png")
        torch.testing.assert_close(read_image(tmp_path / "grey.png"), IMAGES[0])
    for place, word in ((0, "in colour"), (3, "transparent")):
        pixels = np.array(Image.fromarray(grey).convert("RGBA"))
        pixels[5, 5, place] = 77 if place == 3 else pixels[5, 5, 1] + 1
        Image.fromarray(pixels).save(tmp_path / "odd.png")
        with pytest.raises(zonogpt.SpecError, match=word):
            read_image(tmp_path / "odd.png")
    Image.fromarray(grey).save(tmp_path / "key.png", transparency=0)  # one grey that stands for nothing
    with pytest.raises(zonogpt.SpecError, match="transparent"):
        read_image(tmp_path / "key.png")


def test_positions():
    assert Positions.parse("last").of(None, 5) == [4]
    assert Positions.parse("all").of(None, 3) == [0, 1, 2]
    assert Positions.parse("1,4").of(None, 9) == [1, 4]
    draws = [tuple(Positions.parse("random:2").of(None, 6, seed, index)) for seed in range(3) for index in range(20)]
    assert len(set(draws)) > 10
    assert all(0 <= a < b < 6 for a, b in draws)
    assert draws[0] == tuple(Positions.parse("random:2").of(None, 6, 0, 0))
    assert Positions.parse("random:9").of(None, 3) == [0, 1, 2]
    for bad in ("", "first", "random", "random:0", "random:-1", "1;2", "-1"):
        with pytest.raises(zonogpt.OptionError):
            Positions.parse(bad)
