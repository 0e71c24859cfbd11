"""How many texts method E should bound together on a GPU: seconds and memory of 36 of them under several budgets.

python benchmarks/batches.py [--device cuda] [--blocks 2] [--moving 1]
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

import zonogpt
from zonogpt.support.tensors import moved

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda")
parser.add_argument("--blocks", type=int, default=2)
parser.add_argument("--moving", type=int, default=1)
parser.add_argument("--texts", type=int, default=36)
args = parser.parse_args()

torch.manual_seed(0)
config = GPT2Config(
    n_layer=args.blocks, vocab_size=500, n_positions=48, num_labels=2, pad_token_id=499, bos_token_id=None,
    eos_token_id=None,
)  # fmt: skip
device = torch.device(args.device)
model = moved(zonogpt.load(GPT2ForSequenceClassification(config)), device, torch.float32)
positions = range(5, 5 + args.moving)
specs = [
    zonogpt.embedding_ball(model, torch.randint(490, (20 + i % 12,)).tolist(), positions, 1e-5)
    for i in range(args.texts)
]
zonogpt.verify_many(model, specs[:2])  # warm
for gib in (None, 64, 32, 16, 8):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    zonogpt.verify_many(model, specs, budget_bytes=None if gib is None else gib << 30)
    torch.cuda.synchronize()
    seconds, reserved = time.perf_counter() - started, torch.cuda.max_memory_reserved() / 2**30
    print(f"budget {gib or 'none'} GiB: {seconds:.2f} s, {reserved:.1f} GiB taken", flush=True)
