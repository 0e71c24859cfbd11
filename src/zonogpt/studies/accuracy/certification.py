"""certify(): certified accuracy of a model over a data set, at several radii, in a run that can be continued."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from zonogpt._version import __version__
from zonogpt.datasets import Dataset, check_dataset
from zonogpt.datasets.texts import Positions
from zonogpt.errors import OptionError
from zonogpt.methods import guarantee
from zonogpt.model.ir import Model, TokenEmbedding, check_model
from zonogpt.search.descent import RESTARTS, STEPS
from zonogpt.spec.spec import Spec, check_ball
from zonogpt.studies.accuracy.job import Job
from zonogpt.studies.accuracy.rows import Row, Settings
from zonogpt.studies.accuracy.table import Line, tabulate
from zonogpt.studies.examples import Examples, chosen_indices
from zonogpt.studies.rows.store import open_store
from zonogpt.support.files import as_path
from zonogpt.support.tensors import fingerprint, moved
from zonogpt.verification.options import (
    as_dtype,
    check_limits,
    check_list,
    check_method,
    check_seed,
    resolve_device,
)
from zonogpt.verification.result import Result
from zonogpt.verification.run import verify_many

# Examples that are verified together: enough to fill the device, few enough that a crash loses little.
TOGETHER_CPU, TOGETHER_GPU = 4, 32

OnRow = Callable[[Row], None]


@dataclass(frozen=True)
class Certification:
    settings: Settings
    radii: tuple[float, ...]
    rows: tuple[Row, ...]  # by example, then radius

    @property
    def table(self) -> tuple[Line, ...]:
        return tabulate(self.rows, self.radii)


def certify(
    model: Model,
    dataset: Dataset,
    radii: Sequence[float],
    count: int | None = None,
    skip: int = 0,
    norm: float = math.inf,
    method: str = "E",
    positions: str = "last",
    search: bool = True,
    seed: int = 0,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    out: str | Path | None = None,
    on_row: OnRow | None = None,
) -> Certification:
    """Verifies and attacks `count` examples behind the first `skip` at every radius (increasing, positive).

    An example is certified if the model (in float64) gives its label and `verify` proves that it keeps it; without
    labels, the model's own answer is to be kept. Proof and attack are tried on their own, so that each checks the
    other: UnsoundError if an attack ever breaks what was certified. Radii are tried from the largest down, and a proof
    settles all smaller ones (their sets are inside): these rows are `implied`, without margins.

    `positions` says which tokens of a text move (see Positions); `seed` is for these and for the attack. With `out`,
    every row is on the disk in `out`/rows.jsonl as soon as it is known, and a later call with the same arguments goes
    on from there. More radii or examples may be added; anything else must be the same. `on_row` is called for each row,
    also for those found in `out`.

    All arguments and all examples are checked before the first proof.
    """
    check_model(model)
    check_dataset(dataset)
    _check_options(radii, norm, seed, method)
    folder = None if out is None else as_path(out, "out")
    check_limits(timeout, budget_bytes)
    run_dtype, run_device = as_dtype(dtype), resolve_device(device, model)
    chosen = chosen_indices(len(dataset), count, skip)
    is_text = isinstance(model.embedding, TokenEmbedding)
    settings = Settings(
        model=fingerprint((model.embedding, model.blocks, model.head, model.architecture, model.pad_token_id)),
        norm=f"{norm:g}",
        method=method,
        guarantee=guarantee(method),
        dtype=str(run_dtype).removeprefix("torch."),
        positions=positions if is_text else None,
        attack=f"{RESTARTS} restarts, {STEPS} steps" if search else None,
        seed=seed,
        timeout=timeout,
        budget=budget_bytes,
        version=__version__,
    )
    # In float64 once, where the work is done: what is asked about is the model in exact arithmetic.
    net = moved(model, run_device, torch.float64)
    examples = Examples(net, dataset, Positions.parse(positions), seed, norm)
    examples.check(chosen)
    job = Job(examples, tuple(map(float, radii)), settings, search)

    def prove(specs: Sequence[Spec]) -> list[Result]:
        return verify_many(net, specs, method, timeout=timeout, dtype=run_dtype, budget_bytes=budget_bytes)

    together = TOGETHER_GPU if run_device.type == "cuda" else TOGETHER_CPU
    rows = []
    with nullcontext() if folder is None else open_store(folder, settings, Row) as store:
        for start in range(0, len(chosen), together):
            for row in job.rows(chosen[start : start + together], prove, store):
                rows.append(row)
                if on_row is not None:
                    on_row(row)
    rows.sort(key=lambda row: (row.index, row.radius))
    return Certification(settings, job.radii, tuple(rows))


def _check_options(radii: Sequence[float], norm: float, seed: int, method: str) -> None:
    check_method(method)
    check_seed(seed)
    check_list(radii, "radii")
    if not radii:
        raise OptionError("give at least one radius")
    for radius in radii:
        if not check_ball(radius, norm) > 0:
            raise OptionError(f"a radius of accuracy must be positive; got {radius!r}")
    if list(radii) != sorted(set(radii)):
        raise OptionError(f"radii must increase, each once; got {', '.join(f'{radius:g}' for radius in radii)}")
