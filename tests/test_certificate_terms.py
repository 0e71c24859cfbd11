"""The checker forgets nothing: no claim may be a little smaller than what the prover, another program, has found."""

import math
import re

import pytest
import torch

import zonogpt
from certified import Proof, contents, folders, rewritten
from zonogpt.certificate import write_certificate
from zonogpt_check.check import check
from zonogpt_check.sets import InvalidError

CLAIMS = r".*\.(Q|R_U|W|zeta|radius|half|norm\.(half|largest|delta)|loss\.(?!rounding).*)"


def shrunk(name, array, norm):
    """Copies that are smaller at one entry of the last token, which sees all others; or in one row of the claim."""
    kind = name.rsplit(".", 1)[1]
    if kind in ("W", "R_U"):
        places = [(-1, -1, 0), (0, -1, -1)]  # head, query, key
    elif ".loss." in name:
        places = [(0,), (-1,)]
    elif kind in ("Q", "largest", "delta") or ".norm." in name:
        places = [(-1,)]
    else:
        places = [(-1, 0), (-1, -1)]  # head and query of zeta; token and unit of an MLP
    # Claims leave room of some 1e-6 over what the checker finds; more where its eigenvalues are better.
    room = 3e-5 if norm == math.inf and kind not in ("largest", "R_U") else 5e-2
    for place in places:
        smaller = array.copy()
        smaller[place] *= 1 - room
        yield place, smaller


def proof_of(name, norm, folder):
    model = zonogpt.load(folders()[name])
    if name == "image":
        image = torch.rand(*model.embedding.image_size, generator=torch.Generator().manual_seed(0))
        spec = zonogpt.image_ball(model, image, 3e-3, norm=norm)
    else:
        spec = zonogpt.embedding_ball(model, [3, 1, 4, 1, 5], [0, 4], 3e-3, norm=norm)
    write_certificate(model, spec, folder / "c")
    return Proof(folder / "c", folders()[name])


def place_of(file, folder):
    try:
        check(file, folder)
    except InvalidError as error:
        return str(error)
    return "nowhere"


@pytest.mark.parametrize(("name", "norm"), [("image", math.inf), ("text", math.inf), ("text", 2.0), ("image", 1.0)])
def test_every_claim_is_compared_with_all_that_it_stands_for(name, norm, tmp_path):
    """They agree to some 1e-6, so a bound that lacked a term would let a claim through that is a little smaller.

    Not so for rounding, which has sixteen times its room, and for choices, which are no claims.
    """
    proof = proof_of(name, norm, tmp_path)
    check(proof.file, proof.folder)
    arrays, about = contents(proof.file)
    names = [name for name in arrays if re.fullmatch(CLAIMS, name) and name != "input.Q"]
    assert len(names) == 2 * (11 + 8) + 4 + 1  # of two layers' attention and MLP, of the head, of the input
    for name in names:
        for place, smaller in shrunk(name, arrays[name], norm):
            stopped = place_of(rewritten(proof.file, arrays | {name: smaller}, about), proof.folder)
            assert stopped.startswith(name), (name, place)
