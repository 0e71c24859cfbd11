"""What a walk through the source costs a reader, as numbers.

    python tools/count_house.py [SRC ...]

Of every source folder (default: src): files of ours that one image verdict executes, functions with seven parameters or
more, `isinstance` on nodes, embeddings and input sets, loose files beside the packages of zonogpt, files and lines, and
pairs of places with six or more equal lines.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

WINDOW = 6
KINDS = {  # the names of nodes, embeddings and input sets, of any version
    "AttentionBlock", "MlpBlock", "Attention", "Mlp", "Gated", "Parallel", "Block", "Dense", "Norm", "LayerNorm",
    "Head", "ImageEmbedding", "TokenEmbedding", "PixelBox", "EmbeddingBox", "Box", "Ball", "PixelEmbed", "TokenEmbed",
    "Embed",
}  # fmt: skip
VERDICT = """
import sys
touched = set()
def note(frame, event, argument):
    touched.add(frame.f_code.co_filename)
import zonogpt, torch
model = zonogpt.load(zonogpt.zoo.path("digits"))  # loaded once, so that imports do not count
images, labels = zonogpt.zoo.samples("digits")
zonogpt.verify(model, zonogpt.image_ball(model, images[0], 1e-3))
sys.setprofile(note)
model = zonogpt.load(zonogpt.zoo.path("digits"))
zonogpt.verify(model, zonogpt.image_ball(model, images[0], 1e-3))
sys.setprofile(None)
print(len([name for name in touched if "/zonogpt" in name and "site-packages" not in name]))
"""


def verdict_files(source: Path) -> int:
    environment = os.environ | {"PYTHONPATH": str(source.resolve())}
    done = subprocess.run([sys.executable, "-c", VERDICT], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def trees(source: Path) -> list[ast.Module]:
    return [ast.parse(file.read_text()) for file in sorted(source.rglob("*.py"))]


def long_signatures(source: Path) -> int:
    """Functions with seven parameters or more, self and cls not counted."""
    count = 0
    for tree in trees(source):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                given = node.args
                names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                count += len([name for name in names if name not in ("self", "cls")]) >= 7
    return count


def type_questions(source: Path) -> int:
    """isinstance, and class patterns of match, that ask what kind of node, embedding or input set something is."""
    count = 0
    for tree in trees(source):
        for node in ast.walk(tree):
            asked: ast.expr | None = None
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                asked = node.args[1]
            elif isinstance(node, ast.MatchClass):
                asked = node.cls
            if asked is not None:
                names = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(asked)}
                count += bool(names & KINDS)
    return count


def repeated(source: Path) -> int:
    """Pairs of places that share six or more lines to the letter; blank lines, comments and imports do not count."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for file in sorted(source.rglob("*.py")):
        lines = [line.strip() for line in file.read_text().splitlines()]
        kept = [line for line in lines if len(line) > 2 and not line.startswith(("#", "import ", "from "))]
        for at in range(len(kept) - WINDOW + 1):
            places[tuple(kept[at : at + WINDOW])].append((str(file), at))
    pairs = {pair for found in places.values() for pair in combinations(found, 2)}
    # A longer run is one pair: the first of its windows.
    return sum(((a, i - 1), (b, j - 1)) not in pairs for (a, i), (b, j) in pairs)


def main() -> None:
    for source in [Path(name) for name in sys.argv[1:]] or [Path(__file__).parent.parent / "src"]:
        files = list(source.rglob("*.py"))
        loose = [file for file in (source / "zonogpt").glob("*.py") if not file.name.startswith("__")]
        print(source)
        print(f"  {verdict_files(source):6d} files touched by one image verdict")
        print(f"  {long_signatures(source):6d} functions with seven parameters or more")
        print(f"  {type_questions(source):6d} isinstance on nodes, embeddings and input sets")
        print(f"  {len(loose):6d} loose files beside the packages of zonogpt")
        print(f"  {len(files):6d} files, {sum(len(file.read_text().splitlines()) for file in files)} lines")
        print(f"  {repeated(source):6d} pairs of places that share {WINDOW} lines or more")


if __name__ == "__main__":
    main()
