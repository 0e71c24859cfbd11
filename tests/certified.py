"""Certificates of small models, made once per run of the tests: 100 of them, and ways to tamper with one."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save

import zonogpt
from builders import generator, image_config, language_model, shaken, text_classifier
from zonogpt.verification.certificate import CertificateError, write_certificate

ZEROS = "0" * 64


@dataclass(frozen=True)
class Proof:
    file: Path
    folder: Path


@functools.cache
def folders() -> dict[str, Path]:
    root = Path(tempfile.mkdtemp())
    nets = {
        "image": shaken(zonogpt.GPT2ForImageClassification, image_config(), 3),
        "text": text_classifier(1),
        "next": language_model(2),
    }
    for name, net in nets.items():
        net.save_pretrained(root / name)
    return {name: root / name for name in nets}


def spec_of(model: zonogpt.Model, name: str, seed: int) -> zonogpt.Spec:
    """A ball of one of three norms and several radii, small enough to be proved more often than not."""
    g = generator(seed)
    norm = (math.inf, 2.0, 1.0)[seed % 3]
    radius = (0.0, 1e-9, 1e-5, 1e-3, 3e-3)[seed % 5]
    if name == "image":
        return zonogpt.image_ball(model, torch.rand(*model.embedding.image_size, generator=g), radius, norm=norm)
    length = int(torch.randint(2, 7, (), generator=g))
    ids = torch.randint(1, 17, (length,), generator=g).tolist()
    at = sorted({0, length - 1}) if seed % 2 else [length // 2]
    return zonogpt.embedding_ball(model, ids, at, radius, norm=norm)


@functools.cache
def proofs(count: int) -> list[Proof]:
    """`count` proofs, of three kinds of models in turn."""
    models = {name: zonogpt.load(folder) for name, folder in folders().items()}
    out, seed = [], 0
    root = Path(tempfile.mkdtemp())
    while len(out) < count:
        assert seed < 3 * count, "too few specs are proved"
        name = list(models)[seed // 15 % 3]
        file = root / f"{seed}.cert"
        try:
            write_certificate(models[name], spec_of(models[name], name, seed), file, check=False)
            out.append(Proof(file, folders()[name]))
        except CertificateError:
            assert not file.exists()
        seed += 1
    return out


def contents(file: Path) -> tuple[dict[str, np.ndarray], dict]:
    with safe_open(file, framework="numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, json.loads(opened.metadata()["about"])  # noqa: SIM118


def rewritten(file: Path, arrays: dict[str, np.ndarray], about: dict) -> Path:
    """The tampered file, beside the original, with a digest that fits, as a forger would write it."""
    metadata = {"format": "zonogpt certificate 2", "digest": ZEROS, "about": json.dumps(about)}
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)
    said = hashlib.sha256(content).hexdigest()
    out = file.with_suffix(".tampered")
    out.write_bytes(content.replace(ZEROS.encode(), said.encode(), 1))
    return out
