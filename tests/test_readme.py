"""README and the pages under docs: their commands run, their Python prints what they say, their links lead somewhere.

A command or a Python block with a placeholder, a word of capitals as MODEL, is about the reader's own files: it is not
run, but its options must exist. A `text` block behind commands holds what they print, a line for each.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from program import zono
from zonogpt.cli.answers.verdict import EXIT
from zonogpt.cli.app import app

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
LONG_LINES = ("architecture.md",)  # pages that are not wrapped
WIDTH, MOST_LINES = 120, 100
PLACEHOLDER = re.compile(r"[A-Z]{4,}")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Block:
    language: str
    lines: tuple[str, ...]


@cache
def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, tuple(content.splitlines())) for language, content in found]


def prose(page: Path) -> str:
    """The text of the page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[tuple[str, str | None]]:
    """Every command that starts with zonogpt, and the first line that it prints, where the page says it."""
    found: list[tuple[str, str | None]] = []
    for block, after in zip(blocks(page), [*blocks(page), Block("", ())][1:], strict=True):
        if block.language == "sh":
            mine = [line for line in block.lines if line.startswith("zonogpt ")]
            said = after.lines[: len(mine)] if after.language == "text" else [None] * len(mine)
            found += zip(mine, said, strict=True)
    return found


def is_runnable(command: str) -> bool:
    return not any(PLACEHOLDER.fullmatch(word) for word in shlex.split(command))


def runnable(page: Path) -> list[tuple[str, str | None]]:
    return [(command, said) for command, said in commands(page) if is_runnable(command)]


def script(page: Path) -> str:
    """The Python of a page as one program."""
    texts = ["\n".join(block.lines) for block in blocks(page) if block.language == "python"]
    return "\n".join(text for text in texts if not re.search(rf'"{PLACEHOLDER.pattern}"', text))


def is_same(said: str, seen: str) -> bool:
    """Whether the words are the same, and the numbers, up to the effect of another processor's rounding on a search."""
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (said, seen)]
    return NUMBER.sub("", said) == NUMBER.sub("", seen) and numbers[0] == pytest.approx(numbers[1], rel=0.02)


def require_answer(command: str, code: int, out: str, said: str | None) -> None:
    """The exit code is that of the verdict, and the first line is what the page says."""
    first = out.splitlines()[0]
    expected = EXIT[first.split()[0]] if command.startswith("zonogpt verify ") else 0
    assert code == expected, (command, out)
    assert said is None or is_same(said, first), (command, said, first)


@pytest.fixture
def offline(monkeypatch):
    """Programs do not use the hub, and this process has no network."""

    def refuse(*args):
        raise AssertionError("a connection")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("socket.socket.connect", refuse)


def test_commands_of_the_readme(tmp_path, offline):
    """One after the other, as programs: the certificate of the first is what the second checks."""
    found = runnable(README)
    assert (len(found), len(commands(README))) == (5, 7)
    for command, said in found:
        assert said is not None
        run = zono(*shlex.split(command)[1:], cwd=tmp_path)
        require_answer(command, run.returncode, run.stdout, said)
        assert run.stderr == ""


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name)
def test_commands_of_a_page(page, tmp_path, monkeypatch, offline):
    """Commands run in this process, which has imported everything already."""
    monkeypatch.chdir(tmp_path)
    for command, said in runnable(page):
        run = CliRunner().invoke(app, shlex.split(command)[1:])
        assert run.exception is None or isinstance(run.exception, SystemExit), (command, run.exception)
        require_answer(command, run.exit_code, run.stdout, said)


def test_how_many_commands_are_run():
    found = [command for page in PAGES for command, _ in commands(page)]
    assert (sum(map(is_runnable, found)), len(found)) == (11, 33)


@pytest.mark.parametrize("page", [page for page in [README, *PAGES] if script(page)], ids=lambda page: page.name)
def test_python_of_a_page(page, tmp_path, monkeypatch, offline):
    """Every print is followed by what it prints."""
    program = script(page)
    said = re.findall(r"^print\(.*\)  # (.+)$", program, re.MULTILINE)
    assert len(said) == sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        for node in ast.walk(ast.parse(program))
    )
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(program, page.name, "exec"), {"__name__": "__main__"})
    seen = out.getvalue().splitlines()
    assert len(seen) == len(said)
    assert all(map(is_same, said, seen)), (said, seen)


def test_all_python_is_python():
    """All blocks parse, also those about the reader's own model; blocks and the pages that run them are counted."""
    found = [block for page in [README, *PAGES] for block in blocks(page) if block.language == "python"]
    for block in found:
        ast.parse("\n".join(block.lines))
    assert (len(found), sum(bool(script(page)) for page in [README, *PAGES])) == (16, 7)


def test_commands_with_placeholders_have_their_options():
    for page in [README, *PAGES]:
        for command, _ in commands(page):
            place, *words = shlex.split(command)
            at = get_command(app)
            while hasattr(at, "commands"):
                place, *words = words
                at = at.commands[place]
            at.make_context(place, words)  # a usage error names what it does not know


def options(at) -> set[str]:
    own = {name for parameter in at.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(options(inner) for inner in getattr(at, "commands", {}).values()))


def test_options_and_targets_that_are_named_exist():
    known = options(get_command(app))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = 0
    for page in [README, *PAGES]:
        for span in re.findall(r"`(--[^`]+)`", prose(page)):
            assert span.split()[0] in known, (page.name, span)
            named += 1
        for target in re.findall(r"`make (\w+)`", prose(page)):
            assert target in targets, (page.name, target)
    assert named > 40


def test_lines_are_wrapped():
    """All lines but those of tables."""
    for page in [README, *PAGES]:
        if page.name not in LONG_LINES:
            lines = page.read_text().splitlines()
            assert not [line for line in lines if len(line) > WIDTH and not line.startswith("|")], page.name


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= MOST_LINES


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    count = 0
    for page in [README, *PAGES]:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if target.startswith(("http:", "https:")):
                continue
            file, _, anchor = target.partition("#")
            at = (page.parent / file).resolve() if file else page
            assert at.exists(), (page.name, target)
            assert at.is_relative_to(ROOT), (page.name, target)
            assert not anchor or anchor in anchors(at), (page.name, target)
            count += 1
    assert count > 60


def test_files_that_are_named_exist():
    """Files named in code spans: paths below the repository's folders, and modules by the end of their path."""
    ours = [file.relative_to(ROOT).as_posix() for top in ("src", "tests", "tools", "benchmarks")
            for file in (ROOT / top).rglob("*.py")]  # fmt: skip
    folders = ("src/", "tests/", "tools/", "benchmarks/", "docs/", ".ci/")
    count = 0
    for page in [README, *PAGES]:
        for span in re.findall(r"`([^`]+)`", prose(page)):
            for word in re.findall(r"[\w./-]+", span):
                if word.startswith(folders):
                    assert (ROOT / word).exists(), (page.name, word)
                    count += 1
                elif word.endswith(".py") and page.name not in LONG_LINES:
                    assert any(f"/{file}".endswith(f"/{word}") for file in ours), (page.name, word)
                    count += 1
    assert count > 15


def test_every_page_is_listed():
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert listed | {"README.md"} == {page.name for page in PAGES}
