"""Rules of the house that a script can check."""

import ast
import re
from pathlib import Path

import zonogpt

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "zonogpt"

# What each room may import: the data flows one way.
ALLOWED = {
    "errors": set(),
    "arithmetic": {"errors"},
    "tensors": set(),
    "memory": set(),
    "result": {"arithmetic", "tensors"},
    "precision": {"errors"},
    "files": {"errors"},
    "plotting": {"files"},
    "model": {"errors", "files", "tensors"},
    "spec": {"errors", "tensors", "model"},
    "datasets": {"errors", "files", "model"},
    "domains": set(),
    "transforms": {"arithmetic", "domains", "model", "spec", "tensors"},
    "methods": {"arithmetic", "errors", "domains", "memory", "transforms", "model", "spec", "result", "tensors"},
    "options": {"arithmetic", "errors", "methods", "model", "tensors"},
    "search": {"errors", "model", "spec", "tensors"},
    "verify": {"arithmetic", "errors", "memory", "methods", "model", "options", "precision", "result", "search", "spec",
               "tensors"},
    "certificate": {"domains", "errors", "files", "methods", "model", "options", "precision", "spec", "tensors",
                    "transforms", "verify"},
    "witness": {"files", "model", "plotting", "result", "spec"},
    "rows": {"errors", "files"},
    "examples": {"datasets", "errors", "model", "spec"},
    "accuracy": {"datasets", "errors", "examples", "plotting", "result", "rows", "search", "spec", "tensors"},
    "certify": {"_version", "accuracy", "datasets", "errors", "examples", "files", "methods", "model", "options",
                "result", "rows", "search", "spec", "tensors", "verify"},
    "radii": {"errors", "plotting", "result", "rows", "search", "spec"},
    "radius": {"errors", "memory", "model", "options", "radii", "result", "search", "spec", "tensors", "verify"},
    "compare": {"_version", "datasets", "errors", "examples", "files", "methods", "model", "options", "radii", "radius",
                "rows", "spec", "tensors"},
    "inspection": {"errors", "methods", "model", "options", "tensors"},
    "bench": {"_version", "datasets", "errors", "files", "model", "options", "plotting", "result", "rows", "search",
              "spec", "tensors", "verify"},
    "demo": {"domains", "methods", "model", "plotting", "result", "spec", "transforms", "verify"},
    "__main__": {"cli"},
    "cli": {"_version", "accuracy", "arithmetic", "bench", "certificate", "certify", "compare", "datasets", "demo",
            "errors", "files", "inspection", "methods", "model", "radii", "radius", "result", "spec", "verify",
            "witness"},
}  # fmt: skip


def imported_rooms(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("zonogpt."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("zonogpt.")}
    return names


def test_imports_go_one_way():
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in ("__init__", "_version"):
            continue
        assert room in ALLOWED, f"{file} is in no known room"
        assert imported_rooms(file) <= ALLOWED[room] | {room}, file


def test_library_never_prints():
    for file in SOURCE.rglob("*.py"):
        if "cli" not in file.parts:
            calls = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
            assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls), file


def test_the_table_has_no_circle():
    """A room may only import rooms that stand before it."""
    for room, allowed in ALLOWED.items():
        before = list(ALLOWED)[: list(ALLOWED).index(room)]
        assert allowed <= {*before, "_version"} or room == "__main__", room


def test_public_names_exist():
    for name in zonogpt.__all__:
        assert hasattr(zonogpt, name)


def test_every_transform_has_its_section_in_the_maths():
    """A module that points to a section of docs/math.md finds it there."""
    headings = set(re.findall(r"^#+ (?:\d+\. )?(.+)$", (ROOT / "docs" / "math.md").read_text(), re.MULTILINE))
    named = [
        (file, " ".join(section.split()))
        for file in SOURCE.rglob("*.py")
        for sections in re.findall(r'docs/math\.md,(?:\s+sections?)?((?:\s+(?:and\s+)?"[^"]+")+)', file.read_text())
        for section in re.findall(r'"([^"]+)"', sections)
    ]
    for file, section in named:
        assert section in headings, f"{file.name}: {section}"
    assert {"transforms", "ellipsoidal", "domains"} <= {file.parent.name for file, _ in named}  # and folders in folders


def test_bundled_model_is_small():
    assert sum(f.stat().st_size for f in zonogpt.zoo.path("digits").iterdir()) < 2_000_000
