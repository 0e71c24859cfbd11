"""A counterexample as files: arrays that another tool can read, and a picture for people."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zonogpt.model.ir import Model, token_embedding
from zonogpt.spec.spec import Spec
from zonogpt.support.files import write_whole
from zonogpt.verification.result import Result


def save_witness(spec: Spec, result: Result, file: Path) -> list[Path]:
    """Writes FILE.npz and, for images, FILE.png beside it; returns what was written.

    The arrays are `input` (the counterexample), `original`, `change` and, for texts, `ids` and `positions`. The numbers
    are `label`, `answer`, `margin_float32`, `margin_float64` and, for balls, `radius` and `norm`. They are in float64
    and exact: a model that is given `input` breaks the claim.
    """
    assert result.counterexample is not None
    assert result.replayed is not None
    anchor = spec.input.anchor.cpu()
    arrays: dict[str, object] = {
        "input": result.counterexample.numpy(),
        "original": anchor.numpy(),
        "change": (result.counterexample - anchor).numpy(),
        "label": -1 if result.label is None else result.label,
        "answer": -1 if result.answer is None else result.answer,
        "margin_float32": result.replayed["float32"],
        "margin_float64": result.replayed["float64"],
    }
    embed, ball = spec.input.embed, spec.input.ball
    if ball is not None:
        arrays |= {"radius": ball.radius, "norm": ball.norm}
    if embed.ids is not None:
        arrays |= {"ids": embed.ids.cpu().numpy(), "positions": np.array(embed.positions)}
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_whole(file, content.getvalue())
    if embed.ids is not None:
        return [file]
    picture = file.with_suffix(".png")
    _draw(anchor, result, picture)
    return [file, picture]


def _draw(anchor: Tensor, result: Result, file: Path) -> None:
    from zonogpt.support.plotting import STYLE, rc_context, save, subplots  # matplotlib is slow to import

    assert result.counterexample is not None
    change = result.counterexample - anchor
    most = float(change.abs().max()) or 1.0
    with rc_context(STYLE):
        figure, axes = subplots(1, 3, figsize=(9.2, 3.5))
        for ax, image, title in (
            (axes[0], anchor, f"given: {result.label}"),
            (axes[1], result.counterexample, f"answer: {result.answer}"),
        ):
            ax.imshow(1 - image.numpy(), cmap="gray", vmin=0, vmax=1)
            ax.set_title(title)
        shown = axes[2].imshow(change.numpy(), cmap="PuOr", vmin=-most, vmax=most)
        axes[2].set_title("change")
        figure.colorbar(shown, ax=axes[2], fraction=0.046)
        for ax in axes:
            ax.set(xticks=[], yticks=[])
        save(figure, file)


@dataclass(frozen=True)
class MovedToken:
    position: int
    token: int
    largest: float  # the largest change of a coordinate
    length: float  # l_2 norm of the change
    nearest: int  # the token whose embedding is nearest to where it moved


def moved_tokens(model: Model, spec: Spec, raw: Tensor) -> list[MovedToken]:
    """What a counterexample does to each moving token of a text."""
    embed, tokens = spec.input.embed, token_embedding(model).tokens.double().cpu()
    assert embed.ids is not None
    assert embed.positions is not None
    out = []
    for row, position in zip(range(len(raw)), embed.positions, strict=True):
        change = raw[row] - spec.input.anchor[row].cpu()
        nearest = int(torch.cdist(raw[row][None], tokens)[0].argmin())
        out.append(
            MovedToken(position, int(embed.ids[position]), float(change.abs().max()), float(change.norm()), nearest)
        )
    return out
