"""Trains the bundled digit classifier and picks its 20 sample digits.

    python tools/train_digits.py --mnist DIRECTORY [--out src/zonogpt/model/zoo/digits]

DIRECTORY holds the four MNIST files (train-images-idx3-ubyte.gz, ...). One thread and fixed seeds: the same machine
and torch give the same bytes. About four minutes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import GPT2Config

from zonogpt import GPT2ForImageClassification
from zonogpt.datasets.idx import find, read_idx

SEED, EPOCHS, BATCH, RATE, N_SAMPLES = 0, 12, 128, 3e-3, 20


def train(model: GPT2ForImageClassification, images: Tensor, labels: Tensor) -> None:
    steps = (len(images) // BATCH) * EPOCHS
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps, pct_start=0.1)
    model.train()
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images))
        for batch in order[: len(order) // BATCH * BATCH].view(-1, BATCH):
            loss = model(images[batch].float() / 255, labels=labels[batch]).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}/{EPOCHS}: last loss {loss.item():.4f}", flush=True)
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("src/zonogpt/model/zoo/digits"))
    args = parser.parse_args()

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data = {
        f"{prefix}-{what}": torch.tensor(read_idx(find(args.mnist, f"{prefix}-{what}-idx{n}-ubyte"), n))
        for prefix in ("train", "t10k")
        for what, n in (("images", 3), ("labels", 1))
    }

    config = GPT2Config(
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=7,
        vocab_size=1,
        num_labels=10,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.image_size, config.patch_size = (28, 28), (4, 28)
    model = GPT2ForImageClassification(config)
    train(model, data["train-images"], data["train-labels"].long())

    labels = data["t10k-labels"].long()
    with torch.no_grad():
        correct = model(data["t10k-images"].float() / 255).logits.argmax(-1) == labels
    accuracy = correct.double().mean().item()
    print(f"test accuracy {accuracy:.2%}")

    # Two of each class, drawn at random among the correctly classified: no picking of easy ones.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    order = order[correct[order]]
    chosen = torch.cat([order[labels[order] == digit][: N_SAMPLES // 10] for digit in range(10)])
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out)
    np.savez_compressed(
        args.out / "samples.npz",
        images=data["t10k-images"][chosen].numpy(),
        labels=labels[chosen].numpy().astype(np.uint8),
        indices=chosen.numpy(),
    )
    card = {
        "test_accuracy": accuracy,
        "seed": SEED,
        "epochs": EPOCHS,
        "batch": BATCH,
        "rate": RATE,
        "data": "MNIST (LeCun, Bottou, Bengio, Haffner 1998)",
        "command": "python tools/train_digits.py --mnist DIRECTORY",
    }
    (args.out / "training.json").write_text(json.dumps(card, indent=2) + "\n")


if __name__ == "__main__":
    main()
