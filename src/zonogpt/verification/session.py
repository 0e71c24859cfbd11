"""A model prepared for a device, and the runs on it: specs in, results out, batch by batch."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from zonogpt.errors import SpecError
from zonogpt.methods import METHODS
from zonogpt.methods.method import Bounds, Method, NonFiniteBlockError, NotEnoughMemoryError, OnBlock, Progress
from zonogpt.model.agreement import require_agreement_at
from zonogpt.model.ir import Model, check_model
from zonogpt.model.names import output_name
from zonogpt.model.original import Original
from zonogpt.search.descent import OnShare
from zonogpt.search.falsify import Finding, falsify, output_of, replay
from zonogpt.spec.claims import Claim
from zonogpt.spec.spec import Spec, check_spec
from zonogpt.support.memory import free_bytes, peak_bytes, reset_peak
from zonogpt.support.tensors import moved
from zonogpt.verification.options import Options, check_executable, usable
from zonogpt.verification.precision import full_precision
from zonogpt.verification.result import Result, Stopped
from zonogpt.verification.subject import Subject
from zonogpt.verification.verdict import joined, judge, nothing_known, rounding_allowance, with_counterexample

log = logging.getLogger(__name__)

NO_MEMORY = "memory: out of memory on the way; `inspect` predicts the need, a smaller budget lowers it"


class _OutOfTimeError(Exception):
    pass


@contextmanager
def computing(device: torch.device) -> Iterator[None]:
    """Inside, gradients are off and matrix products have full precision."""
    with torch.no_grad(), full_precision(device):
        yield


@dataclass(frozen=True, eq=False)
class Session:
    """A model on a device, converted once for all that is asked about it."""

    model: Model  # as it was given
    exact: Model  # in float64, where the work is done: outputs, bounds and searches are computed with it
    original: Original | None  # the model that judges counterexamples
    _ready: set[tuple[str, str]] = field(default_factory=set)  # pairs of method and arithmetic that suit the model

    @staticmethod
    def open(model: Model, options: Options) -> Session:
        check_ready(model, options)
        return Session(model, model.converted(options.device or model.device, torch.float64), model.source)

    @property
    def device(self) -> torch.device:
        return self.exact.device

    @cached_property
    def rounded(self) -> Model:
        """The model in float32, which shows what rounding does, for methods that only estimate it."""
        return self.model.converted(self.device, torch.float32)

    def here(self, spec: Spec) -> Spec:
        """The spec on the session's device."""
        return moved(spec, self.device, torch.float64)

    def require(self, options: Options) -> None:
        """OptionError unless these options suit the model; they may differ from those the session was opened with."""
        if (options.method, options.arithmetic) not in self._ready:
            check_ready(self.model, options, elsewhere=True)
            self._ready.add((options.method, options.arithmetic))

    def prepare(self, specs: Sequence[Spec], options: Options, on_block: OnBlock | None = None) -> Verification:
        """A run that can verify these specs, or smaller ones around the same inputs."""
        self.require(options)
        for spec in specs:
            check_match(self.model, spec)
        with computing(self.device):
            method = METHODS[options.method].for_run(self.exact, specs, options.numerics)
        return Verification(self, method, options, on_block)

    def search(
        self, spec: Spec, options: Options, deadline: float = math.inf, on_share: OnShare | None = None
    ) -> Finding:
        """What a search of the spec's set finds. Gradients are taken even if the caller has switched them off."""
        with torch.enable_grad():
            return falsify(self.exact, spec, self.original, seed=options.seed, deadline=deadline, on_share=on_share)


@dataclass(frozen=True)
class NoBounds:
    """Why a spec has no bounds."""

    stopped: Stopped
    reason: str  # for people


