"""Peak memory and time of a method against depth: the peak must not grow with the number of blocks.

    python benchmarks/depth_memory.py [--width 256] [--budget 67108864] [--device cpu] [--depths 2,4,8,12]

S = 28 tokens, randomly initialised, radius 1e-5; give a pool small enough to bind in the first block. One process
per depth, so that each peak is its own. One line of JSON per depth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing

import torch
from transformers import GPT2Config

import zonogpt


def measure(depth: int, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=args.width, n_head=args.width // 64, n_layer=depth, n_positions=28, vocab_size=1,
                        num_labels=10, bos_token_id=None, eos_token_id=None)  # fmt: skip
    config.image_size, config.patch_size = (28, 28), (1, 28)
    model = zonogpt.load(zonogpt.GPT2ForImageClassification(config).eval())
    images, _ = zonogpt.zoo.samples("digits")
    spec = zonogpt.image_ball(model, images[0], 1e-5)
    result = zonogpt.verify(model, spec, method=args.method, budget_bytes=args.budget, device=args.device)
    found = zonogpt.inspect(model, budget_bytes=args.budget)
    row = {"method": args.method, "blocks": depth, "width": args.width, "device": result.device,
           "seconds": round(result.seconds, 1), "peak_gib": round(result.peak_bytes / 2**30, 3),
           "weights_gib": round(found.weight_bytes / 2**30, 3),
           "predicted_generators_gib": round(found.plans[args.method].peak_bytes / 2**30, 3)}  # fmt: skip
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="A")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--budget", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depths", default="2,4,8,12")
    args = parser.parse_args()
    for depth in map(int, args.depths.split(",")):
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(depth, args))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
