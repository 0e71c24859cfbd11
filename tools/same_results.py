"""Whether two versions of the source give the same bounds: margins, ledgers and certificates.

    PYTHONPATH=BEFORE/src python tools/same_results.py write before.json
    PYTHONPATH=src python tools/same_results.py write after.json
    python tools/same_results.py compare before.json after.json

The bundled model, 8 random text models and 6 image shapes, by every method. `compare` prints the largest relative
difference of margins and of ledger entries by method and type of the tangents; its exit code is 1 where a margin is
lower by more than that type allows, or where a status or a certificate's verdict is another one. `write` keeps the
certificates beside its file, so that a later `zonogpt check` can read them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

import zonogpt

TOLERANCES = {"float64": 1e-12, "float32": 1e-6}  # of margins, relative to the largest
SLOW = ("deepz", "crown", "covenn")
IMAGES = [  # height and width, patch, width, heads, layers
    ((6, 4), (3, 2), 8, 2, 2),
    ((4, 4), (4, 4), 6, 1, 1),
    ((8, 6), (1, 6), 12, 3, 2),
    ((6, 6), (2, 3), 10, 5, 3),
    ((10, 4), (5, 2), 16, 4, 2),
    ((12, 3), (2, 3), 9, 3, 4),
]
TEXTS = [  # language model, width, heads, layers, hidden, tokens, those that move, norm
    (False, 8, 2, 2, None, 5, (2,), math.inf),
    (False, 12, 3, 1, 20, 7, (6,), math.inf),
    (False, 10, 5, 3, 7, 4, (0, 3), 2.0),
    (False, 16, 1, 2, None, 6, (1, 2), 1.0),
    (True, 8, 4, 2, None, 6, (4,), math.inf),
    (True, 12, 2, 2, 30, 3, (0,), 2.0),
    (True, 9, 3, 4, None, 8, (7,), math.inf),
    (True, 6, 2, 1, 10, 5, (1, 4), 1.0),
]


def image_model(number: int) -> Any:
    (size, patch, width, heads, layers) = IMAGES[number]
    tokens = size[0] * size[1] // (patch[0] * patch[1])
    torch.manual_seed(100 + number)
    config = transformers.GPT2Config(
        n_embd=width, n_layer=layers, n_head=heads, n_positions=tokens, vocab_size=1, num_labels=4
    )
    config.image_size, config.patch_size = size, patch
    return enlivened(zonogpt.GPT2ForImageClassification(config))


def text_model(number: int) -> Any:
    language, width, heads, layers, hidden, *_ = TEXTS[number]
    torch.manual_seed(200 + number)
    config = transformers.GPT2Config(
        n_embd=width, n_layer=layers, n_head=heads, n_inner=hidden, n_positions=12, vocab_size=19, num_labels=3,
        pad_token_id=None, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    kind = transformers.GPT2LMHeadModel if language else transformers.GPT2ForSequenceClassification
    return enlivened(kind(config))


def enlivened(net: Any) -> Any:
    """Weights large enough that no term of a bound is negligible, biases and LayerNorms included."""
    with torch.no_grad():
        for name, weight in net.named_parameters():
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
            weight.copy_(1 + 0.1 * noise if "ln_" in name and name.endswith("weight") else weight * 4 + 0.05 * noise)
    net.eval()
    return net


def cases(scratch: Path) -> Iterator[tuple[str, Any, Any, str]]:
    """(name, model, spec, folder of the model)."""
    folder = zonogpt.zoo.path("digits")
    bundled = zonogpt.load(folder)
    images, _ = zonogpt.zoo.samples("digits")
    for i in (0, 7):
        for radius in (1e-3, 4e-3):
            yield f"digit {i}, {radius:g}", bundled, zonogpt.image_ball(bundled, images[i], radius), str(folder)
    for number in range(len(IMAGES)):
        model, folder = saved(image_model(number), scratch / f"image{number}")
        pixels = torch.rand(IMAGES[number][0], generator=torch.Generator().manual_seed(number))
        for radius in (1e-4, 0.02):
            for norm in (math.inf, 2.0):
                spec = zonogpt.image_ball(model, pixels, radius, norm=norm)
                yield f"image {number}, {radius:g}, {norm:g}", model, spec, str(folder)
    for number, (*_, tokens, positions, norm) in enumerate(TEXTS):
        model, folder = saved(text_model(number), scratch / f"text{number}")
        ids = torch.randint(19, (tokens,), generator=torch.Generator().manual_seed(number)).tolist()
        for radius in (1e-5, 0.01):
            spec = zonogpt.embedding_ball(model, ids, positions, radius, norm=norm)
            yield f"text {number}, {radius:g}", model, spec, str(folder)


def saved(net: Any, folder: Path) -> tuple[Any, Path]:
    net.save_pretrained(folder)
    return zonogpt.load(folder), folder


def write(file: Path) -> None:
    scratch = file.with_suffix("")
    scratch.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (name, model, spec, folder) in enumerate(cases(scratch)):
        for method in zonogpt.METHODS:
            if method in SLOW and name.startswith("digit") and spec.radius > 2e-3:
                continue  # minutes each
            for arithmetic in ("real", "float32"):
                if arithmetic == "float32" and method in SLOW:
                    continue
                for dtype in ("float64", "float32") if method in "EAM" else ("float64",):
                    result = zonogpt.verify(model, spec, method=method, arithmetic=arithmetic, dtype=dtype, hint=False)
                    rows.append({
                        "case": name, "method": method, "arithmetic": arithmetic, "dtype": dtype,
                        "status": result.status, "margins": [str(x) for x in result.margins.tolist()],
                        "ledger": [[e.block, e.kind, e.step, str(e.width)] for e in result.ledger.entries],
                    })  # fmt: skip
                    if (method, arithmetic, dtype) == ("E", "real", "float64") and result.status == "verified":
                        certificate = scratch / f"{number}.zcert"
                        zonogpt.write_certificate(model, spec, certificate)  # which its checker has accepted
                        rows[-1]["certificate"] = [str(certificate), folder]
        print(f"{name}: {len(rows)} rows", file=sys.stderr)
    file.write_text(json.dumps(rows))


def compare(before: Path, after: Path) -> int:
    key = ("case", "method", "arithmetic", "dtype")
    old, new = ({tuple(row[k] for k in key): row for row in json.loads(f.read_text())} for f in (before, after))
    assert old.keys() == new.keys(), sorted(old.keys() ^ new.keys())[:5]
    margins: dict[tuple[str, str], float] = defaultdict(float)
    ledgers: dict[tuple[str, str], float] = defaultdict(float)
    changed, looser = [], []
    for name, row in old.items():
        other = new[name]
        kind = name[1], name[3]
        margins[kind] = max(margins[kind], off(row["margins"], other["margins"]))
        if off(row["margins"], other["margins"], falls=True) > TOLERANCES[name[3]]:
            looser.append(name)
        same_steps = [e[:3] for e in row["ledger"]] == [e[:3] for e in other["ledger"]]
        widths = [[e[3] for e in r["ledger"]] for r in (row, other)]
        ledgers[kind] = max(ledgers[kind], off(widths[0], widths[1])) if same_steps else math.inf
        if (row["status"], "certificate" in row) != (other["status"], "certificate" in other):
            changed.append(name)
    for kind in margins:
        print(f"{kind[0]:10s} {kind[1]}: margins {margins[kind]:.1e}, ledgers {ledgers[kind]:.1e}")
    certificates = sum("certificate" in row for row in new.values())
    print(f"{len(new)} runs, {certificates} certificates accepted by the checker, other verdicts: {changed or 'none'}")
    print(f"margins that are lower by more than {TOLERANCES}: {looser or 'none'}")
    return int(bool(changed or looser))


def off(a: list[str], b: list[str], falls: bool = False) -> float:
    """The largest difference, or the largest fall from a to b, relative to the largest number of a list."""
    x, y = (torch.tensor([float(v) for v in values], dtype=torch.float64) for values in (a, b))
    if x.shape != y.shape or not torch.equal(x.isfinite(), y.isfinite()):
        return math.inf
    x, y = x[x.isfinite()], y[y.isfinite()]
    change = x - y if falls else (x - y).abs()
    return float(change.max() / x.abs().max().clamp(min=1e-300)) if len(x) else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    if given.what == "write":
        write(given.files[0])
    else:
        sys.exit(compare(*given.files))
