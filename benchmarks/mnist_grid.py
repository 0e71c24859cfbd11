"""Method E on the MNIST half of the paper's grid: 8 models trained on the spot, 4 images, 5 radii, 9 rivals each.

    python benchmarks/mnist_grid.py --data MNIST_DIRECTORY [--models small-2,...] [--out rows.jsonl] [--device cuda]

GPT-2 Small and Medium (image rows as 28 tokens, mean pool), GPT-2 initialisation, cross-entropy, 3 epochs, AdamW with
OneCycle (10 % warm-up), batch 256, gradient clip 1, bfloat16 autocast, seed 0. Images: the first four classified
correctly of a permutation with seed 0. Seconds are those of the propagation, all rivals of an image together. Needs a
GPU with some 80 GiB for the deepest models; one line of JSON per instance in `--out`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from mnist import Shape, classify, first_correct, read, train

import zonogpt

RADII = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3)
N_IMAGES, EPOCHS = 4, 3
MODELS = {
    f"{size}-{layers}": Shape(1, width, layers, width // 64, rate, EPOCHS)
    for size, width, rate, depths in (("small", 768, 3e-4, (2, 4, 8, 12)), ("medium", 1024, 2e-4, (2, 4, 8, 24)))
    for layers in depths
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with the four MNIST files")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float64")
    args = parser.parse_args()
    device = torch.device(args.device)
    training, testing = (read(args.data, prefix, device) for prefix in ("train", "t10k"))
    rows, proved, seconds = [], 0, 0.0
    for name in args.models.split(","):
        started = time.perf_counter()
        hf = train(MODELS[name], *training, bfloat16=True)
        guess = classify(hf, testing[0])
        accuracy = float((guess == testing[1]).float().mean())
        trained = time.perf_counter() - started
        chosen = first_correct(guess, testing[1], N_IMAGES)
        model = zonogpt.load(hf)
        specs = [
            zonogpt.image_ball(model, testing[0][i], radius, label=int(testing[1][i]))
            for radius in RADII
            for i in chosen
        ]
        results = zonogpt.verify_many(model, specs, dtype=args.dtype)
        counts = {radius: 0 for radius in RADII}
        for k, result in enumerate(results):
            counts[result.radius] += int((result.margins > 0).sum())
            rivals = [c for c in range(10) if c != result.label]
            for rival, margin in zip(rivals, result.margins.tolist(), strict=True):
                rows.append(
                    {"model": name, "image": chosen[k % N_IMAGES], "rival": rival, "radius": result.radius,
                     "margin": margin, "seconds": result.seconds / 9, "accuracy": accuracy}
                )  # fmt: skip
        spent = sum(result.seconds for result in results)
        proved, seconds = proved + sum(counts.values()), seconds + spent
        print(
            f"{name:10s} accuracy {accuracy:.4f} (trained in {trained:.0f} s)  proved"
            f" {' '.join(f'{n:2d}' for n in counts.values())} = {sum(counts.values()):3d} of 180"
            f"  {spent / len(specs):.3f} s per image, peak {max(r.peak_bytes for r in results) / 2**30:.1f} GiB",
            flush=True,
        )
        del hf, model
        torch.cuda.empty_cache()
    total = 180 * len(args.models.split(","))
    print(f"proved {proved} of {total}, propagation {seconds:.1f} s, {args.dtype} on {args.device}")
    if args.out is not None:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
