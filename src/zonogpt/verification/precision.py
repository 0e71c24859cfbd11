"""Full precision of matrix products while bounds are computed: it is asked for, and then tested."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from zonogpt.errors import PrecisionError

SPREAD = {torch.float32: 60, torch.float64: 500}  # the probe's exponents go up and down to this: products are normal


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Inside, TF32, bfloat16 products and autocast are off. Afterwards, all settings are as they were found."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_highest())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        require_full_precision(device)
        yield


@contextlib.contextmanager
def _highest() -> Iterator[None]:
    """Sets the highest precision of products in float32.

    PyTorch has two interfaces to this setting and refuses to read the older one after the newer was used.
    """
    places = _newer_interface()
    found = [place.fp32_precision for place in places]
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # the user has set the newer one
        older = "highest"
    try:
        if older != "highest":
            torch.set_float32_matmul_precision("highest")
        for place in places:
            if place.fp32_precision not in ("none", "ieee"):
                place.fp32_precision = "ieee"
        yield
    finally:
        if older != "highest":
            torch.set_float32_matmul_precision(older)
        for place, value in zip(places, found, strict=True):
            if place.fp32_precision != value:
                place.fp32_precision = "none"  # inherits from the setting above it
            if place.fp32_precision != value:
                place.fp32_precision = value


def _newer_interface() -> list[Any]:
    """The objects that hold the precision of products in float32; none in versions of PyTorch that lack them."""
    if not hasattr(torch.backends, "fp32_precision"):
        return []
    backends: Any = torch.backends  # newer than its type annotations
    return [backends.cuda.matmul, backends.mkldnn.matmul]


def require_full_precision(device: torch.device) -> None:
    """PrecisionError unless products and sums come out as in IEEE arithmetic.

    Products of 1 + eps and 1, and sums of 1 and eps, must be exact; with fewer bits they would not be. They must be
    exact even next to numbers that are larger by many orders of magnitude and are multiplied by zeros: products that
    are emulated with integers cut all entries of a row at the same bit, which the largest of them sets. Numbers below
    the smallest normal one must not become 0.
    """
    for dtype in (torch.float32, torch.float64):
        eps = torch.finfo(dtype).eps
        small = torch.full((1 << 16,), torch.finfo(dtype).tiny, dtype=dtype, device=device)  # some for every thread
        if not bool((small / 2 > 0).all()):
            raise PrecisionError(
                f"{device} flushes numbers below the smallest normal one to 0 in this process. Switch that off:"
                " torch.set_flush_denormal(False); libraries built with -ffast-math switch it on"
            )
        ones = torch.ones(64, 64, dtype=dtype, device=device)
        more = (1 + eps) * torch.eye(64, dtype=dtype, device=device)
        sums = torch.zeros_like(ones)
        sums[:, 0], sums[:, 40] = 1, eps
        powers = torch.arange(64, dtype=dtype, device=device) / 63 * 2 * SPREAD[dtype] - SPREAD[dtype]
        scale = torch.exp2(powers.round())
        wide, back = (1 + eps) * ones * scale, torch.diag(1 / scale)  # entries of all sizes, and what undoes them
        products = torch.stack(
            [
                more @ ones,
                ones @ more,
                sums @ ones,
                wide @ back,
                back @ wide.T,
                torch.einsum("ij,jk->ik", wide, back),
                torch.einsum("ij,jk->ik", more, ones),
            ]
        )
        if not bool((products == 1 + eps).all()):
            raise PrecisionError(
                f"{device} multiplies {str(dtype).removeprefix('torch.')} matrices with fewer bits than that"
            )
