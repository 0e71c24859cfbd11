"""verify(): a model and a spec in, a verdict out. verify_many(): several specs of one model."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zonogpt.errors import OptionError, SpecError
from zonogpt.methods import METHODS, guarantee
from zonogpt.methods.method import (
    Bounds,
    Method,
    NonFiniteBlockError,
    NotEnoughMemoryError,
    Numerics,
    OnBlock,
    Progress,
)
from zonogpt.model.agreement import require_agreement_at
from zonogpt.model.arithmetic import Arithmetic, check_arithmetic
from zonogpt.model.ir import Model, check_model
from zonogpt.model.original import Original
from zonogpt.search.falsify import Finding, falsify, output_of, replay
from zonogpt.spec.claims import Claim
from zonogpt.spec.spec import Spec, check_spec
from zonogpt.support.memory import free_bytes, peak_bytes, reset_peak
from zonogpt.support.tensors import moved
from zonogpt.verification.options import (
    check_executable,
    check_limits,
    check_list,
    check_method,
    check_seed,
    resolve_device,
    resolve_dtype,
)
from zonogpt.verification.precision import full_precision
from zonogpt.verification.result import Result, Status

HALVINGS = 10  # of the radius, in search of one that holds
NO_MEMORY = "memory: out of memory on the way; `inspect` predicts the need, a smaller budget lowers it"

OnResult = Callable[[int, Result], None]


class _OutOfTimeError(Exception):
    pass


def verify(
    model: Model,
    spec: Spec,
    method: str = "E",
    attack: bool = False,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    seed: int = 0,
    hint: bool = True,
    on_block: OnBlock | None = None,
    arithmetic: str = "real",
) -> Result:
    """Tries to prove the spec's claim for every input of its set, or, with `attack`, to find one that breaks it.

    "verified" is returned only when every certified margin is positive; "falsified" only with an input of the set on
    which the Hugging Face model itself breaks the claim, in float32 and in float64, and by more than float64 rounds
    (an estimate: zonogpt.model.sensitivity). The unperturbed input is always
    looked at; with `attack` a gradient search of the set comes first (`seed` is its own). Otherwise "unknown", or
    "timeout" after `timeout` seconds (looked at between blocks).

    `arithmetic` says what a verdict is about: "real", the network in exact arithmetic with these weights, or "float32",
    any execution of it in IEEE float32. What the bounds round themselves is part of them in either case (docs/math.md,
    "Rounding"; of deepz, crown and covenn it is estimated, and they know "real" only: `guarantee` of the result says
    which). `dtype` is that of generators
    and tangents: float64 by default, float32 needs less memory and proves less. All else is in float64.
    `budget_bytes`: for the paper's methods the generator pool (default 512 MiB counted in float32), for the others the
    memory of a run (default: what is free; chunks are made smaller to keep it). A run that would need more memory than
    there is ends as "unknown", its reason begins with "memory". With `hint`, an "unknown" of method E comes with a
    smaller radius that is certified.
    """
    started = time.perf_counter()
    result = verify_many(
        model, [spec], method, attack, timeout, device, dtype, budget_bytes, seed, on_block, arithmetic=arithmetic
    )[0]
    hopeless = result.status != "unknown" or result.reason.startswith("memory")
    if not hint or method != "E" or hopeless or not spec.radius:
        return result
    left = math.inf if timeout is None else timeout - (time.perf_counter() - started)
    smaller = smaller_radius(model, spec, left, device, dtype, budget_bytes, on_block, arithmetic)
    advice = f"; radius {smaller:g} is certified" if smaller else ""
    return dataclasses.replace(result, certified_radius=smaller, reason=result.reason + advice)


def smaller_radius(
    model: Model,
    spec: Spec,
    seconds: float,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    budget_bytes: int | None,
    on_block: OnBlock | None,
    arithmetic: str = "real",
) -> float | None:
    """A radius below the spec's that method E certifies: by halving, then one step back up; None if none was found.

    Radii of three digits: what is printed is what was proved.
    """
    deadline = time.perf_counter() + seconds
    found, radius = None, three_digits(spec.require_ball().radius / 2)
    for _ in range(HALVINGS):
        left = deadline - time.perf_counter()
        if left <= 0:
            break
        limit = None if math.isinf(left) else left
        result = verify_many(
            model, [spec.shrunk(radius)], "E", False, limit, device, dtype, budget_bytes,
            on_block=on_block, arithmetic=arithmetic,
        )[0]  # fmt: skip
        if result.status == "verified":
            if found is not None:
                return radius
            found, radius = radius, three_digits(radius * math.sqrt(2))
        elif found is not None:
            break
        else:
            radius = three_digits(radius / 2)
    return found


def three_digits(x: float) -> float:
    return float(f"{x:.3g}")


def verify_many(
    model: Model,
    specs: Sequence[Spec],
    method: str = "E",
    attack: bool = False,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    seed: int = 0,
    on_block: OnBlock | None = None,
    on_result: OnResult | None = None,
    arithmetic: str = "real",
) -> list[Result]:
    """`verify` for several specs of one model, in batches where the method can: the same results in less time.

    Bounds do not depend on what else is in a batch, but sums are added up in another order there. Margins are those of
    `verify` to 1e-12 of their size on a CPU and 1e-10 on a GPU (which pads sequences); with dtype float32 to 1e-6.
    Only margins that are nearer to zero than that can change a verdict.

    `seconds` of a result is its share of the batch, and `timeout` is per spec. `on_result(index, result)` is called as
    soon as a result is there.
    """
    check_model(model)
    check_list(specs, "specs")
    check_method(method)
    check_seed(seed)
    meant = check_arithmetic(arithmetic)
    if meant != "real" and not METHODS[method].rounding_bounded:
        raise OptionError(f"method {method} estimates rounding: it can say nothing about executions in {meant}")
    run_dtype, run_device = resolve_dtype(dtype), resolve_device(device, model)
    check_limits(timeout, budget_bytes)
    check_executable(model, meant)
    METHODS[method].rules.require(model, f"method {method}")
    for spec in specs:
        check_match(model, spec)
    results: dict[int, Result] = {}
    with torch.no_grad(), full_precision(run_device):
        work, numerics = model.converted(run_device, torch.float64), Numerics(run_dtype, meant, budget_bytes)
        run = _Run(
            method, METHODS[method].for_run(work, specs, numerics), run_dtype, meant, budget_bytes, on_block,
            exact=work if run_device == model.device else model.converted(model.device, torch.float64),
            rounded=model.converted(model.device, torch.float32),
            work=work,
            original=model.source,
            seed=seed if attack else None,
        )  # fmt: skip
        for batch in run.method.batches(run.work, specs, numerics):
            limit = None if timeout is None else timeout * len(batch)
            for index, result in zip(batch, run.batch([specs[i] for i in batch], limit), strict=True):
                results[index] = result
                if on_result is not None:
                    on_result(index, result)
    return [results[index] for index in range(len(specs))]


@dataclass(frozen=True)
class _Run:
    """One call of verify_many: the method, and the model in the dtypes it is needed in."""

    name: str
    method: Method
    dtype: torch.dtype  # of what moves
    arithmetic: Arithmetic
    budget_bytes: int | None
    on_block: OnBlock | None
    exact: Model  # in float64, where the user keeps it
    rounded: Model  # in float32, to see what rounding does
    work: Model  # in float64, where the bounds are computed
    original: Original | None  # which judges counterexamples
    seed: int | None  # of the attack; None: none

    @property
    def numerics(self) -> Numerics:
        return Numerics(self.dtype, self.arithmetic, self.budget_bytes)

    def batch(self, specs: Sequence[Spec], timeout: float | None) -> list[Result]:
        started = time.perf_counter()
        deadline = math.inf if timeout is None else started + timeout
        reset_peak(self.work.device)
        at_home = [moved(spec, self.exact.device, torch.float64) for spec in specs]
        outputs, rounded = self.unperturbed(at_home)
        for spec, output in zip(at_home, outputs, strict=True):
            self.require_agreement(spec, output)
        findings = [self.find(spec, output, deadline) for spec, output in zip(at_home, outputs, strict=True)]
        todo = [i for i in range(len(specs)) if findings[i].counterexample is None]
        outcomes = dict(zip(todo, self.bounds([specs[i] for i in todo], deadline), strict=True)) if todo else {}
        results = []
        for i, spec in enumerate(specs):
            result = Result(
                status="unknown",
                margins=_nothing_known(spec),
                reason="",
                method=self.name,
                radius=spec.radius,
                label=spec.label,
                seconds=0.0,
                peak_bytes=peak_bytes(self.work.device),
                dtype=str(self.dtype).removeprefix("torch."),
                device=str(self.work.device),
                arithmetic=self.arithmetic,
                guarantee=guarantee(self.name),
                claim=spec.claim.words,
                weights=self.exact.weights,
                stored=self.exact.stored,
            )
            if i not in outcomes:
                results.append(falsified(result, findings[i]))
                continue
            allowance = None
            if not self.method.rounding_bounded:
                allowance = rounding_allowance(at_home[i].claim, outputs[i], rounded[i], self.dtype)
            results.append(self.judged(result, allowance, outcomes[i], findings[i], spec.claim))
        share = (time.perf_counter() - started) / len(specs)
        return [dataclasses.replace(result, seconds=share) for result in results]

    def unperturbed(self, specs: Sequence[Spec]) -> tuple[Tensor, Tensor]:
        """The outputs at the anchors, (B, outputs): in float64, and as float32 has them."""
        tokens = [spec.input.embed(spec.input.anchor) for spec in specs]
        outputs = torch.empty(2, len(specs), self.exact.n_outputs, dtype=torch.float64, device=self.exact.device)
        for length in {len(x) for x in tokens}:
            at = [i for i, x in enumerate(tokens) if len(x) == length]
            x = torch.stack([tokens[i] for i in at])
            outputs[0, at], outputs[1, at] = self.exact.forward(x), self.rounded.forward(x.float()).double()
        return outputs[0], outputs[1]

    def require_agreement(self, spec: Spec, output: Tensor) -> None:
        """ModelError unless the original has this output at the unperturbed input, up to rounding."""
        judge, box = self.original, spec.input
        if judge is None:
            return
        x = box.embed(box.anchor)
        require_agreement_at(
            self.exact, judge, x, output, lambda: output_of(judge, box, box.anchor, torch.float64),
            "the unperturbed input",
        )  # fmt: skip

    def find(self, spec: Spec, output: Tensor, deadline: float) -> Finding:
        """The unperturbed input, whose output is given, if it breaks the claim; with an attack, whatever that finds."""
        holds = spec.claim.proved(spec.claim.margins(output))
        finding = Finding(None, math.inf)
        if not holds and bool(output.isfinite().all()):
            finding = replay(self.exact, spec, self.original, spec.input.anchor)
        if self.seed is None or finding.counterexample is not None:
            return finding
        net = self.work  # searched where the work is done
        with torch.enable_grad():
            return falsify(
                net, moved(spec, net.device, torch.float64), self.original, seed=self.seed, deadline=deadline
            )

    def judged(
        self,
        result: Result,
        allowance: Tensor | None,
        outcome: Bounds | tuple[Status, str],
        found: Finding,
        claim: Claim,
    ) -> Result:
        """The result with the outcome's bounds, less the allowance for rounding, if they do not bound it themselves."""
        if not isinstance(outcome, Bounds):
            status, reason = outcome
            return dataclasses.replace(result, status=status, reason=_joined(reason, found.said))
        margins = outcome.margins.to("cpu", torch.float64)
        margins = margins if allowance is None else margins - allowance
        status, reason = judge(claim, margins)
        if status == "verified" and found.lowest <= 0:  # an input, replayed or not, against which no bound counts
            status, reason = "unknown", "the bounds would certify it"
        if allowance is not None and not bool(allowance.isfinite().all()):
            reason += "; the unperturbed input overflows float32, through which rounding is estimated"
        if status == "unknown":
            reason = _joined(reason, outcome.lost, found.said)
        return dataclasses.replace(result, status=status, margins=margins, reason=reason, ledger=outcome.ledger)

    def bounds(self, specs: Sequence[Spec], deadline: float) -> list[Bounds | tuple[Status, str]]:
        """Bounds for each spec, or the status and reason why there are none."""

        def watch(progress: Progress) -> None:
            if time.perf_counter() > deadline:
                raise _OutOfTimeError(f"out of time before block {progress.block} of {progress.blocks}")
            if self.on_block is not None:
                self.on_block(progress)

        here = [moved(spec, self.work.device, torch.float64) for spec in specs]
        failure: tuple[Status, str]
        try:
            self.require_memory(here)
            return list(self.method.bound_many(self.work, here, self.numerics, watch))
        except _OutOfTimeError as error:
            failure = "timeout", str(error)
        except NotEnoughMemoryError as error:
            failure = "unknown", f"memory: {error}"
        except NonFiniteBlockError as error:
            failure = "unknown", str(error)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            failure = "unknown", NO_MEMORY
        if len(specs) == 1 or failure[0] == "timeout":
            return [failure] * len(specs)
        # One spec must not take the others down with it.
        return [outcome for spec in specs for outcome in self.bounds([spec], deadline)]

    def require_memory(self, specs: Sequence[Spec]) -> None:
        """Before anything is allocated: is there room for the largest of them alone?"""
        plans = [self.method.plan(self.method.sizes(self.work, spec), self.numerics) for spec in specs]
        need, free = max(plan.peak_bytes for plan in plans), free_bytes(self.work.device)
        if need > free:
            raise NotEnoughMemoryError(
                f"method {self.name} would need about {need / 2**30:,.1f} GiB here, {free / 2**30:,.1f} GiB are free"
            )


