"""The pages of mathematics: numbers, functions, tests, letters, references and formulas, held against the source."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "math.md"
MATH = r"\$[^$]+\$"
ONE = r"\d+(?:\.\d+)?"
AND = r"(?:,|,?[ \n](?:and|to|or))[ \n]"
NAMED = re.compile(rf"\b(Lemma|Definition|[Ss]ection)s?[ \n]({ONE}(?:{AND}{ONE})*)")


@dataclass(frozen=True)
class Statement:
    page: str
    kind: str  # Lemma or Definition
    section: int
    number: int
    name: str
    body: str

    @property
    def title(self) -> str:
        return f"{self.kind} {self.section}.{self.number}"

    @property
    def anchor(self) -> str:
        """The anchor that GitHub makes of the heading."""
        heading = f"{self.title} ({self.name})".lower()
        return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")

    def last_line(self) -> re.Match[str] | None:
        paragraphs = [" ".join(paragraph.split()) for paragraph in self.body.split("\n\n")]
        found = [re.fullmatch(r"Computed by (.+?); guarded by (.+?)\.", paragraph) for paragraph in paragraphs]
        lines = [line for line in found if line]
        assert len(lines) <= 1, self.title
        return lines[0] if lines else None


@cache
def pages() -> list[Path]:
    """The pages, in the order in which the index lists them."""
    listed = re.findall(r"^\| \[(math-\w+\.md)\]", INDEX.read_text(), re.MULTILINE)
    assert set(listed) == {page.name for page in DOCS.glob("math-*.md")}
    return [DOCS / name for name in listed]


@cache
def statements() -> list[Statement]:
    found = []
    for page in pages():
        parts = re.split(r"^#{2,3} (.+)$", page.read_text(), flags=re.MULTILINE)
        for heading, body in zip(parts[1::2], parts[2::2], strict=True):
            if named := re.fullmatch(r"(Lemma|Definition) (\d+)\.(\d+) \((.+)\)", heading):
                kind, section, number, name = named.groups()
                found.append(Statement(page.name, kind, int(section), int(number), name, body))
            else:
                assert not re.match(r"Lemma|Definition", heading), heading
    return found


@cache
def sections() -> list[int]:
    return [int(n) for page in pages() for n in re.findall(r"^## (\d+)\. ", page.read_text(), re.MULTILINE)]


@cache
def defined(file: Path) -> frozenset[str]:
    """Functions, classes, methods, and the attributes that a class declares."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return frozenset(found)


@cache
def source(name: str) -> Path:
    """The file of this name below src, which may lack the folders that it begins with."""
    found = [file for file in (ROOT / "src").rglob("*.py") if file.as_posix().endswith(f"/{name}")]
    assert len(found) == 1, (name, found)
    return found[0]


def text_of(file: Path) -> str:
    """The text of a page without its blocks, or of a program, with its comments and docstrings as running text."""
    text = file.read_text()
    if file.suffix == ".md":
        return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\n\s*#? ?", "\n", text)


def inline(page: Path) -> list[tuple[str, str, str, str]]:
    """Every inline formula of a page with the characters around it, and its line."""
    found = []
    for line in text_of(page).splitlines():
        bare = re.sub(r"`[^`]*`", "``", line)
        assert bare.count("$") % 2 == 0, (page.name, line)
        for at in re.finditer(MATH, bare):
            found.append((bare[at.start() - 1 : at.start()], at[0][1:-1], bare[at.end() : at.end() + 1], line))
    return found


def test_sections_and_statements_are_numbered_in_order():
    assert sections() == list(range(1, len(sections()) + 1))
    for section in sections():
        numbers = [one.number for one in statements() if one.section == section]
        assert numbers == list(range(1, len(numbers) + 1)), section
        assert len({one.page for one in statements() if one.section == section}) == 1
    assert [one.section for one in statements()] == sorted(one.section for one in statements())
    assert max(Counter(one.name for one in statements()).values()) == 1
    assert sum(one.kind == "Lemma" for one in statements()) > 90


def test_every_lemma_is_proved():
    for one in statements():
        proofs = 1 if one.kind == "Lemma" else 0
        assert (one.body.count("*Proof.*"), one.body.count("∎")) == (proofs, proofs), one.title


