"""Intervals of structured zonotopes that are too small for generators of their own."""

import dataclasses

import pytest
import torch

from builders import attention_block, generator, mlp_block, zonotope
from containment import assert_symbolic_containment
from zonogpt.domains.structured import NEGLIGIBLE, convert, settled
from zonogpt.transforms.structured.attention import fused_attention
from zonogpt.transforms.structured.decomposed_attention import decomposed_attention
from zonogpt.transforms.structured.mlp import fused_mlp, sequential_mlp


@pytest.mark.parametrize("name", ["fused", "decomposed", "sequential mlp", "fused mlp"])
@pytest.mark.parametrize("seed", range(3))
def test_intervals_are_taken_as_they_are(seed, name):
    """After a block the interval has no symbols left: its image is part of the block's own error."""
    z = zonotope(seed, radius=0.02)
    boxed = dataclasses.replace(z, b=0.03 * torch.rand(z.c.shape, generator=generator(seed)).double())
    block = mlp_block(seed) if "mlp" in name else attention_block(seed)
    transform = {
        "fused": fused_attention, "decomposed": decomposed_attention,
        "sequential mlp": sequential_mlp, "fused mlp": fused_mlp,
    }[name]  # fmt: skip
    out, _ = transform(block, boxed)
    # The same points, with symbols for the interval that the output does not have.
    known = convert(boxed)
    silent = torch.zeros_like(known.L[:, z.q :])
    placed = dataclasses.replace(out, L=torch.cat([out.L[:, : z.q], silent, out.L[:, z.q :]], dim=1))
    assert_symbolic_containment(block, known, placed, seed)


def test_only_a_negligible_interval_stays_one():
    z = zonotope(1, radius=0.02)
    size = float(z.symbol_radius.sum()) / z.b.numel()
    for share, kept in ((0.9, True), (1.1, False)):
        small = dataclasses.replace(z, b=torch.full_like(z.b, share * NEGLIGIBLE * size))
        out = settled(small)
        assert (out is small) == kept
        assert kept == bool(out.b.any())
        torch.testing.assert_close(out.radius, small.radius)
