"""A gradient attack on the exact model, for the question that matters: is any input below a certified margin?"""

from __future__ import annotations

import torch
from torch import Tensor

import zonogpt
from zonogpt.tensors import moved


def attacked_margins(
    model: zonogpt.Model, spec: zonogpt.Spec, restarts: int = 6, steps: int = 30, seed: int = 0
) -> Tensor:
    """(K,): the smallest margin of each row that projected gradient descent finds in the input set, in float64.

    Starts at sign vertices and at the centre; every row has its own batch of restarts.
    """
    wide = moved(model, model.device, torch.float64)
    box, K = spec.input, spec.claim.n_rows
    g = torch.Generator().manual_seed(seed)
    shape = (restarts, K, *box.lower.shape)
    starts = torch.randint(0, 2, shape, generator=g).double()
    starts[0] = 0.5
    x = _into_ball(box.lower + starts * (box.upper - box.lower), box)
    best = torch.full((K,), torch.inf, dtype=torch.float64)
    own = torch.arange(K)
    for step in range(steps):
        x.requires_grad_(True)
        margins = spec.claim.margins(wide.forward(box.embed(x)))[:, own, own]  # (restarts, K)
        best = torch.minimum(best, margins.detach().amin(0))
        (gradient,) = torch.autograd.grad(margins.sum(), x)
        size = (box.upper - box.lower) * (0.5 * 0.88**step)
        x = _into_ball(x.detach() - size * gradient.sign(), box).clamp(box.lower, box.upper)
    return best


def _into_ball(x: Tensor, box: zonogpt.spec.inputs.InputBox) -> Tensor:
    """Pulled towards the anchor until it is in the l_1 or l_2 ball; the box's bounds do the same for l_inf."""
    if box.norm == float("inf"):
        return x
    shift = x - box.anchor
    size = torch.linalg.vector_norm(shift, ord=box.norm, dim=(-2, -1), keepdim=True)
    return box.anchor + shift * (box.radius / size.clamp(min=box.radius))
