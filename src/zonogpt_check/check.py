"""The whole proof, line by line: input set, blocks, claim. Everything is computed again; what is read is compared.

margin >= (rows at the centre) - (rows at the input, over the input set) - (what every step can take)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zonogpt_check.attention import Attention
from zonogpt_check.ball import Array, Ball
from zonogpt_check.certificate import BROKEN, Certificate, Lines
from zonogpt_check.inputs import input_set
from zonogpt_check.mlp import Mlp
from zonogpt_check.model import IMAGES, Model, digest, read_model
from zonogpt_check.norm import Norm
from zonogpt_check.sets import InvalidError, Set, UnreadableError, demand, dual, over

TOGETHER = 64  # rows that go back at a time
INPUT, HEAD = ("input", "rounding"), ("layernorm", "rounding")  # the losses there
Step = Attention | Mlp
STEPS: dict[str, type[Step]] = {"attention": Attention, "mlp": Mlp}  # by the block's kind


def check(file: Path, folder: Path) -> str:
    """What the certificate proves, in words; InvalidError names the first line that does not hold."""
    certificate, model = Certificate(file), read_model(folder)
    try:
        ours, arithmetic = certificate.about["model"] == model.digest(), certificate.about["arithmetic"]
        demand(ours, "model: these are not the weights that the certificate is about")
        demand(arithmetic == "real", "arithmetic: a certificate is about the network in real arithmetic")
        with np.errstate(all="ignore"):  # what overflows becomes NaN, and NaN proves nothing
            statement = _prove(certificate, model)
    except ZeroDivisionError as error:
        raise InvalidError(f"{certificate.at}: {error}") from error
    except BROKEN as error:
        raise UnreadableError(f"{file} does not describe a proof: {error!r}") from error
    certificate.finish()
    return f"{statement}\nmodel sha256 {model.digest()}\ninput sha256 {certificate.about['input']['sha256']}"


def _prove(certificate: Certificate, model: Model) -> str:
    first, box, of_inputs = input_set(certificate, model)
    back = certificate.get("claim.rows", "I64", *certificate.shape("claim.rows")[:1])  # go back through all blocks
    count = len(back)
    z, steps = first, dict[str, Step]()
    for number, block in enumerate(model.blocks, start=1):
        lines = Lines(certificate, f"block {number} ({block.kind})")
        step = STEPS[block.kind](model, block, z, lines, count)
        steps[lines.place], z = step, step.after
    read = slice(None) if model.architecture == IMAGES else slice(-1, None)  # the tokens that the head looks at
    norm = Norm(model.norm, Set(z.c[read], z.G[read], z.Q[read], z.p), Lines(certificate, "head.norm"), count)

    claim = Lines(certificate, "claim")
    rows, offset, said = claim_rows(certificate, claim, model)
    margins = claim.floats("margins", len(rows.mid))
    claim.require("margins", margins > 0, "is not positive, so nothing is claimed")
    least = np.full(len(margins), -np.inf)
    for part in _parts(np.setdiff1d(np.arange(len(margins)), back)):  # for these the final LayerNorm's set is enough
        value, functionals, off = at_the_head(rows[part], offset[part], norm)
        least[part] = (value - off - norm.fall(functionals)).lower()
    places = {"input": INPUT, **{place: step.LOSSES for place, step in steps.items()}, "head": HEAD}
    losses = [(Lines(certificate, f"{place}.loss"), name) for place, names in places.items() for name in names]
    claimed = [lines.floats(name, count) for lines, name in losses]
    found, centre = np.full((len(losses), count), np.inf), np.zeros(count)
    for at in _parts(np.arange(count)):
        value, functionals, off = at_the_head(rows[back[at]], offset[back[at]], norm)
        taken = go_back(functionals, off + Ball(value.rad), at, norm, list(steps.values()), first, box)
        centre[at], found[:, at] = value.mid, [loss.upper() for loss in taken]
    left = Ball(centre)
    for (lines, name), loss, bound in zip(losses, claimed, found, strict=True):
        lines.require(name, loss >= bound, "is too small", loss, bound)
        left = left - loss
    least[back] = left.lower()
    claim.require("margins", margins <= least, "is too large", margins, least)
    return f"{said} {of_inputs}; the smallest margin is {margins.min():.4g}"


def go_back(
    functionals: Array, off: Ball, at: NDArray[np.int64], norm: Norm, steps: list[Step], first: Set, box: Ball
) -> list[Ball]:
    """All that functionals of the head's LayerNorm, themselves `off`, can lose on their way back: at the input, in
    every step, and at the head. The rounding of functionals is charged at once, over the whole set that they meet."""
    before, loss = norm.pull(functionals, at)
    z = steps[-1].after if steps else first
    unread = np.zeros((len(functionals), len(z.c) - before.shape[1], z.c.shape[1]))
    w = Ball(np.concatenate([unread, before.mid], 1), np.concatenate([unread, before.rad], 1))
    found = [loss, off + over(Ball(w.rad), z.radius())]
    for step in reversed(steps):
        w, losses = step.pull(w.mid, at)
        found = [*losses[:-1], losses[-1] + over(Ball(w.rad), step.norm.z.radius()), *found]
    w = Ball(w.mid)
    moved = dual((w.swap(0, 1) @ Ball(first.G).T).sum(0), first.p, -1)  # over the symbols of all tokens
    return [moved, over(w, box), *found]


def at_the_head(rows: Ball, offset: Ball, norm: Norm) -> tuple[Ball, Array, Ball]:
    """For rows (R, d): their value at the centre, functionals (R, tokens, d), and by how much these may be off."""
    share = 1 / Ball(float(len(norm.n0)))  # the mean over the tokens read
    value = rows @ (share * norm.n0).sum(0)[:, None]
    functionals = (rows * share)[:, None] + np.zeros((len(norm.n0), 1))
    return value[:, 0] + offset, functionals.mid, over(Ball(functionals.rad), norm.reach)


def claim_rows(certificate: Certificate, lines: Lines, model: Model) -> tuple[Ball, Ball, str]:
    """Rows (K, d) and offset (K,) of  rows . pooled + offset > 0, and what that means."""
    outputs = model.head.shape[1]
    bias = np.zeros(outputs) if model.bias is None else model.bias
    label = certificate.about["claim"]["label"]
    if label is None:
        count = certificate.shape("claim.matrix")[0]
        C, offset = lines.floats("matrix", count, outputs), lines.floats("offset", count)
        said = f"{count} linear claims (sha256 {digest(None, [C, offset])}) hold"
        return C @ Ball(model.head.T), C @ Ball(bias) + offset, said
    demand(type(label) is int and 0 <= label < outputs, f"claim: there is no output {label!r}")
    rivals = np.delete(np.arange(outputs), label)
    rows = Ball(model.head.T[label]) - model.head.T[rivals]
    return rows, Ball(bias[label]) - bias[rivals], f"output {label} is the largest"


def _parts(rows: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(rows, range(TOGETHER, len(rows), TOGETHER)) if len(rows) else []