def falsified(result: Result, finding: Finding) -> Result:
    found = finding.counterexample
    assert found is not None
    return dataclasses.replace(
        result,
        status="falsified",
        reason=finding.said,
        counterexample=found.input,
        answer=found.answer,
        replayed={"float32": found.margin_float32, "float64": found.margin_float64},
    )


def _joined(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)


def _nothing_known(spec: Spec) -> Tensor:
    return torch.full((spec.claim.n_rows,), -math.inf, dtype=torch.float64)


def out_of_memory(error: Exception) -> bool:
    """torch reports a failed allocation on the CPU as a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)


def judge(claim: Claim, margins: Tensor) -> tuple[Status, str]:
    """Verified only if these lower bounds (K,) prove the claim."""
    proved = claim.proved(margins)
    if claim.groups is not None:
        return ("verified" if proved else "unknown"), f"{'' if proved else 'not '}every group has a certified margin"
    worst = margins[int(margins.argmin())]
    if proved:
        return "verified", f"every margin is certified positive; the smallest is {worst:.4g}"
    failed = int((~(margins > 0)).sum())
    return "unknown", f"{failed} of {len(margins)} margins are not certified; the lowest bound is {worst:.4g}"


def rounding_allowance(claim: Claim, output: Tensor, rounded: Tensor, dtype: torch.dtype) -> Tensor:
    """(K,): what is taken off every margin for rounding: an estimate, not a bound.

    Eight times what float32 does to the margins at the unperturbed input, in units of `dtype`, plus 64 of its units.
    `output` is the model's there in float64, `rounded` what float32 makes of it.
    """
    unit = torch.finfo(dtype).eps
    seen = (output - rounded).abs().max() * (unit / torch.finfo(torch.float32).eps)
    relative = 8 * seen / output.abs().max().clamp(min=torch.finfo(dtype).tiny) + 64 * unit
    # At least what the largest output rounds to: a row may look at small ones. NaN: nothing is certified.
    floor = 8 * seen + 64 * unit * output.abs().max()
    return torch.maximum(relative * claim.magnitude(output), floor).nan_to_num(nan=math.inf, posinf=math.inf).cpu()


def check_match(model: Model, spec: Spec) -> None:
    """A spec holds embedded inputs, so it is about one embedding: with other weights it would be another set."""
    check_model(model)
    check_spec(spec)
    if spec.n_outputs != model.n_outputs or not spec.input.belongs_to(model):
        raise SpecError("the spec was built for another model; build it again with the model you verify")