@dataclass(frozen=True)
class Verification:
    """A method on a session's model. The method may cache what its inputs have in common."""

    session: Session
    method: Method
    options: Options
    on_block: OnBlock | None

    def results(self, specs: Sequence[Spec]) -> Iterator[tuple[int, Result]]:
        """Index and result of each spec, batch by batch; the timeout is per spec."""
        with computing(self.session.device):
            batches = self.method.batches(self.session.exact, specs, self.options.numerics)
        for batch in batches:
            with computing(self.session.device):
                results = self._batch([self.session.here(specs[i]) for i in batch])
            yield from zip(batch, results, strict=True)

    def result(self, spec: Spec) -> Result:
        ((_, result),) = self.results([spec])
        return result

    def _batch(self, specs: Sequence[Spec]) -> list[Result]:
        started = time.perf_counter()
        timeout = self.options.timeout
        deadline = math.inf if timeout is None else started + timeout * len(specs)
        reset_peak(self.session.device)
        outputs = self._unperturbed(specs, self.session.exact)
        for spec, output in zip(specs, outputs, strict=True):
            self._require_agreement(spec, output)
        findings = [self._find(spec, output, deadline) for spec, output in zip(specs, outputs, strict=True)]
        open_ = [i for i, finding in enumerate(findings) if finding.counterexample is None]
        bounded = dict(zip(open_, self._bounds([specs[i] for i in open_], deadline), strict=True)) if open_ else {}
        allowances = self._allowances(specs, outputs)
        results = []
        for i, spec in enumerate(specs):
            result = self._nothing_known(spec)
            if i in bounded:
                results.append(judged(spec.claim, result, bounded[i], findings[i], allowances[i]))
            else:
                results.append(with_counterexample(result, findings[i]))
        share = (time.perf_counter() - started) / len(specs)
        for result in results:
            log.info("%s: %s by method %s in %.3g s (%s)", result.claim, result.status, result.method, share,
                     result.reason)  # fmt: skip
        return [dataclasses.replace(result, seconds=share) for result in results]

    def _nothing_known(self, spec: Spec) -> Result:
        return Result(
            status="unknown",
            margins=nothing_known(spec.claim),
            reason="",
            method=self.options.method,
            radius=spec.radius,
            norm=None if spec.input.ball is None else f"{spec.input.ball.norm:g}",
            label=spec.label,
            seconds=0.0,
            peak_bytes=peak_bytes(self.session.device),
            dtype=self.options.dtype_name,
            device=str(self.session.device),
            arithmetic=self.options.arithmetic,
            guarantee=self.options.guarantee,
            claim=spec.claim.words,
            weights=self.session.model.weights,
            stored=self.session.model.stored,
            label_name=None if spec.label is None else output_name(self.session.model, spec.label),
            subject=Subject.of(self.session.model, spec, self.options),
        )

    def _unperturbed(self, specs: Sequence[Spec], net: Model) -> Tensor:
        """(B, outputs): the outputs of `net`, of whatever type, at the anchors, in float64."""
        tokens = [spec.input.embed(spec.input.anchor) for spec in specs]
        outputs = torch.empty(len(specs), net.n_outputs, dtype=torch.float64, device=net.device)
        for length in {len(x) for x in tokens}:
            at = [i for i, x in enumerate(tokens) if len(x) == length]
            outputs[at] = net.forward(torch.stack([tokens[i] for i in at]).to(net.dtype)).double()
        return outputs

    def _allowances(self, specs: Sequence[Spec], outputs: Tensor) -> list[Tensor | None]:
        """What is subtracted from the margins of each spec for rounding; None: the method bounds its own rounding."""
        if self.options.guarantee == "bounded":
            return [None] * len(specs)
        rounded = self._unperturbed(specs, self.session.rounded)
        return [
            rounding_allowance(spec.claim, output, seen, self.options.dtype)
            for spec, output, seen in zip(specs, outputs, rounded, strict=True)
        ]

    def _require_agreement(self, spec: Spec, output: Tensor) -> None:
        """ModelError unless the original has this output at the unperturbed input, up to rounding."""
        judge, box = self.session.original, spec.input
        if judge is None:
            return
        x = box.embed(box.anchor)
        require_agreement_at(
            self.session.exact, judge, x, output, lambda: output_of(judge, box, box.anchor, torch.float64),
            "the unperturbed input",
        )  # fmt: skip

    def _find(self, spec: Spec, output: Tensor, deadline: float) -> Finding:
        """The unperturbed input, whose output is given, if it breaks the claim; else, with an attack, what it finds."""
        holds = spec.claim.proved(spec.claim.margins(output))
        finding = Finding(None, math.inf)
        if not holds and bool(output.isfinite().all()):
            finding = replay(self.session.exact, spec, self.session.original, spec.input.anchor)
        if not self.options.attack or finding.counterexample is not None:
            return finding
        return self.session.search(spec, self.options, deadline, self._searched)

    def _searched(self, share: float) -> None:
        if self.on_block is not None:
            self.on_block(Progress(0, len(self.session.model.blocks), "", "search", share))

    def _bounds(self, specs: Sequence[Spec], deadline: float) -> list[Bounds | NoBounds]:
        def watch(progress: Progress) -> None:
            if time.perf_counter() > deadline:
                back = " on the way back" if progress.part == "backward" else ""
                raise _OutOfTimeError(f"out of time before block {progress.block} of {progress.blocks}{back}")
            if self.on_block is not None:
                self.on_block(progress)

        failure: NoBounds
        try:
            self._require_memory(specs)
            return list(self.method.bound_many(self.session.exact, specs, self.options.numerics, watch))
        except _OutOfTimeError as error:
            failure = NoBounds("timeout", str(error))
        except NotEnoughMemoryError as error:
            failure = NoBounds("memory", f"memory: {error}")
        except NonFiniteBlockError as error:
            failure = NoBounds("overflow", str(error))
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            failure = NoBounds("memory", NO_MEMORY)
        if len(specs) == 1 or failure.stopped == "timeout":
            return [failure] * len(specs)
        # One spec must not take the others down with it.
        return [outcome for spec in specs for outcome in self._bounds([spec], deadline)]

    def _require_memory(self, specs: Sequence[Spec]) -> None:
        """NotEnoughMemoryError, before anything is allocated, if there is no room for the largest spec alone."""
        net, numerics = self.session.exact, self.options.numerics
        plans = [self.method.plan(self.method.sizes(net, spec), numerics) for spec in specs]
        need, free = max(plan.peak_bytes for plan in plans), free_bytes(self.session.device)
        if need > free:
            raise NotEnoughMemoryError(
                f"method {self.options.method} would need about {need / 2**30:,.1f} GiB here,"
                f" {free / 2**30:,.1f} GiB are free"
            )


