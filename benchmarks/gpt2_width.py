"""Method E and the variants A, F, M, D end to end at GPT-2 Small's width (S = 28, d = 768, 12 heads), on this machine.

    python benchmarks/gpt2_width.py [--blocks 2] [--radius 1e-5] [--methods E,A,F,M,D] [--dtype float64]

The model is randomly initialised (seed 0): the cost does not depend on the weights. One line of JSON per method.
"""

from __future__ import annotations

import argparse
import json

import torch
from transformers import GPT2Config

import zonogpt


def small_width_model(blocks: int) -> zonogpt.Model:
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=768,
        n_head=12,
        n_layer=blocks,
        n_positions=28,
        vocab_size=1,
        num_labels=10,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.image_size, config.patch_size = (28, 28), (1, 28)
    return zonogpt.load(zonogpt.GPT2ForImageClassification(config).eval())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=2, help="transformer blocks, each attention and MLP")
    parser.add_argument("--radius", type=float, default=1e-5)
    parser.add_argument("--methods", default="E,A,F,M,D")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--device", default=None)
    args = parser.parse_args()
    model = small_width_model(args.blocks)
    image, _ = zonogpt.zoo.samples("digits")
    spec = zonogpt.image_ball(model, image[0], args.radius)
    clean = spec.claim.margins(zonogpt.logits(model, image[0])).min().item()
    for method in args.methods.split(","):
        result = zonogpt.verify(model, spec, method=method, dtype=args.dtype, device=args.device, hint=False)
        row = {
            "method": method,
            "blocks": args.blocks,
            "radius": args.radius,
            "dtype": args.dtype,
            "status": result.status,
            "clean_margin": round(clean, 6),
            "certified_margin": round(float(result.margins.min()), 6),
            "seconds": round(result.seconds, 1),
            "peak_gib": round(result.peak_bytes / 2**30, 2),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
