"""The mutation script itself: each mutation still applies to the source, once, changes it, and leaves Python behind."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from mutants import MUTATIONS, ROOT, SOURCE


def test_every_mutation_applies_exactly_once():
    assert len(MUTATIONS) >= 25
    for mutation in MUTATIONS:
        source = (SOURCE / mutation.file).read_text()
        assert source.count(mutation.old) == 1, mutation.what
        assert mutation.old != mutation.new
        compile(
            source.replace(mutation.old, mutation.new), mutation.what, "exec"
        )  # what cannot be imported proves nothing
        assert all((ROOT / "tests" / name).is_file() for name in mutation.tests)