def judged(
    claim: Claim, result: Result, outcome: Bounds | NoBounds, found: Finding, allowance: Tensor | None
) -> Result:
    """The result with the outcome's bounds, less an allowance for rounding if they do not bound it themselves."""
    if isinstance(outcome, NoBounds):
        return dataclasses.replace(
            result,
            status="timeout" if outcome.stopped == "timeout" else "unknown",
            stopped=outcome.stopped,
            reason=joined(outcome.reason, found.said),
        )
    margins = outcome.margins.to("cpu", torch.float64)
    margins = margins if allowance is None else margins - allowance
    status, reason = judge(claim, margins)
    if status == "verified" and not found.lowest > 0:  # no bound counts against an input, replayed or not
        status, reason = "unknown", "the bounds would certify it"
    if allowance is not None and not bool(allowance.isfinite().all()):
        reason += "; the unperturbed input overflows float32, through which rounding is estimated"
    if status == "unknown":
        reason = joined(reason, outcome.where_lost, found.said)
    return dataclasses.replace(result, status=status, margins=margins, reason=reason, ledger=outcome.ledger)


def check_ready(model: Model, options: Options, elsewhere: bool = False) -> None:
    """OptionError unless these options suit the model and the device can be used here, if it is not `elsewhere`."""
    check_model(model)
    METHODS[options.method].rules.require(model, f"method {options.method}", options.arithmetic)
    check_executable(model, options.arithmetic)
    if not elsewhere:
        usable(options.device, model)


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: torch reports a failed allocation on the CPU as a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)


def check_match(model: Model, spec: Spec) -> None:
    """SpecError unless the spec is about this model.

    A spec holds embedded inputs, so it is about one embedding: with other weights it would be another set.
    """
    check_model(model)
    check_spec(spec)
    if spec.n_outputs != model.n_outputs or not spec.input.belongs_to(model):
        raise SpecError("the spec was built for another model; build it again with the model you verify")
