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
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config

import zonogpt
from zonogpt.datasets.idx import find, read_idx

RADII = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3)
SIZES = {"small": (768, 12, 3e-4), "medium": (1024, 16, 2e-4)}  # width, heads, learning rate
DEPTHS = {"small": (2, 4, 8, 12), "medium": (2, 4, 8, 24)}
MODELS = [f"{size}-{layers}" for size, depths in DEPTHS.items() for layers in depths]
EPOCHS, BATCH, N_IMAGES = 3, 256, 4


def read(folder: Path, prefix: str, device: torch.device) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(read_idx(find(folder, f"{prefix}-images-idx3-ubyte"), 3)).to(device).float() / 255
    return images, torch.from_numpy(read_idx(find(folder, f"{prefix}-labels-idx1-ubyte"), 1)).to(device).long()


def train(name: str, images: Tensor, labels: Tensor) -> zonogpt.GPT2ForImageClassification:
    size, layers = name.split("-")
    width, heads, rate = SIZES[size]
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=width, n_layer=int(layers), n_head=heads, n_positions=28, vocab_size=1, num_labels=10,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    config.image_size, config.patch_size = (28, 28), (1, 28)
    model = zonogpt.GPT2ForImageClassification(config).to(images.device).train()
    per_epoch = len(images) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=EPOCHS * per_epoch, pct_start=0.1)
    g = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        order = torch.randperm(len(images), generator=g).to(images.device)
        for batch in order[: per_epoch * BATCH].view(-1, BATCH):
            with torch.autocast(images.device.type, torch.bfloat16):
                logits = model(images[batch]).logits
            loss = F.cross_entropy(logits.float(), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


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
    order = torch.randperm(len(testing[0]), generator=torch.Generator().manual_seed(0)).tolist()
    rows, proved, seconds = [], 0, 0.0
    for name in args.models.split(","):
        started = time.perf_counter()
        hf = train(name, *training)
        with torch.no_grad():
            guess = torch.cat([hf(part).logits.argmax(-1) for part in testing[0].split(1000)])
        accuracy = float((guess == testing[1]).float().mean())
        trained = time.perf_counter() - started
        chosen = [i for i in order if guess[i] == testing[1][i]][:N_IMAGES]
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
