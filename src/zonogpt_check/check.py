"""The whole proof, line by line: input set, blocks, claim. Everything is computed again; what is read is compared.

margin >= (rows at the centre) - (rows at the input, over the input set) - (what every step can take)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from zonogpt_check.attention import AttentionStep, attention_step
from zonogpt_check.ball import Array, Ball
from zonogpt_check.certificate import Certificate, Lines, UnreadableError
from zonogpt_check.inputs import input_set
from zonogpt_check.mlp import MlpStep, mlp_step
from zonogpt_check.model import IMAGES, Model, digest, read_model
from zonogpt_check.norm import Norm, norm_step
from zonogpt_check.sets import InvalidError, Set, dual

TOGETHER = 64  # rows that go back at a time
INPUT, HEAD = ("input", "rounding"), ("layernorm", "rounding")
Step = AttentionStep | MlpStep


def check(file: Path, folder: Path) -> str:
    """What the certificate proves, in words; InvalidError names the first line that does not hold."""
    certificate = Certificate(file)
    model = read_model(folder)
    try:
        if certificate.about["model"] != model.digest():
            raise InvalidError("model: these are not the weights that the certificate is about")
        if certificate.about["arithmetic"] != "real":
            raise InvalidError("arithmetic: a certificate is about the network in real arithmetic")
        with np.errstate(all="ignore"):  # what overflows becomes NaN, and NaN proves nothing
            statement = _prove(certificate, model)
    except ZeroDivisionError as error:
        raise InvalidError(f"proof: {error}") from error
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError, MemoryError, SafetensorError) as error:
        raise UnreadableError(f"{file} does not describe a proof: {error!r}") from error
    certificate.finish()
    return f"{statement}\nmodel sha256 {model.digest()}\ninput sha256 {certificate.about['input']['sha256']}"


def _prove(certificate: Certificate, model: Model) -> str:
    start = input_set(certificate, model)
    z, steps = start.set, []
    places = [Lines(certificate, "input")]
    for number, block in enumerate(model.blocks, start=1):
        places.append(Lines(certificate, f"block {number} ({block.kind})"))
        step: Step
        try:
            if block.kind == "attention":
                z, step = attention_step(block, model.heads, z, places[-1])
            else:
                z, step = mlp_step(block, z, places[-1])
        except ZeroDivisionError as error:
            raise InvalidError(f"{places[-1].place}: {error}") from error
        steps.append(step)
    read = slice(None) if model.architecture == IMAGES else slice(-1, None)  # the tokens that the head looks at
    places.append(Lines(certificate, "head"))
    norm = norm_step(model.norm, Set(z.c[read], z.G[read], z.Q[read], z.p), places[-1].of("norm"))

    claim = Lines(certificate, "claim")
    rows, offset, said = claim_rows(certificate, claim, model)
    margins = claim.floats("margins", len(rows.mid))
    claim.require("margins", margins > 0, "is not positive, so nothing is claimed")
    (count,) = certificate.shape("claim.rows")
    back = certificate.get("claim.rows", "I64", count)  # these go back through all blocks
    losses = [
        {name: lines.of("loss").floats(name, len(back)) for name in names}
        for lines, names in zip(places, [INPUT, *(step.TAKEN for step in steps), HEAD], strict=True)
    ]
    others = np.setdiff1d(np.arange(len(margins)), back)
    for part in _parts(others):  # the final LayerNorm's own set is enough for these
        value, functionals, off = at_the_head(rows[part], offset[part], norm)
        least = (value - off - norm.fall(functionals)).lower()
        claim.require("margins", margins[part] <= least, "is too large", margins[part], least)
    for first in range(0, len(back), TOGETHER):
        at = slice(first, first + TOGETHER)
        value, functionals, off = at_the_head(rows[back[at]], offset[back[at]], norm)
        w, found = go_back(functionals, off + Ball(value.rad), norm, steps, z)
        moved = dual((w.transpose(1, 0, 2) @ Ball(start.set.G).T).sum(0), z.p, -1)  # over the symbols of all tokens
        found.append([moved, (abs(w) * start.box).sum(-1).sum(-1)])
        left = Ball(value.mid)
        for lines, claimed, bounds in zip(places, losses, reversed(found), strict=True):
            for (name, loss), bound in zip(claimed.items(), bounds, strict=True):
                lines.of("loss").require(name, loss[at] >= bound.upper(), "is too small", loss[at], bound.upper())
                left = left - loss[at]
        claim.require("margins", margins[back[at]] <= left.lower(), "is too large", margins[back[at]], left.lower())
    return f"{said} {start.said}; the smallest margin is {margins.min():.4g}"


def go_back(functionals: Array, off: Ball, norm: Norm, steps: list[Step], z: Set) -> tuple[Ball, list[list[Ball]]]:
    """Functionals at the input, exact, and what every step takes, from the head on.

    What a step rounds off a functional is charged at once, against all that the step's input can be.
    """
    before, taken = norm.pull(functionals)
    w = Ball(np.zeros((len(functionals), *z.c.shape)))
    w.mid[:, -before.shape[1] :], rad = before.mid, np.zeros(w.shape)
    rad[:, -before.shape[1] :] = before.rad
    found = [[taken, off + (Ball(rad) * z.radius()).sum(-1).sum(-1)]]
    for step in reversed(steps):
        w, losses = step.pull(w.mid)
        losses[-1] = losses[-1] + (Ball(w.rad) * step.norm.z.radius()).sum(-1).sum(-1)
        found.append(losses)
    return Ball(w.mid), found


def at_the_head(rows: Ball, offset: Ball, norm: Norm) -> tuple[Ball, Array, Ball]:
    """Of rows (R, d): their value at the centre, functionals (R, tokens, d), and by how much these may be off."""
    share = 1 / Ball(float(len(norm.n0)))  # the mean over the tokens read
    value = rows @ (share * norm.n0).sum(0)[:, None]
    functionals = (rows * share)[:, None] + np.zeros((len(norm.n0), 1))
    return value[:, 0] + offset, functionals.mid, (Ball(functionals.rad) * norm.reach).sum(-1).sum(-1)


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
    if type(label) is not int or not 0 <= label < outputs:
        raise InvalidError(f"claim: there is no output {label!r}")
    rivals = np.delete(np.arange(outputs), label)
    rows = Ball(model.head.T[label]) - model.head.T[rivals]
    return rows, Ball(bias[label]) - bias[rivals], f"output {label} is the largest"


def _parts(rows: Array) -> list[Array]:
    return np.split(rows, range(TOGETHER, len(rows), TOGETHER)) if len(rows) else []
