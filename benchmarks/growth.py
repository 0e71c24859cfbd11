"""How method E grows with width and depth: seconds, memory, and the part of it that the backward pass keeps.

    python benchmarks/growth.py [--widths 64,128,256,768] [--depths 2,4,8,12] [--device cpu] [--out rows.jsonl]

MNIST rows as S = 28 tokens, all 784 pixels moving, nine rivals, GPT-2 initialisation, radius 1e-5, float64. One process
per model, so that each peak is its own; the fastest of three runs (of one where a run takes 20 s). Exponents are
least-squares slopes of logarithms: of seconds against width at each depth, and against depth at each width.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from transformers import GPT2Config

import zonogpt
from zonogpt.methods.tape import forward
from zonogpt.support.memory import peak_bytes, reset_peak
from zonogpt.support.tensors import moved, tensors_in

REPEATS, LONG, RADIUS, GIB = 3, 20.0, 1e-5, 2**30


def tape_bytes(model: zonogpt.Model, spec: zonogpt.Spec) -> int:
    """What the forward pass leaves behind, each piece of memory once and the model's own not at all."""
    with torch.no_grad():
        tape = forward(model, [spec], torch.float64, 1 << 28, None)
    weights = {t.untyped_storage().data_ptr() for t in tensors_in((model.blocks, model.head))}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors_in(tape)}
    return sum(storage.nbytes() for at, storage in storages.items() if at not in weights)


def measure(width: int, depth: int, device_name: str, pipe: Connection) -> None:
    torch.manual_seed(0)
    device = torch.device(device_name)
    config = GPT2Config(n_embd=width, n_head=max(1, width // 64), n_layer=depth, n_positions=28, vocab_size=1,
                        num_labels=10, bos_token_id=None, eos_token_id=None)  # fmt: skip
    config.image_size, config.patch_size = (28, 28), (1, 28)
    model = zonogpt.load(zonogpt.GPT2ForImageClassification(config).eval())
    model = moved(model, device, torch.float64)
    images, _ = zonogpt.zoo.samples("digits")
    spec = zonogpt.image_ball(model, images[0], RADIUS)
    reset_peak(device)
    before, seconds, peak = peak_bytes(device), math.inf, 0
    for _ in range(REPEATS):
        result = zonogpt.verify(model, spec, hint=False)
        seconds, peak = min(seconds, result.seconds), max(peak, result.peak_bytes)
        if seconds > LONG:
            break
    plan = zonogpt.inspect(model, dtype="float64").plans["E"]
    tape = tape_bytes(model, spec)
    pipe.send({"width": width, "depth": depth, "seconds": seconds, "peak_gib": (peak - before) / GIB,
               "tape_gib": tape / GIB, "rest_gib": (peak - before - tape) / GIB,
               "predicted_gib": plan.peak_bytes / GIB, "predicted_tape_gib": plan.tape_bytes / GIB,
               "device": device_name, "margin": float(result.margins.min())})  # fmt: skip


def slope(points: list[tuple[float, float]]) -> float:
    x, y = (torch.tensor(part, dtype=torch.float64).log() for part in zip(*points, strict=True))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="64,128,256,768")
    parser.add_argument("--depths", default="2,4,8,12")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    widths, depths = ([int(x) for x in text.split(",")] for text in (args.widths, args.depths))
    context, rows = multiprocessing.get_context("spawn"), {}
    print("width  depth   seconds     peak     tape     rest   predicted (GiB)")
    for width in widths:
        for depth in depths:
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=measure, args=(width, depth, args.device, there))
            process.start()
            there.close()
            row = rows[width, depth] = here.recv()
            process.join()
            print(
                f"{width:5d}  {depth:5d}  {row['seconds']:8.3f}  {row['peak_gib']:7.3f}  {row['tape_gib']:7.3f}"
                f"  {row['rest_gib']:7.3f}  {row['predicted_gib']:7.3f}",
                flush=True,
            )
    for depth in depths:
        print(f"depth {depth:3d}: seconds ~ width^{slope([(w, rows[w, depth]['seconds']) for w in widths]):.2f}")
    for width in widths:
        print(f"width {width:3d}: seconds ~ depth^{slope([(n, rows[width, n]['seconds']) for n in depths]):.2f}")
    if args.out is not None:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))


if __name__ == "__main__":
    main()