def test_every_lemma_names_a_function_that_exists():
    for one in statements():
        line = one.last_line()
        assert line or one.kind == "Definition", one.title
        waiting: list[str] = []
        for span in re.findall(r"`([^`]+)`", line[1]) if line else []:
            if span.endswith(".py"):
                assert waiting, (one.title, span)
                parts = {part for name in waiting for part in name.split(".")}
                assert parts <= defined(source(span)), (one.title, span)
                waiting = []
            else:
                waiting.append(span)
        assert not waiting, (one.title, waiting)


def test_every_lemma_names_a_test_that_exists():
    for one in statements():
        line = one.last_line()
        names = re.findall(r"`([^`]+)`", line[2]) if line else []
        assert names or one.kind == "Definition", one.title
        for name in names:
            assert re.fullmatch(r"test_\w+\.py::test_\w+", name), (one.title, name)


@pytest.mark.parametrize("page", [INDEX, *pages()], ids=lambda page: page.name)
def test_every_test_that_is_named_exists(page):
    for file, name in re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / "tests" / file).exists(), file
        assert not name or name in defined(ROOT / "tests" / file), (file, name)


def test_the_index_lists_every_statement_once():
    listed = re.findall(r"^\| \[((?:Lemma|Definition) [\d.]+)\]\((\S+)\) \| (.+?) \|", INDEX.read_text(), re.MULTILINE)
    assert listed == [(one.title, f"{one.page}#{one.anchor}", one.name) for one in statements()]


def test_every_letter_has_one_meaning():
    table = INDEX.read_text().split("| symbol | meaning | in the code |")[1].split("\n\n")[0]
    letters = [letter for row in table.splitlines()[2:] for letter in re.findall(MATH, row.split("|")[1])]
    assert len(letters) > 80
    assert max(Counter(letters).values()) == 1, Counter(letters).most_common(3)


def test_references_lead_somewhere():
    """References in all pages, in the source and in the tests."""
    known = {one.title for one in statements()}
    ours = [INDEX, *pages()]
    named = Counter()
    files = [*ours, *(page for page in DOCS.glob("*.md") if page not in ours), ROOT / "README.md"]
    for file in [*files, *(ROOT / "src").rglob("*.py"), *(ROOT / "tests").glob("*.py")]:
        if file.samefile(__file__):
            continue
        for kind, numbers in NAMED.findall(text_of(file)):
            for number in re.findall(ONE, numbers):
                if kind.lower() != "section":
                    assert f"{kind} {number}" in known, (file.name, kind, number)
                elif file in ours or (file.suffix == ".py" and "docs/math.md" in file.read_text()):
                    assert number in map(str, sections()), (file.name, kind, number)
                named[file.suffix] += 1
    assert min(named.values()) > 20


def test_modules_of_the_mathematics_name_their_lemmas():
    """Every module that refers to the pages says which section or lemma it means."""
    rooms = set()
    for file in (ROOT / "src").rglob("*.py"):
        text = " ".join(text_of(file).split())
        referring = re.findall(r"docs/math\.md(.{0,40})", text)
        assert all(re.match(r", (?:sections?|Lemmas?|Definitions?) \d", after) for after in referring), file
        rooms |= {file.parent.name} if referring else set()
    assert rooms >= {"transforms", "structured", "ellipsoidal", "domains", "verification"}


@pytest.mark.parametrize("page", [INDEX, *pages()], ids=lambda page: page.name)
def test_formulas_are_read_alike_everywhere(page):
    """Formulas have nothing that Markdown would take for markup, and are written so that GitHub recognises them."""
    text = page.read_text()
    fences = re.findall(r"^```(.*)$", text, re.MULTILINE)
    assert len(fences) % 2 == 0
    assert all(opened == "math" and closed == "" for opened, closed in zip(fences[::2], fences[1::2], strict=True))
    for before, formula, after, line in inline(page):
        assert before in ("", " ", "("), line
        assert after in ("", *" .,;:)?!"), line
        assert formula == formula.strip(), line
        assert not re.search(r"(?<![A-Za-z0-9])_", formula), line  # emphasis
        assert not re.search(r"\\[^A-Za-z]", formula), line  # an escaped character
        assert not re.search(r"[*<>|]", formula), line  # emphasis, a tag, the end of a cell
    blocks = re.findall(r"^```math\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for formula in [formula for _, formula, _, _ in inline(page)] + blocks:
        assert formula.count("{") == formula.count("}"), formula
        assert len(re.findall(r"\\left\b", formula)) == len(re.findall(r"\\right\b", formula)), formula
        assert "$" not in formula
        assert not re.search(r"\\(operatorname|def|newcommand|label|tag|ref)\b", formula), formula
