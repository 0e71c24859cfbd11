"""Writes down a proof by method E so that `zonogpt_check` can go through it line by line.

A certificate records a second forward and backward pass, over all tokens and with bounds that leave some room
(`with_room`): the checker rounds differently, and its bounds must stay below those it reads. Choices (slopes, weights
of covers, which enclosure) are written because any choice is sound. Bounds and sets are written to be compared. Unless
that is switched off, the checker goes through a certificate before its file appears.
Derivations: docs/math.md, section 15.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from zonogpt.domains.choices import Choices
from zonogpt.domains.finite import NonFiniteBoundError
from zonogpt.domains.rounding import room, with_room
from zonogpt.errors import CertificateError, ModelError, OptionError
from zonogpt.methods.adjoint import adjoint
from zonogpt.methods.ellipsoidal import sizes
from zonogpt.methods.method import NonFiniteBlockError, OnBlock
from zonogpt.methods.plan import chunk_bytes, whole_sizes
from zonogpt.methods.rules import Rules
from zonogpt.methods.tape import Tape, forward
from zonogpt.methods.walk import Walk
from zonogpt.methods.work import Teller, Tick, nobody, work_of
from zonogpt.model.activations import GELU_TANH
from zonogpt.model.ir import Model, image_embedding
from zonogpt.model.nodes import Attention, Block, Mlp, Norm
from zonogpt.spec.claims import LinearClaim
from zonogpt.spec.spec import Spec
from zonogpt.support.files import write_whole
from zonogpt.support.tensors import moved, tensors_in
from zonogpt.transforms.ellipsoidal.attention import AttentionStep
from zonogpt.transforms.ellipsoidal.layernorm import LayerNormStep
from zonogpt.transforms.ellipsoidal.mlp import MlpStep
from zonogpt.transforms.ellipsoidal.norm import NormStep
from zonogpt.verification.options import resolve_device
from zonogpt.verification.precision import full_precision
from zonogpt.verification.session import check_match, out_of_memory
from zonogpt_check import check as checker
from zonogpt_check.sets import InvalidError, UnreadableError

FORMAT = "zonogpt certificate 2"
ZEROS = "0" * 64
NORMS = {float("inf"): "inf", 2.0: "2", 1.0: "1"}

Arrays = dict[str, NDArray[Any]]


def write_certificate(
    model: Model,
    spec: Spec,
    file: str | Path,
    device: str | torch.device | None = None,
    on_block: OnBlock | None = None,
    check: bool = True,
    on_check: Callable[[], None] | None = None,
) -> Tensor:
    """Proves the spec again by method E, in real arithmetic, writes the proof down, and returns the margins (K,).

    With `check` the file appears only after `zonogpt_check` has accepted it, reading it and the model from the disk; a
    model that was loaded as an object is saved to a temporary directory for that. `on_check` is called before the
    check, which may take longer than the proof. CertificateError if the claim is not proved with the room that a
    certificate needs, or if the checker does not accept the file; nothing is written then.
    """
    check_match(model, spec)
    RULES.require(model, "a certificate")
    _require_gpt2(model)
    _require_expressible(spec)
    _require_checkable(model, Path(file), check)
    at = resolve_device(device, model)
    net, here = model.converted(at, torch.float64), moved(spec, at, torch.float64)
    limit = chunk_bytes(sizes(net, here), 8, 1, None)
    with torch.no_grad(), full_precision(at), with_room():
        try:
            teller = Teller(on_block, tuple(block.kind for block in net.blocks), work_of(whole_sizes(net, here)))
            tape = forward(Walk(net, limit, every_token=True, tick=teller.tick("forward")), [here], torch.float64)
            arrays, margins = _claim(tape, here, teller.tick("backward"))
        except (NonFiniteBlockError, NonFiniteBoundError) as error:
            raise CertificateError(f"no certificate: {error}") from error
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise CertificateError("no certificate: out of memory; it needs all tokens of every block") from error
    if not spec.claim.proved(margins):
        raise CertificateError(
            f"no certificate: with the room that its checker needs, the lowest margin is {float(margins.min()):.4g}"
        )
    about = {
        "model": model_digest(model),
        "arithmetic": "real",
        "input": _input(arrays, model, spec),
        "claim": {"label": spec.label},
    }
    _blocks(arrays, tape)

    def accept(draft: Path) -> None:
        if check:
            if on_check is not None:
                on_check()
            _accept(draft, model)

    write_whole(Path(file), _packed(arrays, about), accept)
    return margins


def _require_expressible(spec: Spec) -> None:
    """CertificateError for a spec that a certificate cannot express."""
    if spec.input.ball is None:
        raise CertificateError("no certificate: it would be about a ball, and this input set is a box without a radius")
    if not spec.claim.needs_every_row:
        raise CertificateError("no certificate: of this claim not every row need hold, which no certificate can say")


def _require_checkable(model: Model, file: Path, check: bool) -> None:
    if check and file.exists() and not file.is_file():
        raise OptionError(f"{file} is no regular file, so what is written there cannot be checked")
    if check and model.source is None:
        raise OptionError("this model was put together by hand: the checker reads models from directories only")


def _accept(file: Path, model: Model) -> None:
    assert model.source is not None
    with tempfile.TemporaryDirectory() as scratch:
        try:
            checker.check(file, model.source.on_disk(Path(scratch)))
        except InvalidError as error:
            raise CertificateError(f"no certificate: its checker rejects it: {error}") from error
        except UnreadableError as error:
            raise CertificateError(f"no certificate: its checker cannot read it: {error}") from error


def _packed(arrays: Arrays, about: dict[str, Any]) -> bytes:
    """The certificate as safetensors. Its header holds the digest of the whole file, taken with zeros in its place."""
    metadata = {"format": FORMAT, "digest": ZEROS, "about": json.dumps(about)}
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)
    said = hashlib.sha256(content).hexdigest()
    return content.replace(f'"digest":"{ZEROS}"'.encode(), f'"digest":"{said}"'.encode(), 1)


def _require_gpt2(model: Model) -> None:
    """ModelError for what GPT-2's files cannot express and `model_digest` therefore does not cover."""
    wanted = "mean" if model.embedding.reads == "images" else "last"
    if not model.causal:
        raise ModelError(f"a certificate has no rule for bidirectional attention ({model.name})")
    if model.head.reading != wanted:
        raise ModelError(f"a certificate has no rule for a head that reads {model.head.reading} ({model.name})")
    if len({norm.tau for norm in model.norms}) > 1:
        raise ModelError(f"a certificate has no rule for norms of several epsilons ({model.name})")


