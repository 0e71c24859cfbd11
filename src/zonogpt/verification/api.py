"""verify(): a model and a spec in, a verdict out. verify_many(): several specs of one model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zonogpt.methods.method import OnBlock
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec
from zonogpt.verification.result import Result
from zonogpt.verification.verifier import OnResult, Verifier


def verify(
    model: Model,
    spec: Spec,
    *,
    method: str = "E",
    attack: bool = False,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    arithmetic: str = "real",
    seed: int = 0,
    hint: bool = False,
    on_block: OnBlock | None = None,
) -> Result:
    """Tries to prove the spec's claim for every input of its set, or, with `attack`, to find one that breaks it.

    "verified" is returned only when the certified margins prove the claim; "falsified" only with an input of the set on
    which the Hugging Face model itself breaks the claim, in float32 and in float64, and by more than float64 rounding
    (an estimate: zonogpt.model.sensitivity). The unperturbed input is always tried. With `attack`, a gradient search of
    the set comes first, and `seed` seeds it. Otherwise the answer is "unknown", or "timeout" after `timeout` seconds
    (checked between blocks).

    `arithmetic` says what a verdict is about: "real", the network in exact arithmetic with these weights, or "float32",
    any execution of it in IEEE float32. In either case the bounds include their own rounding errors (docs/math.md,
    section 13). deepz, crown and covenn only estimate theirs, and support only "real"; the result's `guarantee` says
    which it is. `dtype` is the type of generators and tangents: float64 by default; float32 needs less memory and
    proves less. Everything else is in float64.

    `budget_bytes`: for the paper's methods the generator pool (default 512 MiB counted in float32), for the others the
    memory that a run may take (default: what is free; chunks are made smaller to fit). A run that would need more
    memory than is free ends as "unknown", and its `stopped` is "memory".

    With `hint`, method E follows an "unknown" by a search for a smaller radius that is certified. That takes up to ten
    more runs; `hint_seconds` says how long they took.

    For many inputs of one model, `Verifier` converts it only once, and `verify_many` batches them.
    """
    verifier = Verifier(
        model, method=method, attack=attack, timeout=timeout, device=device, dtype=dtype, budget_bytes=budget_bytes,
        arithmetic=arithmetic, seed=seed, hint=hint,
    )  # fmt: skip
    return verifier.verify(spec, on_block=on_block)


def verify_many(
    model: Model,
    specs: Sequence[Spec],
    *,
    method: str = "E",
    attack: bool = False,
    timeout: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    budget_bytes: int | None = None,
    arithmetic: str = "real",
    seed: int = 0,
    on_block: OnBlock | None = None,
    on_result: OnResult | None = None,
) -> list[Result]:
    """`verify` for several specs of one model, in batches where the method can: the same results in less time.

    Bounds do not depend on what else is in a batch, but a batch adds up sums in another order. Margins agree with those
    of `verify` to 1e-12 of their size on a CPU and 1e-10 on a GPU (which pads sequences); with dtype float32, to 1e-6.
    Only margins closer to zero than that can change a verdict.

    `seconds` of a result is its share of the batch, and `timeout` is per spec. `on_result(index, result)` is called as
    soon as a result is known.
    """
    verifier = Verifier(
        model, method=method, attack=attack, timeout=timeout, device=device, dtype=dtype, budget_bytes=budget_bytes,
        arithmetic=arithmetic, seed=seed,
    )  # fmt: skip
    return verifier.verify_many(specs, on_block=on_block, on_result=on_result)
