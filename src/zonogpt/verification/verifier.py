"""Verifier: a model on a device, ready for many questions."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import torch

from zonogpt.errors import OptionError
from zonogpt.methods.method import OnBlock
from zonogpt.model.arithmetic import check_arithmetic
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec
from zonogpt.verification.hint import with_hint
from zonogpt.verification.options import Options, as_device, as_dtype, check_list
from zonogpt.verification.result import Result
from zonogpt.verification.session import Session

OnResult = Callable[[int, Result], None]


class Choices(TypedDict, total=False):
    """The options of a run that may differ from call to call; `verify` describes them."""

    method: str
    attack: bool
    timeout: float | None
    dtype: str | torch.dtype | None
    budget_bytes: int | None
    arithmetic: str
    seed: int
    hint: bool


class Verifier:
    """Verifies inputs of one model on one device. The model is converted once, however many inputs follow.

    Options given here hold for every call; a call may change any of them but the device.

    >>> import zonogpt
    >>> model = zonogpt.load("zoo:digits")
    >>> images, labels = zonogpt.zoo.samples("digits")
    >>> verifier = zonogpt.Verifier(model, method="E")
    >>> [verifier.verify(zonogpt.image_ball(model, image, 1e-4)).status for image in images[:3]]
    ['verified', 'verified', 'verified']
    """

    def __init__(self, model: Model, *, device: str | torch.device | None = None, **options: Unpack[Choices]) -> None:
        self.options = changed(Options(device=as_device(device)), options)
        self._session = Session.open(model, self.options)

    @property
    def model(self) -> Model:
        return self._session.model

    def __repr__(self) -> str:
        return f"Verifier({self.model.name!r}, method {self.options.method} on {self._session.device})"

    def verify(self, spec: Spec, *, on_block: OnBlock | None = None, **options: Unpack[Choices]) -> Result:
        """See `zonogpt.verify`."""
        started = time.perf_counter()
        chosen = changed(self.options, options)
        run = self._session.prepare([spec], chosen, on_block)
        result = run.result(spec)
        if not chosen.hint:
            return result
        spent = time.perf_counter() - started
        return with_hint(run, spec, result, math.inf if chosen.timeout is None else chosen.timeout - spent)

    def verify_many(
        self,
        specs: Sequence[Spec],
        *,
        on_block: OnBlock | None = None,
        on_result: OnResult | None = None,
        **options: Unpack[Choices],
    ) -> list[Result]:
        """See `zonogpt.verify_many`."""
        check_list(specs, "specs")
        chosen = dataclasses.replace(changed(self.options, options), hint=False)  # batches have no hints
        run = self._session.prepare(specs, chosen, on_block)
        results: dict[int, Result] = {}
        for index, result in run.results(specs):
            results[index] = result
            if on_result is not None:
                on_result(index, result)
        return [results[index] for index in range(len(specs))]


def changed(options: Options, choices: Choices) -> Options:
    """The options with these choices in place of their own; OptionError for a choice that does not exist."""
    unknown = set(choices) - set(Choices.__annotations__)
    if unknown:
        raise OptionError(f"{sorted(unknown)[0]!r} is no option here; there are {', '.join(Choices.__annotations__)}")
    values: dict[str, object] = dict(choices)
    if values.get("dtype", "") is None:
        del values["dtype"]
    if "dtype" in values:
        values["dtype"] = as_dtype(choices["dtype"])
    if "arithmetic" in values:
        values["arithmetic"] = check_arithmetic(choices["arithmetic"])
    return dataclasses.replace(options, **values)  # type: ignore[arg-type]