def model_digest(model: Model) -> str:
    """The sha256 of everything that a GPT-2's files say about its outputs, with the weights as float64."""
    image: list[int] = []
    if model.embedding.reads == "images":
        embedding = image_embedding(model)
        image = [*embedding.image_size, *embedding.patch_size]
    arrays = list(tensors_in(model.embedding))
    for block in model.blocks:
        arrays += WEIGHTS[block.kind](block)
    head, norm = model.head, model.head.layer_norm
    arrays += [*_weights_of_norm(norm), head.weight] + ([] if head.bias is None else [head.bias])
    said = [model.architecture, model.n_heads, model.pad_token_id, image, norm.tau]
    return _digest(said, [_floats(array) for array in arrays])


def _weights_of_norm(norm: Norm) -> list[Tensor]:
    return [norm.gamma] if norm.beta is None else [norm.gamma, norm.beta]


def _weights_of_attention(block: Block[Attention]) -> list[Tensor]:
    """The weights as GPT-2's files store them: queries, keys and values side by side."""
    of = block.branch
    biases = [b for _, b in of.projections if b is not None]
    wide = [torch.cat([w for w, _ in of.projections], dim=1)] + ([torch.cat(biases)] if biases else [])
    return [*_weights_of_norm(block.norm), *wide, of.w_o] + ([] if of.b_o is None else [of.b_o])


def _weights_of_mlp(block: Block[Mlp]) -> list[Tensor]:
    of = block.branch
    return _weights_of_norm(block.norm) + [x for x in (of.w_1, of.b_1, of.w_2, of.b_2) if x is not None]


WEIGHTS: Mapping[str, Callable[[Any], list[Tensor]]] = {"attention": _weights_of_attention, "mlp": _weights_of_mlp}


def _digest(said: object, arrays: list[NDArray[np.float64]]) -> str:
    state = hashlib.sha256(json.dumps(said).encode())
    for array in arrays:
        state.update(json.dumps(array.shape).encode() + np.ascontiguousarray(array, dtype="<f8").tobytes())
    return state.hexdigest()


def _floats(x: Tensor) -> NDArray[np.float64]:
    return x.detach().to("cpu", torch.float64).numpy()


def _input(arrays: Arrays, model: Model, spec: Spec) -> dict[str, Any]:
    ball = spec.require_ball()
    about: dict[str, Any] = {"norm": NORMS[ball.norm], "radius": ball.radius}
    if ball.embed.ids is not None and ball.embed.positions is not None:
        about |= {"ids": model.readable_ids(ball.embed.ids).tolist(), "positions": list(ball.embed.positions)}
    names = ("anchor", "lower", "upper") if about["norm"] == "inf" else ("anchor",)
    sets = [_floats(getattr(ball, name)) for name in names]
    arrays |= {f"input.{name}": array for name, array in zip(names, sets, strict=True)}
    said = [about["norm"], about["radius"], about.get("ids"), about.get("positions")]
    return about | {"sha256": _digest(said, sets)}


