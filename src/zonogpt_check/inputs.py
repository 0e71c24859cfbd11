"""The input set: a box or ball of pixels or token embeddings, and how it looks as embedded tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from zonogpt_check.ball import Array, Ball, largest
from zonogpt_check.certificate import Certificate, Lines
from zonogpt_check.model import IMAGES, TEXTS, Model, digest
from zonogpt_check.sets import Set, box_gram, covers, demand, dual

NORMS = {"inf": math.inf, "2": 2.0, "1": 1.0}


def input_set(certificate: Certificate, model: Model) -> tuple[Set, Ball, str]:
    """The set, what its c and G miss (S, d), and what it is, in words."""
    about, lines = certificate.about["input"], Lines(certificate, "input")
    p, radius = NORMS[about["norm"]], float(about["radius"])
    demand(0 <= radius < math.inf, f"input: radius {radius}")
    shape = model.image[:2] if model.architecture == IMAGES else (len(about["positions"]), model.head.shape[0])
    anchor = lines.floats("anchor", *shape)
    arrays, centre, scale, cut = [anchor], anchor, Ball(np.full(shape, radius)), ""
    if p == math.inf:
        low, high = lines.floats("lower", *shape), lines.floats("upper", *shape)
        arrays += [low, high]
        # Everything within the radius, cut off at the smallest and the largest number of the box. Rounded to nearest,
        # anchor - radius lies above all floats below it, and so does the exact difference.
        below, above = (low < anchor - radius) | (radius == 0), (high > anchor + radius) | (radius == 0)
        lines.require("lower", (low <= anchor) & (below | (low == low.min())), "leaves out inputs within the radius")
        lines.require("upper", (high >= anchor) & (above | (high == high.max())), "leaves out inputs within the radius")
        centre = low / 2 + high / 2
        scale = largest(Ball(high) - centre, Ball(centre) - low)
        if not (below.all() and above.all()):  # else nothing within the radius is cut off
            cut = f", between {float(low.min())!r} and {float(high.max())!r}"
    said = [about["norm"], about["radius"], about.get("ids"), about.get("positions")]
    demand(about["sha256"] == digest(said, arrays), "input: the digest is not that of the input set")
    if model.architecture == IMAGES:
        tokens, G, what = _image(model, centre, scale)
    else:
        tokens, G, what = _text(model, about, lines, anchor, centre, scale)
    c, Q = lines.floats("c", *tokens.shape), lines.gram("Q", *tokens.shape)
    box = abs(tokens - c) + dual(Ball(G.rad), p, 1)
    lines.require("Q", covers(Q, box_gram(box)), "does not contain what embedding rounds off")
    return Set(c, G.mid, Q, p), box, f"for {what} within {radius!r} (l_{about['norm']}){cut}"


def _image(model: Model, centre: Array, scale: Ball) -> tuple[Ball, Ball, str]:
    weight, bias, positions = model.embedding
    S, (height, width, h, w) = len(positions), model.image

    def patches(image: Array) -> Array:
        return image.reshape(height // h, h, width // w, w).transpose(0, 2, 1, 3).reshape(-1, h * w)

    half = Ball(patches(scale.mid), patches(scale.rad))  # (S, q)
    G = (half[..., None] * weight)[:, None] * np.eye(S)[:, :, None, None]  # a pixel moves its own token only
    return Ball(patches(centre)) @ weight + bias + positions, G.reshape(S, -1, weight.shape[1]), "every image"


def _text(
    model: Model, about: dict[str, Any], lines: Lines, anchor: Array, centre: Array, scale: Ball
) -> tuple[Ball, Ball, str]:
    tokens, positions = model.embedding
    whole = all(type(x) is int for x in about["ids"] + about["positions"])
    demand(whole, "input: tokens and positions are integers")
    ids, at = np.array(about["ids"], dtype=np.int64), np.array(about["positions"], dtype=np.int64)
    S, d = len(ids), tokens.shape[1]
    known = 0 < S <= len(positions) and ids.min() >= 0 and ids.max() < len(tokens)
    demand(bool(known), "input: these are not tokens of the model")
    placed = len(set(at.tolist())) == len(at) > 0 and at.min() >= 0 and at.max() < S
    demand(bool(placed), "input: these are not positions of the text")
    unread = model.architecture == TEXTS and model.pad is not None and S > 1 and ids[-1] == model.pad
    demand(not unread, "input: the last token is padding, which the model does not read")
    lines.require("anchor", anchor == tokens[ids[at]], "is not the embedding of its token")
    raw = tokens[ids].copy()
    raw[at] = centre
    own = (np.arange(S)[:, None] == at).astype(float)  # (S, positions)
    G = (scale[..., None] * np.eye(d)) * own[..., None, None]  # (S, positions, d, d)
    said = f"tokens {about['ids']} with every embedding at position {', '.join(map(str, at))}"
    return Ball(raw) + positions[:S], G.reshape(S, -1, d), said
