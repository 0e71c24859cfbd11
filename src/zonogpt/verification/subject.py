"""What a result is about, for an audit: the model and its files, the input set, the options, the versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zonogpt._version import __version__
from zonogpt.errors import ModelError
from zonogpt.model.identity import weights_digest
from zonogpt.model.ir import Model
from zonogpt.model.names import token_names
from zonogpt.spec.claims import LinearClaim
from zonogpt.spec.inputs import Box
from zonogpt.spec.scale import scales
from zonogpt.spec.spec import Spec
from zonogpt.verification.options import Options

PACKAGES = ("torch", "transformers", "numpy", "safetensors", "huggingface_hub")


class Subject:
    """Plain values, as in JSON. Hashing a model takes time, so they are only computed when they are asked for."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make

    @cached_property
    def plain(self) -> dict[str, Any]:
        return self._make()

    @staticmethod
    def of(model: Model, spec: Spec, options: Options) -> Subject:
        return Subject(
            lambda: {
                "versions": versions(),
                "model": about_model(model),
                "input": about_input(model, spec.input),
                "claim_rows": claim_rows(spec),
                "options": options.plain,
            }
        )

    @staticmethod
    def known(plain: dict[str, Any]) -> Subject:
        return Subject(lambda: plain)

    def __reduce__(self) -> tuple[Any, ...]:
        return Subject.known, (self.plain,)


def versions() -> dict[str, str]:
    found = {"zonogpt": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def about_model(model: Model) -> dict[str, Any]:
    """`digest` is that of the network, whatever files it came from; `files` are the digests that `sha256sum` prints."""
    files, changed = None, None
    try:
        files = None if model.files is None else model.files.sha256()
    except ModelError as error:
        changed = str(error)
    return {
        "name": model.name,
        "architecture": model.architecture,
        "digest": weights_digest(model),
        "files": files,
        "files_changed": changed,
        "labels": None if model.labels is None else list(model.labels),
        "weights": model.weights,
        "stored": model.stored,
    }


def about_input(model: Model, box: Box) -> dict[str, Any]:
    """`digest` is that of the input, with pixels as little-endian float64 or ids as "5,17,3".

    `set_digest` is that of the set's lower and upper ends.
    """
    embed, ball = box.embed, box.ball
    ids = None if embed.ids is None else [int(k) for k in embed.ids]
    raw = _bytes(box.anchor) if ids is None else ",".join(map(str, ids)).encode()
    spelt = None if ids is None else token_names(model, ids)
    return {
        "kind": "image" if ids is None else "text",
        "digest": hashlib.sha256(raw).hexdigest(),
        "set": "box" if ball is None else "ball",
        "set_digest": hashlib.sha256(_bytes(box.lower) + _bytes(box.upper)).hexdigest(),
        "norm": None if ball is None else f"{ball.norm:g}",
        "radius": None if ball is None else ball.radius,
        "shape": list(embed.raw_shape),
        "ids": ids,
        "tokens": None if spelt is None else list(spelt),
        "moved": None if ids is None else [scale.plain for scale in scales(model, box)],
    }


def claim_rows(spec: Spec) -> dict[str, Any] | None:
    """The rows and offset of a linear claim, rows @ outputs + offset > 0; None for other claims."""
    claim = spec.claim
    if not isinstance(claim, LinearClaim):
        return None
    groups = None if claim.groups is None else [list(group) for group in claim.groups]
    return {"rows": claim.rows.tolist(), "offset": claim.offset.tolist(), "groups": groups}


def _bytes(tensor: Tensor) -> bytes:
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float64).numpy(), dtype="<f8").tobytes()
