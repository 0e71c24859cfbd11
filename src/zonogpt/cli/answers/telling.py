"""A result in the user's words: tokens as text, labels by name, what was lost where."""

from __future__ import annotations

from collections.abc import Sequence

from zonogpt.model.ir import Model
from zonogpt.model.names import token_names
from zonogpt.spec.inputs import Ball
from zonogpt.spec.scale import TokenScale, scales
from zonogpt.spec.spec import Spec
from zonogpt.studies.accuracy.rows import AccuracyRow
from zonogpt.studies.examples import tokens_called
from zonogpt.studies.radii.rows import RadiusRow
from zonogpt.verification.result import Result
from zonogpt.verification.witness import moved_tokens

MOST_SHOWN = 12  # how many tokens are shown with their scale; the others are only named


def describe(result: Result) -> str:
    took = f"{result.seconds:.2f} s"
    if result.hint_seconds is not None:
        took += f" and {result.hint_seconds:.2f} s for the hint"
    lines = [
        result.reason,
        f"{result.claim}, {result.reach}, method {result.method}, {result.dtype} on {result.device},"
        f" {took}, peak {result.peak_bytes / 2**20:.0f} MiB",
    ]
    if result.verified:
        proved = "this holds for" if result.guarantee == "bounded" else "this holds, if rounding is as estimated, for"
        lines.insert(1, f"{proved} {result.meaning}")
    if result.ledger.entries and (result.verified or result.method != "E"):  # else the reason says where it was lost
        lines.append(largest_loss(result))
    return "\n".join(lines)


def moving(net: Model, spec: Spec) -> str:
    """The tokens that move: what each spells and where it is."""
    return ", ".join(scale.called for scale in scales(net, spec.input))


def describe_moves(net: Model, spec: Spec) -> list[str]:
    """What moves in a text, and how far the radius is for each token."""
    box = spec.input
    if box.embed.positions is None:
        return []
    found = scales(net, box)
    said = [scale.called for scale in found]
    if box.ball is not None:
        said = [f"{scale.called}, {said_of_scale(scale, box.ball)}" for scale in found[:MOST_SHOWN]] + said[MOST_SHOWN:]
    return [f"moves: {said[0]}"] if len(said) == 1 else ["move together:", *(f"  {one}" for one in said)]


def describe_moved(rows: Sequence[AccuracyRow | RadiusRow], each: bool) -> list[str]:
    """Which tokens move in the texts of a data set: how many at once, and in which text the most."""
    texts = {row.place: row for row in rows if row.positions is not None}
    if not texts:
        return []
    counts = sorted(len(row.positions or ()) for row in texts.values())
    most = max(texts.values(), key=lambda row: len(row.positions or ()))
    such = f"{tokens_called(most.positions, most.tokens)} in {most.name}"
    if counts[-1] == 1:
        if each:
            n_texts = len({row.index for row in texts.values()})
            return [f"moves: one token at a time, {len(texts)} tokens of {n_texts} texts, as {such}"]
        return [f"moves: one token of each text, as {such}"]
    if counts[0] == counts[-1]:
        return [f"moves: {counts[0]} tokens of each text, together, as {such}"]
    return [f"moves: {counts[0]} to {counts[-1]} tokens of each text, together; most: {such}"]


def said_of_scale(scale: TokenScale, ball: Ball) -> str:
    """How far the radius is for this token."""
    of_length, of_distance = scale.shares(ball.radius)
    of = "of its norm" if of_length <= 10 else "its norm"
    said = f"by up to {percent(of_length)} {of} ({ball.kind})"
    if scale.nearest is None:
        return said
    nearest = f"id {scale.nearest}" if scale.nearest_token is None else repr(scale.nearest_token)
    if of_distance >= 1:
        return f"{said}, which is beyond the nearest other token, {nearest}"
    return f"{said}, {percent(of_distance)} of the way to the nearest other token, {nearest}"


def percent(share: float) -> str:
    """ "14.1 %"; above ten times, "12.3 times"."""
    return f"{100 * share:.3g} %" if share <= 10 else f"{share:.3g} times"


def describe_witness(net: Model, spec: Spec, result: Result) -> list[str]:
    """Where and how far the input moved; nothing if it did not."""
    assert result.counterexample is not None
    change = result.counterexample - spec.input.anchor.cpu()
    if not change.any():
        return []
    if spec.input.embed.positions is not None:
        lines = []
        for moved in moved_tokens(net, spec, result.counterexample):
            names = token_names(net, [moved.token, moved.nearest])
            token, nearest = (repr(n) for n in names) if names else (str(moved.token), str(moved.nearest))
            lines.append(
                f"token {token} at position {moved.position} moves by {moved.length:.3g} (l2),"
                f" {moved.largest:.3g} at most per coordinate, and is then nearest to {nearest}"
            )
    else:
        n = int((change != 0).sum())
        most = int(change.abs().argmax())
        row, column = divmod(most, change.shape[1])
        lines = [
            f"{n} of {change.numel()} pixels change, pixel ({row}, {column}) most: {float(change[row, column]):+.3g}"
        ]
    return lines


def largest_loss(result: Result) -> str:
    """The step that takes most from method E's margin; for other methods, whose ledger holds widths, the widest new
    error."""
    skipped = ("input",) if result.method == "E" else ("input", "head")
    fresh = [e for e in result.ledger.entries if e.kind not in skipped and e.step not in ("carried", "reduction")]
    worst = max(fresh, key=lambda e: e.width)
    place = f"{worst.step} of " + ("the head" if worst.kind == "head" else f"block {worst.block} ({worst.kind})")
    if result.method == "E":
        return f"largest error: {place} takes {worst.width:.3g} from a margin (mean over all rows)"
    return f"widest new error: {place}, {worst.width:.3g} per feature"
