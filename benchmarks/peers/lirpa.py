"""auto_LiRPA on the plain network: IBP and CROWN, as they come."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

NEEDED = "auto_LiRPA"
METHODS = {  # its name for the method, and its options
    "ibp": ("IBP", {}),
    "crown": ("CROWN", {}),
    # Products between the middles of McCormick's planes, as ours, instead of one corner's.
    "crown+middle": ("CROWN", {"mul": {"middle": True}}),
    # Softmax in operators, as ours.
    "crown+split": ("CROWN", {"mul": {"middle": True}, "softmax": "complex", "fixed_reducemax_index": True}),
}


def missing() -> str | None:
    return None if importlib.util.find_spec(NEEDED) else "it is not installed"


def version() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import auto_LiRPA

    return f"auto_LiRPA {auto_LiRPA.__version__}"


def lowest(plain: nn.Module, lower: Tensor, upper: Tensor, rows: Tensor, method: str) -> float:
    """Of the claim's rows (K, outputs), the smallest lower bound over the box of patches (S, pixels)."""
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

    name, options = METHODS[method]
    with _quiet(lower.dtype), torch.no_grad():
        ball = PerturbationLpNorm(norm=float("inf"), x_L=lower[None], x_U=upper[None])
        centre = (lower + upper)[None] / 2
        bounded = BoundedModule(plain, centre, bound_opts=options)
        found, _ = bounded.compute_bounds(
            x=(BoundedTensor(centre, ball),), C=rows[None], method=name, bound_upper=False
        )
    return float(found.min())


@contextlib.contextmanager
def _quiet(dtype: torch.dtype) -> Iterator[None]:
    """Without its warnings; in this type, which some of its operators take from torch's default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(before)
