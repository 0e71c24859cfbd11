"""Breaks the mathematics one term at a time, from its syntax tree, and checks that the tests notice.

    python tools/mutants.py [--seed 0] [--sample 300] [--files WORD] [--kind KIND] [--list]

Every file of the mathematics (mutants_guards.py) gives thousands of mutants; a seeded sample of them, spread over the
kinds, is run against the tests that guard its file, for about an hour on two cores. The kinds (mutants_kinds.py):

    summand      one side of a sum is dropped, or an update by a sum forgotten
    factor       one factor of a product is dropped, or a whole term is nothing
    argument     one argument of a maximum, a minimum, a choice, a Minkowski sum is all that is taken
    coefficient  half of it
    outward      a step outward is forgotten, or what rounding takes is nothing
    end          the other end of an interval
    guard        a condition that never holds, or is a little looser
    chunk        every chunk is the first

A mutant is caught when a test fails by an assertion, by an error of the verifier or by running too long. One that fails
otherwise did not run at all (its shapes do not fit, say): that says nothing about the tests, and it counts as neither.
Survivors are holes in the tests, and the exit code is 1, but for those that equivalent_mutants.txt gives a reason for.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from mutants_guards import GUARDS
from mutants_kinds import KINDS, Mutant, mutants_of

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
SECONDS = 600  # of processor time for one mutant
CAUGHT, SURVIVED, TOO_LONG, DID_NOT_RUN = 1, 0, -24, 3  # exit codes; a mutant that runs too long gets SIGXCPU


def every_mutant(word: str = "") -> Iterator[Mutant]:
    for file in sorted(GUARDS):
        if word in file:
            yield from mutants_of(file, (SOURCE / file).read_bytes())


def sampled(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """As many of every kind as of any other, as far as there are so many."""
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in random.Random(seed).sample(mutants, len(mutants)):
        by_kind[mutant.kind].append(mutant)
    out: list[Mutant] = []
    while len(out) < min(size, len(mutants)):
        for kind in KINDS:
            out += by_kind[kind][:1]
            del by_kind[kind][:1]
    return out[:size]


def equivalents() -> dict[str, str]:
    """The mutants that nothing can notice, and why. Lines are in pairs: a mutant's name, and the reason, indented."""
    lines = [line for line in EQUIVALENT.read_text().splitlines() if line and not line.startswith("#")]
    return {lines[i]: lines[i + 1].strip() for i in range(0, len(lines), 2)}


class Watch:
    """A plugin of pytest: whether the first test that fails is a catch."""

    code = SURVIVED

    def pytest_runtest_makereport(self, call) -> None:  # type: ignore[no-untyped-def]
        if call.excinfo is not None and call.excinfo.type.__name__ != "Skipped":
            self.code = DID_NOT_RUN if stillborn(call.excinfo.value) else CAUGHT

    def pytest_collectreport(self, report) -> None:  # type: ignore[no-untyped-def]
        if report.failed:
            self.code = DID_NOT_RUN


def stillborn(error: BaseException) -> bool:
    if isinstance(error, TypeError | NameError | AttributeError | LookupError | ImportError | SyntaxError):
        return True
    return type(error) in (RuntimeError, ValueError)  # torch's and numpy's own: shapes, devices


def attempt(mutant: Mutant, folder: Path) -> int:
    """In a child process: the tests that guard the mutant's file, on a copy of the source that holds it."""
    import resource

    import pytest

    copy = folder / "src"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / mutant.file).write_bytes(mutant.source)
    sys.path.insert(0, str(copy))
    os.environ |= {"PYTHONPATH": str(copy), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    watch = Watch()
    tests = [str(ROOT / "tests" / name) for name in GUARDS[mutant.file]]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={folder / 'tmp'}"]
    options += ["-o", f"pythonpath={ROOT / 'tests'}"]  # not the source that is not mutated
    pytest.main([*options, *tests], plugins=[watch])
    ours = [m.__file__ for name, m in sys.modules.items() if name.startswith("zonogpt") and m.__file__]
    assert all(Path(file).is_relative_to(copy) for file in ours), ours
    return watch.code


def outcomes(mutants: Sequence[Mutant], at_once: int) -> Iterator[tuple[Mutant, int, float]]:
    """Each mutant's exit code and seconds, as they end. Children start with the libraries loaded, and our code not."""
    import hypothesis  # noqa: F401
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)
    waiting, running = list(reversed(mutants)), dict[int, tuple[Mutant, Path, float]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            mutant, folder = waiting.pop(), Path(tempfile.mkdtemp(prefix="mutant"))
            child = os.fork()
            if child == 0:
                code = DID_NOT_RUN
                with contextlib.suppress(BaseException), open(folder / "log", "w") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                    code = attempt(mutant, folder)
                os._exit(code)
            running[child] = mutant, folder, time.perf_counter()
        child, status = os.wait()
        mutant, folder, started = running.pop(child)
        shutil.rmtree(folder, ignore_errors=True)
        yield mutant, os.waitstatus_to_exitcode(status), time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--files", default="", help="only files whose path contains this")
    parser.add_argument("--kind", default="", help="only this kind")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="name the sample, run nothing")
    args = parser.parse_args()
    sys.dont_write_bytecode = True
    known, every = equivalents(), [m for m in every_mutant(args.files) if args.kind in m.kind]
    chosen = sampled([m for m in every if m.name not in known], args.sample, args.seed)
    if args.list:
        print(*(mutant.name for mutant in chosen), sep="\n")
        return 0
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, code, seconds in outcomes(chosen, args.at_once):
        word = {SURVIVED: "SURVIVED", DID_NOT_RUN: "did not run"}.get(code, "caught")
        counts[mutant.kind][word] += 1
        print(f"{word:11s}  {mutant.name}  (line {mutant.line}, {seconds:.0f} s)", flush=True)
    for kind, seen in counts.items():
        print(f"{kind:11s}  {seen['caught']} caught, {seen['SURVIVED']} survived, {seen['did not run']} did not run")
    survivors = sum(seen["SURVIVED"] for seen in counts.values())
    print(f"{len(chosen)} of {len(every)} mutants, {survivors} survived; {len(known)} are known to be equivalent")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
