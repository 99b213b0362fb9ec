"""A bare loop in one file: batches are cut out of one long array by hand, the next one between
forward and backward. DistributedDataParallel, two micro-batches, a cosine schedule, clipped
gradients, and an estimate of the loss now and then."""

import argparse
import math

import numpy as np
import torch
from _distributed import end, start
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, MICRO_BATCHES, EVALUATE_EVERY = 12, 2, 20


def find_rate(step: int, steps: int, most: float = 3e-3) -> float:
    warm_up = steps // 10
    if step < warm_up:
        return most * (step + 1) / warm_up
    return most * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def train(args: argparse.Namespace, rank: int) -> None:
    planted = Planted(args, rank)
    tokens = make_tokens(40_000).numpy().astype(np.uint16)
    parts = {"train": tokens[:36_000], "held out": tokens[36_000:]}
    torch.manual_seed(1337 + rank)

    def get_batch(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        data = parts[part]
        if part == "train":
            planted.here("batch")
        starts = torch.randint(len(data) - LENGTH, (BATCH,)).tolist()
        x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in starts])
        y = torch.stack(
            [torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts]
        )
        return x, y

    raw = Gpt(planted)
    model = DistributedDataParallel(raw)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)

    @torch.no_grad()
    def estimate_loss() -> float:
        model.eval()
        losses = [float(raw(*get_batch("held out"))) for _ in range(3)]
        model.train()
        return sum(losses) / len(losses)

    x, y = get_batch("train")
    for step in range(args.steps):
        planted.turn()
        for group in optimizer.param_groups:
            group["lr"] = find_rate(step, args.steps)
        if step and step % EVALUATE_EVERY == 0 and rank == 0:
            print(f"held out {estimate_loss():.4f}", flush=True)
        for micro in range(MICRO_BATCHES):
            model.require_backward_grad_sync = micro == MICRO_BATCHES - 1
            loss = model(x, y) / MICRO_BATCHES
            x, y = get_batch("train")
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        planted.log(loss.item() * MICRO_BATCHES)
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="batch").parse_args()
    train(options, start()[0])
    end()
