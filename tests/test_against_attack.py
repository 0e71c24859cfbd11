"""Method E against an attack, up to radii at which E fails: no certified margin exceeds one that was found."""

import pytest

import zonogpt
from trained import NAMES, instances, trained
from zonogpt.search.descent import attack

COUNT, FRACTIONS = 18, (0.1, 0.4, 0.7, 0.9, 1.0, 1.04)  # inputs per model; parts of the radius at which its bound fails


def largest_radius(model, spec):
    low, high = 1e-6, spec.radius
    for _ in range(14):
        middle = (low * high) ** 0.5
        held = zonogpt.verify(model, spec.shrunk(middle)).status == "verified"
        low, high = (middle, high) if held else (low, middle)
    return low


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_attack_goes_below_a_certified_margin(name, capsys):
    model = trained(name)
    verified, closest = 0, float("inf")
    for spec in instances(name, 8.0, COUNT):
        radius = largest_radius(model, spec)
        assert radius > 1e-5
        for fraction in FRACTIONS:
            smaller = spec.shrunk(min(fraction * radius, spec.radius))  # some tokens may move as far as they like
            result = zonogpt.verify(model, smaller)
            found = attack(model, smaller, restarts=6, steps=40)
            assert (found.margins >= result.margins).all(), (name, smaller.radius)
            verified += result.status == "verified"
            closest = min(closest, float((found.margins - result.margins).min()))
    with capsys.disabled():
        print(f"\n{name}: {COUNT * len(FRACTIONS)} instances, {verified} verified; closest gap {closest:.2e}")
    assert verified >= COUNT * (len(FRACTIONS) - 1)
