"""From margins and findings to a verdict."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from zonogpt.search.falsify import Finding
from zonogpt.spec.claims import Claim
from zonogpt.verification.result import Result, Status


def judge(claim: Claim, margins: Tensor) -> tuple[Status, str]:
    """The status and the reason for it: "verified" only if these lower bounds (K,) prove the claim."""
    proved = claim.proved(margins)
    failed = int((~(margins > 0)).sum())
    if claim.groups is not None:
        return ("verified" if proved else "unknown"), f"{'' if proved else 'not '}every group has a certified margin"
    if not claim.needs_every_row:
        held = len(margins) - failed
        return ("verified" if proved else "unknown"), f"{held} of {len(margins)} rivals are certified to stay below"
    worst = margins[int(margins.argmin())]
    if len(margins) == 1:
        if proved:
            return "verified", f"the margin is certified positive: at least {worst:.4g}"
        return "unknown", f"the margin is not certified; its lower bound is {worst:.4g}"
    if proved:
        return "verified", f"every margin is certified positive; the smallest is {worst:.4g}"
    return "unknown", f"{failed} of {len(margins)} margins are not certified; the lowest bound is {worst:.4g}"


def with_counterexample(result: Result, finding: Finding) -> Result:
    found = finding.counterexample
    assert found is not None
    return dataclasses.replace(
        result,
        status="falsified",
        reason=finding.said,
        counterexample=found.input,
        answer=found.answer,
        answer_name=found.answer_name,
        replayed={"float32": found.margin_float32, "float64": found.margin_float64},
    )


def nothing_known(claim: Claim) -> Tensor:
    """(K,): the margins before anything is bounded, which are all -inf."""
    return torch.full((claim.n_rows,), -math.inf, dtype=torch.float64)


def joined(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)


def rounding_allowance(claim: Claim, output: Tensor, rounded: Tensor, dtype: torch.dtype) -> Tensor:
    """(K,): what is subtracted from every margin for rounding: an estimate, not a bound.

    It is eight times the error of float32 at the unperturbed input, scaled to `dtype`, plus 64 units of `dtype`.
    `output` is the model's output there in float64, `rounded` its output there in float32.
    """
    unit = torch.finfo(dtype).eps
    seen = (output - rounded).abs().max() * (unit / torch.finfo(torch.float32).eps)
    relative = 8 * seen / output.abs().max().clamp(min=torch.finfo(dtype).tiny) + 64 * unit
    # At least the rounding of the largest output, as a row may read only small ones. With NaN, nothing is certified.
    floor = 8 * seen + 64 * unit * output.abs().max()
    return torch.maximum(relative * claim.magnitude(output), floor).nan_to_num(nan=math.inf, posinf=math.inf).cpu()