def _claim(tape: Tape, spec: Spec, tick: Tick = nobody) -> tuple[Arrays, Tensor]:
    """The claim's arrays and margins. The arrays say what every step takes from the rows that go back through all
    blocks."""
    margins, rows, losses = adjoint(tape, tick)
    arrays: Arrays = {"claim.rows": rows[0].cpu().numpy()}
    if isinstance(spec.claim, LinearClaim):
        arrays |= {"claim.matrix": _floats(spec.claim.rows), "claim.offset": _floats(spec.claim.offset)}
    # A loss that is nothing but rounding has another value in the checker, in size at most the rounding of all steps.
    rounded = torch.stack([loss for (_, _, step), loss in losses.items() if step == "rounding"]).sum(0)
    losses = {where: _wider(loss) + rounded / (16 * len(losses)) for where, loss in losses.items()}
    for (block, kind, step), loss in losses.items():
        place = kind if kind in ("input", "head") else f"block {block} ({kind})"
        arrays[f"{place}.loss.{step}"] = _floats(loss[0])
    total = torch.stack([loss[0] for loss in losses.values()]).sum(0)
    least = (tape.value - margins)[0]
    least[rows[0]] = torch.maximum(least[rows[0]], total)
    out = (tape.value[0] - _wider(least, 4) - tape.rounding[0]).cpu()
    arrays["claim.margins"] = _floats(out)
    return arrays, out


def _wider(loss: Tensor, times: int = 1) -> Tensor:
    """The loss with room for the checker: a share of its size, as a loss against a range may be negative."""
    return loss + times * room() * loss.abs()


def _blocks(arrays: Arrays, tape: Tape) -> None:
    """Adds to `arrays` the sets between the blocks, and each step's choices and bounds."""
    sets = [step.z for step in tape.steps] + [tape.head.z]
    places = [f"block {t} ({step.kind})" for t, step in enumerate(tape.steps, start=1)]
    for place, z in zip(["input", *places], sets, strict=True):
        arrays |= {f"{place}.c": _floats(z.c[0]), f"{place}.Q": _floats(z.Q[0])}
    for place, step in zip(places, tape.steps, strict=True):
        if step.norm is not None:
            arrays |= _norm(place, step.norm, slice(None))
        arrays |= _choices(place, step.choices)
        arrays |= {f"{place}.{name}": array for name, array in WRITTEN[step.kind](step).items()}
    arrays |= _norm("head", tape.head, slice(None) if bool((tape.pool > 0).all()) else slice(-1, None))


def _of_attention(step: AttentionStep) -> Arrays:
    found = {
        "R_U": step.R_U[0], "W": step.softmax.W[0], "zeta": step.softmax.zeta[0],
        "t_own": step.t.own[:, 0], "t_local": step.t.local[0], "t_crossed": step.t.crossed[0],
    }  # fmt: skip
    arrays: Arrays = {"rows": step.softmax.sloped[0].cpu().numpy()}
    return arrays | {name: _floats(x) for name, x in found.items()}


def _of_mlp(step: MlpStep) -> Arrays:
    return {name: _floats(getattr(step, name)[0]) for name in ("radius", "slope", "mid", "half")}


WRITTEN: Mapping[str, Callable[[Any], Arrays]] = {"attention": _of_attention, "mlp": _of_mlp}  # bounds, by kind of step


def _norm(place: str, norm: NormStep, tokens: slice) -> Arrays:
    return WRITTEN_NORMS[norm.norm.kind](place, norm, tokens)


def _layer_norm(place: str, norm: LayerNormStep, tokens: slice) -> Arrays:
    floats = {"shift": norm.shift, "half": norm.half, "largest": norm.largest, "delta": norm.delta}
    flags = {"sloped": norm.sloped, "polar": norm.polar}
    arrays: Arrays = {f"{place}.norm.{name}": _floats(x[0, tokens]) for name, x in floats.items()}
    arrays |= {f"{place}.norm.{name}": x[0, tokens].cpu().numpy() for name, x in flags.items()}
    arrays |= _choices(f"{place}.norm", norm.choices, tokens)
    arrays[f"{place}.norm.flat"] = norm.choices["flat"][0, tokens].mT.cpu().numpy()  # (rows, tokens)
    return arrays


WRITTEN_NORMS: Mapping[str, Callable[[str, Any, slice], Arrays]] = {"LayerNorm": _layer_norm}
RULES = Rules(  # what the checker knows
    blocks=frozenset(WRITTEN),
    norms=frozenset(WRITTEN_NORMS),
    activations=frozenset({GELU_TANH}),
    executed=frozenset(),
)


def _choices(place: str, choices: Choices, tokens: slice = slice(None)) -> Arrays:
    """The choices as arrays. Where not all tokens are needed, the last axis is that of the tokens."""
    out: Arrays = {}
    for name, x in choices.items():
        one = x[0] if len(x) == 1 else x[:, 0]  # the batch axis comes first, or after that of a sum's sets
        out[f"{place}.{name}"] = one[..., tokens].contiguous().cpu().numpy()
    return out
