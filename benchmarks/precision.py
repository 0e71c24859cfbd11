"""The measure of docs/precision-log.md: certified radii of method E on six small trained models.

    python benchmarks/precision.py --data MNIST_DIRECTORY --models DIRECTORY [--digits 3]

The bundled model and five of its family, trained here on two cores in some eight minutes (kept in `--models` and read
from there the next time). Certified radius by bisection to 1 % for all nine rivals, geometric mean over the first test
digits classified correctly.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from mnist import Shape, classify, first_correct, read, train
from tightness import geometric_mean, threshold

import zonogpt

SHAPES = {
    "28/64/2": Shape(1, 64, 2, 4, 2e-3, 2),
    "28/64/4": Shape(1, 64, 4, 4, 2e-3, 1),
    "7/64/4": Shape(4, 64, 4, 4, 2e-3, 1),
    "28/64/8": Shape(1, 64, 8, 4, 2e-3, 1),
    "28/128/4": Shape(1, 128, 4, 4, 1e-3, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with the four MNIST files")
    parser.add_argument("--models", type=Path, required=True, help="where the trained models are kept")
    parser.add_argument("--digits", type=int, default=3)
    args = parser.parse_args()
    device = torch.device("cpu")
    training, (images, labels) = (read(args.data, prefix, device) for prefix in ("train", "t10k"))
    folders = {"bundled": zonogpt.zoo.path("digits")}
    for name, shape in SHAPES.items():
        folders[name] = args.models / name.replace("/", "-")
        if not folders[name].exists():
            train(shape, *training, bfloat16=False).save_pretrained(folders[name])
    for name, folder in folders.items():
        guess = classify(zonogpt.GPT2ForImageClassification.from_pretrained(folder).eval(), images)
        model = zonogpt.load(folder)
        chosen = first_correct(guess, labels, args.digits)
        specs = [zonogpt.image_ball(model, images[i], 1.0, label=int(labels[i])) for i in chosen]
        started = time.perf_counter()
        radii = threshold(specs, lambda some, m=model: [r.status == "verified" for r in zonogpt.verify_many(m, some)])
        accuracy = float((guess == labels).float().mean())
        print(
            f"{name:10s} accuracy {accuracy:.4f}  radius {geometric_mean(radii):.5f}"
            f"  ({', '.join(f'{radius:.5f}' for radius in radii)})  {time.perf_counter() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
