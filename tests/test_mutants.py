"""The mutants themselves: every kind of them is made, each is another program, and a guarded file has its tests."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from mutants import equivalents, every_mutant, sampled, stillborn  # noqa: E402
from mutants_guards import GUARDS  # noqa: E402
from mutants_kinds import KINDS, mutants_of  # noqa: E402

SOURCE = b"""
def bound(z, limit):
    if not finite(z):
        raise ArithmeticError
    half = up(torch.maximum(high - z, z - low) * norm + gamma(4, z.dtype), 12)
    for part in chunks(len(z), limit):
        half[part] += 0.5 * z[part]
    return Set(z.lower, half)
"""


def test_every_kind_of_mutant_is_made():
    found = list(mutants_of("bound.py", SOURCE))
    changes = {(m.kind, m.old, m.new) for m in found}
    assert {m.kind for m in found} == set(KINDS)
    assert changes >= {
        ("summand", "torch.maximum(high - z, z - low) * norm + gamma(4, z.dtype)", "gamma(4, z.dtype)"),
        ("summand", "half[part] += 0.5 * z[part]", "pass"),
        ("factor", "torch.maximum(high - z, z - low) * norm", "norm"),
        ("factor", "half", "0 * (half)"),
        ("argument", "torch.maximum(high - z, z - low)", "high - z"),
        ("coefficient", "0.5 * z[part]", "0.5 * (0.5 * z[part])"),
        ("outward", "gamma(4, z.dtype)", "0 * gamma(4, z.dtype)"),
        ("end", "z.lower", "z.upper"),
        ("guard", "not finite(z)", "False"),
        ("chunk", "part", "slice(part.stop - part.start)"),
        ("chunk", "chunks(len(z), limit)", "[*(chunks(len(z), limit))][:-1]"),
    }
    assert len({m.source for m in found}) == len(found)
    assert SOURCE not in {m.source for m in found}
    for mutant in found:
        ast.parse(mutant.source)


def test_counts_of_operations_are_no_terms():
    assert not any(m.old in ("12", "4", "len(z)") for m in mutants_of("bound.py", SOURCE))


def test_every_file_that_is_guarded_has_mutants_and_tests():
    mutants = list(every_mutant("transforms/softmax"))
    assert {m.file for m in mutants} == {"zonogpt/transforms/softmax.py"}
    for mutant in mutants:
        compile(mutant.source, mutant.name, "exec")
    for file, tests in GUARDS.items():
        assert (ROOT / "src" / file).is_file()
        assert all((ROOT / "tests" / name).is_file() for name in tests), file


def test_a_sample_is_spread_over_the_kinds_and_repeatable():
    mutants = list(every_mutant("transforms/softmax"))
    chosen = sampled(mutants, 16, seed=1)
    assert chosen == sampled(mutants, 16, seed=1) != sampled(mutants, 16, seed=2)
    assert {m.kind for m in chosen} == {m.kind for m in mutants}


@pytest.mark.parametrize(("error", "none_of_the_tests_doing"), [
    (AssertionError(), False), (ArithmeticError(), False), (TypeError(), True), (RuntimeError("shape"), True),
])  # fmt: skip
def test_a_mutant_that_does_not_run_is_no_catch(error, none_of_the_tests_doing):
    assert stillborn(error) is none_of_the_tests_doing


def test_equivalent_mutants_exist_and_have_reasons():
    known = equivalents()
    assert all(len(reason) > 20 for reason in known.values())
    assert set(known) <= {mutant.name for mutant in every_mutant()}
