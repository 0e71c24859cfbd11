"""Rules of the house that a script can check."""

import ast
import types
from pathlib import Path

import zonogpt

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PACKAGES = ("zonogpt", "zonogpt_apps", "zonogpt_check")

# What each package may import: data flows one way, down this table.
ALLOWED = {
    "zonogpt_check": set(),
    "errors": set(),
    "support": {"errors"},
    "model": {"errors", "support"},
    "spec": {"errors", "support", "model"},
    "datasets": {"errors", "support", "model"},
    "domains": set(),
    "transforms": {"support", "model", "spec", "domains"},
    "methods": {"errors", "support", "model", "spec", "domains", "transforms"},
    "search": {"errors", "support", "model", "spec"},
    "verification": {"_version", "errors", "support", "model", "spec", "domains", "transforms", "methods", "search",
                     "zonogpt_check"},
    "studies": {"_version", "errors", "support", "model", "spec", "datasets", "methods", "search", "verification"},
    "zonogpt_apps.bench": {"_version", "errors", "support", "model", "spec", "datasets", "search", "verification",
                           "studies", "methods"},
    "zonogpt_apps.demo": {"support", "model", "spec", "domains", "transforms", "methods", "verification", "studies"},
    "cli": {"_version", "errors", "support", "model", "spec", "datasets", "methods", "verification", "studies",
            "zonogpt_check"},
    "zonogpt_apps.cli": {"methods", "studies", "cli", "zonogpt_apps.bench", "zonogpt_apps.demo"},
}  # fmt: skip

# The two modules that put everything together: the library's names, and the command line's.
DOORS = {"zonogpt/__init__.py", "zonogpt/__main__.py", "zonogpt/cli/app.py"}


def room_of(module: str) -> str:
    """`zonogpt.spec.claims` is in the room spec, `zonogpt_apps.bench.grid` in zonogpt_apps.bench."""
    package, *inside = module.split(".")
    if package == "zonogpt_check":
        return package
    return inside[0] if package == "zonogpt" else f"{package}.{inside[0]}"


def imported_modules(file: Path) -> set[str]:
    """Modules of ours that a file imports, wherever it does so."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{a.name}" for a in node.names] if node.module in PACKAGES else [node.module]
            names |= set(inside)
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
    return {name for name in names if name.split(".")[0] in PACKAGES and name not in PACKAGES}


def modules() -> list[Path]:
    return [file for file in SOURCE.rglob("*.py") if file.parts[len(SOURCE.parts)] in PACKAGES]


def test_imports_go_one_way():
    seen = set()
    for file in modules():
        place = file.relative_to(SOURCE)
        if str(place) in DOORS or (place.name in ("_version.py", "__init__.py") and len(place.parts) == 2):
            continue
        room = room_of(".".join(place.with_suffix("").parts))
        assert room in ALLOWED, f"{place} is in no known room"
        assert {room_of(name) for name in imported_modules(file)} <= ALLOWED[room] | {room}, place
        seen.add(room)
    assert seen == set(ALLOWED)


def test_no_module_has_the_name_of_a_public_function():
    """Otherwise `zonogpt.verify` would be a function or a module, depending on the order of imports."""
    functions = {name for name in zonogpt.__all__ if isinstance(getattr(zonogpt, name), types.FunctionType)}
    assert {"verify", "attack", "inspect"} <= functions
    assert not [file for file in modules() if file.stem in functions]


def test_library_never_prints():
    for file in modules():
        if "cli" not in file.parts and "zonogpt_check" not in file.parts:
            calls = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
            assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls), file


def test_the_table_has_no_circle():
    """A room may only import rooms that stand before it."""
    for room, allowed in ALLOWED.items():
        before = list(ALLOWED)[: list(ALLOWED).index(room)]
        assert allowed <= {*before, "_version"}, room


def test_public_names_exist():
    for name in zonogpt.__all__:
        assert hasattr(zonogpt, name)


def test_bundled_model_is_small():
    assert sum(f.stat().st_size for f in zonogpt.zoo.path("digits").iterdir()) < 2_000_000
