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

# Claims leave room of some 1e-6 over what the checker finds; more for l_1, where its eigenvalues are better.
ROOM = {math.inf: 3e-5, 2.0: 3e-5, 1.0: 2e-3}
CLAIMS = r".*\.(Q|R_U|W|zeta|radius|half|norm\.(half|largest|delta)|loss\.(?!rounding).*)"


def proof_of(name, norm, folder):
    model = zonogpt.load(folders()[name])
    if name == "image":
        image = torch.rand(*model.embedding.image_size, generator=torch.Generator().manual_seed(0))
        spec = zonogpt.image_ball(model, image, 3e-3, norm=norm)
    else:
        spec = zonogpt.embedding_ball(model, [3, 1, 4, 1, 5], [0, 2], 3e-3, norm=norm)
    write_certificate(model, spec, folder / "c")
    return Proof(folder / "c", folders()[name])


@pytest.mark.parametrize(("name", "norm"), [("image", math.inf), ("text", 2.0), ("image", 1.0)])
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
        tampered = rewritten(proof.file, arrays | {name: arrays[name] * (1 - ROOM[norm])}, about)
        with pytest.raises(InvalidError, match=re.escape(name)):
            check(tampered, proof.folder)
