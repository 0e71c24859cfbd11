"""The mutation script itself: each mutation still applies to the source, once, and changes it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from mutants import MUTATIONS, ROOT, SOURCE


def test_every_mutation_applies_exactly_once():
    assert len(MUTATIONS) >= 25
    for mutation in MUTATIONS:
        assert (SOURCE / mutation.file).read_text().count(mutation.old) == 1, mutation.what
        assert mutation.old != mutation.new
        assert all((ROOT / "tests" / name).is_file() for name in mutation.tests)
