"""The checker forgets nothing: no claim may be a little smaller than what the prover, another program, has found."""

import math
import re

import numpy as np
import pytest
import torch

import zonogpt
from builders import image_model
from certified import Proof, contents, folders, rewritten
from zonogpt.verification.certificate import write_certificate
from zonogpt_check.check import check
from zonogpt_check.sets import InvalidError

CLAIMS = r".*\.(Q|R_U|W|zeta|radius|half|norm\.(half|largest|delta)|loss\.(?!rounding).*)"


def shrunk(name, array, norm):
    """Copies of an array, smaller at one entry of the last token, which sees all others; or in one row of the claim."""
    kind = name.rsplit(".", 1)[1]
    if kind in ("W", "R_U"):
        places = [(-1, -1, 0), (0, -1, -1)]  # head, query, key
    elif ".loss." in name:
        places = [(0,), (-1,)]
    elif kind == "Q":
        places = [(-1,), (0,)]  # the first token sees only itself
    elif ".norm." in name:
        places = [(-1,)]
    else:
        places = [(-1, k) for k in range(0, array.shape[-1], 6)] + [(-1, -1)]  # head, query; in an MLP token, unit
    # Claims leave room of some 1e-6 over what the checker finds; more where its eigenvalues are better.
    room = 3e-5 if norm == math.inf and kind not in ("largest", "delta", "R_U") else 5e-2
    for place in places:
        smaller = array.copy()
        smaller[place] *= 1 - room
        yield place, smaller


def proof_of(name, norm, radius, folder):
    model = zonogpt.load(folders()[name])
    if name == "image":
        image = torch.rand(*model.embedding.image_size, generator=torch.Generator().manual_seed(0))
        spec = zonogpt.image_ball(model, image, radius, norm=norm)
    else:
        spec = zonogpt.embedding_ball(model, [3, 1, 4, 1, 5], [0, 4], radius, norm=norm)
    spec = spec.with_claim([[1.0, -1.0, 0.5], [0.0, 1.0, 0.0]], [1e4, 1e4])  # holds, however wide the bounds
    write_certificate(model, spec, folder / "c", check=False)
    return Proof(folder / "c", folders()[name])


def place_of(file, folder):
    try:
        check(file, folder)
    except InvalidError as error:
        return str(error)
    return "nowhere"


@pytest.mark.parametrize(
    ("name", "norm", "radius"),
    [
        ("image", math.inf, 3e-3),
        ("image", math.inf, 0.03),
        ("text", math.inf, 3e-3),
        ("text", 2.0, 3e-3),
        ("image", 1.0, 3e-3),
    ],
)
def test_every_claim_is_compared_with_all_that_it_stands_for(name, norm, radius, tmp_path):
    """Prover and checker agree to some 1e-6, so a bound that lacked a term would accept a slightly smaller claim.

    This is not so for rounding, which has 64 times its room, nor for choices, which are not claims.
    """
    proof = proof_of(name, norm, radius, tmp_path)
    check(proof.file, proof.folder)
    arrays, about = contents(proof.file)
    names = [name for name in arrays if re.fullmatch(CLAIMS, name) and name != "input.Q"]
    assert len(names) == 2 * (11 + 8) + 4 + 1  # of two layers' attention and MLP, of the head, of the input
    for name in names:
        for place, smaller in shrunk(name, arrays[name], norm):
            stopped = place_of(rewritten(proof.file, arrays | {name: smaller}, about), proof.folder)
            assert stopped.startswith(name), (name, place)
    for name in [name for name in arrays if re.search(r"\.(shift|mid)$", name)]:  # errors are bounded on either side
        half = re.sub(r"\w+$", "half", name)
        for place in [(-1,)] if arrays[name].ndim == 1 else [(-1, k) for k in range(0, arrays[name].shape[-1], 6)]:
            for share in (-0.5, 0.5) if name.endswith("shift") else (-1e-3, 1e-3):
                other = arrays[name].copy()
                other[place] += share * arrays[half][place]
                stopped = place_of(rewritten(proof.file, arrays | {name: other}, about), proof.folder)
                assert stopped.startswith(half), (name, place)


@pytest.mark.parametrize("name", ["image", "text"])
def test_wide_sets_where_slopes_are_dropped(name, tmp_path):
    """Sets so wide that only the range is used of LayerNorms and rows of softmax."""
    dropped = set()
    for radius in (0.1, 0.3, 1.0):
        proof = proof_of(name, math.inf, radius, tmp_path)
        check(proof.file, proof.folder)
        arrays, _ = contents(proof.file)
        flags = {key: x for key, x in arrays.items() if re.search(r"\.(sloped|rows)$", key) and key != "claim.rows"}
        dropped |= {key.split(".")[-1] for key, x in flags.items() if not x[..., -1].all()}
    assert dropped == {"sloped", "rows"}


def test_layernorms_error_is_in_the_mlps_ellipsoid(tmp_path):
    """With no error from the attention before it and hardly any from GELU, the longest direction is LayerNorm's own."""
    net = image_model(3)
    with torch.no_grad():
        net.transformer.h[0].attn.c_proj.weight.zero_()
        net.transformer.h[0].mlp.c_fc.weight *= 1e-3
    net.save_pretrained(tmp_path / "model")
    model = zonogpt.load(tmp_path / "model")
    spec = zonogpt.image_ball(model, torch.full(model.embedding.image_size, 0.5), 3e-3)
    write_certificate(model, spec.with_claim([[1.0, 0.0, 0.0]], [1e4]), tmp_path / "c")
    check(tmp_path / "c", tmp_path / "model")
    arrays, about = contents(tmp_path / "c")
    name = "block 2 (mlp).Q"
    Q = shortened(arrays[name])
    assert place_of(rewritten(tmp_path / "c", arrays | {name: Q}, about), tmp_path / "model").startswith(name)


def test_errors_of_the_token_just_before_reach_the_last(tmp_path):
    """Large values, and attention that is nearly even: a quarter of the last token's error is that of each before."""
    net = image_model(3)
    with torch.no_grad():
        attention = net.transformer.h[1].attn.c_attn
        attention.weight[:, : 2 * net.config.n_embd] *= 1e-2
        attention.weight[:, 2 * net.config.n_embd :] *= 30
    net.save_pretrained(tmp_path / "model")
    model = zonogpt.load(tmp_path / "model")
    spec = zonogpt.image_ball(model, torch.full(model.embedding.image_size, 0.5), 3e-3)
    write_certificate(model, spec.with_claim([[1.0, 0.0, 0.0]], [1e4]), tmp_path / "c")
    arrays, about = contents(tmp_path / "c")
    name = "block 3 (attention).Q"
    for k in range(arrays[name].shape[-1]):
        Q = shortened(arrays[name], k)
        assert place_of(rewritten(tmp_path / "c", arrays | {name: Q}, about), tmp_path / "model").startswith(name)


def shortened(Q, k=-1):
    """Q with the last token's ellipsoid a little too short along one direction, the k-th, by default the longest."""
    Q = Q.copy()
    values, vectors = np.linalg.eigh(Q[-1])
    Q[-1] -= 1e-3 * values[k] * np.outer(vectors[:, k], vectors[:, k])
    Q[-1] = (Q[-1] + Q[-1].T) / 2
    return Q
