"""docs/certificate-format.md names every key and every array that the writer writes, with its type and shape."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import zonogpt
from certified import contents, folders, spec_of
from zonogpt.spec.claims import LinearClaim
from zonogpt.verification.certificate import write_certificate

PAGE = (Path(__file__).parent.parent / "docs" / "certificate-format.md").read_text()
PLACES = {"ATTENTION": ["block t (attention)"], "MLP": ["block t (mlp)"],
          "PLACE": ["block t (attention)", "block t (mlp)"]}  # fmt: skip
TYPES = {"float64": "F64", "bool": "BOOL", "int64": "I64"}


def table(heading):
    """The rows of the page's table that begins with this heading, as lists of cells."""
    lines = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def described():
    """The described arrays by name, with `t` for a block's number: type and shapes."""
    out = {}
    for cell, kind, shape, *_ in table("array"):
        found = names(cell)
        shapes = re.findall(r"\([^)]*\)", shape) or [shape]
        each = shapes if len(shapes) == len(found) > 1 else [" or ".join(shapes)] * len(found)
        for name, one in zip(found, each, strict=True):
            place, _, rest = name.partition(".")
            places = PLACES.get(place, [place]) + (["head"] if rest.startswith("norm.") else [])
            out |= {f"{full}.{rest}": (kind, one) for full in places}
    return out


def keys(about, prefix=""):
    for name, value in about.items():
        yield from keys(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Certificates of an image and a text, in all three norms, for a label and for linear claims."""
    folder = tmp_path_factory.mktemp("format")
    out = []
    for number, (name, seed) in enumerate([("image", 15), ("text", 3), ("text", 5), ("text", 1)]):
        model = zonogpt.load(folders()[name])
        spec = spec_of(model, name, seed)
        if number == 3:
            rows = torch.ones(2, model.n_outputs, dtype=torch.float64)
            spec = dataclasses.replace(spec, claim=LinearClaim(rows, 100 * rows[:, 0]))
        file = folder / f"{number}.cert"
        write_certificate(model, spec, file)
        out.append((name, file))
    return out


def test_the_page_names_what_is_written_and_nothing_else(written):
    arrays, about, header = set(), set(), set()
    for _, file in written:
        found, said = contents(file)
        arrays |= {re.sub(r"^block \d+ ", "block t ", name) for name in found}
        about |= set(keys(said))
        with safe_open(file, framework="numpy") as opened:
            header |= set(opened.metadata())
    assert arrays == set(described())
    assert about == {name for cell, *_ in table("key of `about`") for name in names(cell)}
    assert header == {name for cell, *_ in table("key") for name in names(cell)}


def test_types_and_shapes_are_those_of_the_page(written):
    for name, file in written:
        arrays, about = contents(file)
        tokens = about["input"].get("ids")
        S, d = arrays["input.c"].shape
        outputs = zonogpt.load(folders()[name]).n_outputs
        H, R = len(arrays["block 1 (attention).rows"]), len(arrays["claim.rows"])
        sizes = {"d": d, "H": H, "R": R, "f": arrays["block 2 (mlp).mid"].shape[1], "K": len(arrays["claim.margins"])}
        sizes |= {"n": len(about["input"].get("positions", [])), "O": outputs, "S + 1": S + 1}
        sizes |= dict(zip(("height", "width"), arrays["input.anchor"].shape, strict=True)) if name == "image" else {}
        assert name == "image" or len(tokens) == S
        for full, array in arrays.items():
            kind, said = described()[re.sub(r"^block \d+ ", "block t ", full)]
            assert kind == TYPES[str(array.dtype)], full
            at = sizes | {"S": 1 if full.startswith("head") and name == "text" else S}
            said = "(height, width) or (n, d)" if said == "as the anchor" else said
            shapes = [one.strip("()").split(", ") for one in said.split(" or ")]
            shape = shapes[0] if name == "image" else shapes[-1]
            assert array.shape == tuple(int(x) if x.isdigit() else at[x] for x in shape), full


def test_names_of_the_format_are_ours():
    from zonogpt.verification.certificate import FORMAT
    from zonogpt_check.certificate import FORMAT as READ

    assert FORMAT == READ
    assert f"| `format` | `{FORMAT}` |" in PAGE
