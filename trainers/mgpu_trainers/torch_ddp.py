"""Data-parallel training with PyTorch's DistributedDataParallel, under torchrun.

    torchrun --nproc-per-node 4 -m mgpu_trainers.torch_ddp --model cnn-nano --steps 200

gloo on CPUs, NCCL where each rank has a GPU.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch._dynamo  # before the process group: see the end of main
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, default_collate

from mgpu_trainers import catalogue, data, faults, models
from mgpu_trainers.specs import SpecError

BATCH = {"gpt-nano": 4, "cnn-nano": 32}


def main() -> None:
    args = catalogue.arguments(catalogue.find("torch-ddp"))
    if "RANK" not in os.environ:
        sys.exit("torch-ddp: start it with torchrun, which says to each process which rank it is")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        planted = faults.Planted(faults.parse(args.fault, world), rank)
    except SpecError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    torch.set_num_threads(args.threads)
    device = choose_device(args.device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, rank, device, planted)
    # This ends gloo's threads only if nothing holds the group any more: no model, and no
    # torch._dynamo that was first loaded beside it. A thread that lives on may abort the process
    # at its exit (measured with torch 2.13; pytorch issue 190489).
    dist.destroy_process_group()


def choose_device(wanted: str) -> torch.device:
    """A GPU of its own for each rank of this host, else the CPU."""
    enough = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if wanted == "cpu" or (wanted == "auto" and not enough):
        return torch.device("cpu")
    if not enough:
        sys.exit(f"torch-ddp: {torch.cuda.device_count()} GPUs are too few; try --device cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def train(
    args: argparse.Namespace, rank: int, device: torch.device, planted: faults.Planted
) -> None:
    torch.manual_seed(args.seed)
    source = data.load(args.model)
    inner = models.build(args.model, source.classes).to(device)
    model = DistributedDataParallel(inner, device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    planted.attach(inner, optimizer)
    batches = endless(args, source, planted, pinned=device.type == "cuda")

    for step in range(1, args.steps + 1):
        planted.begin(step)
        for turn in range(1, args.accumulate + 1):
            inputs, targets = (part.to(device, non_blocking=True) for part in next(batches))
            with model.no_sync() if turn < args.accumulate else nullcontext():
                loss = cross_entropy(model(inputs), targets) / args.accumulate
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % args.log_every == 0 or step == 1):
            print(f"step {step} loss {loss.item() * args.accumulate:.4f}", flush=True)

    planted.end()
    if rank == 0:
        mean_loss, accuracy = validate(inner, source, device)
        print(f"validation loss {mean_loss:.4f} accuracy {accuracy:.1%}", flush=True)


def endless(
    args: argparse.Namespace, source: data.Data, planted: faults.Planted, pinned: bool
) -> Iterator[Any]:
    """This rank's batches, one epoch after the other, each in an order of its own."""
    dataset, collate = planted.fetch(source.training, default_collate)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=args.seed, drop_last=True)
    loader = DataLoader(
        dataset,
        planted.batch(args.batch or BATCH[args.model]),
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        collate_fn=collate,
        pin_memory=pinned,
        drop_last=True,
    )
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


@torch.no_grad()
def validate(model: nn.Module, source: data.Data, device: torch.device) -> tuple[float, float]:
    """Loss and accuracy over the validation data, without the other ranks."""
    model.eval()
    losses, hits = [], []
    for inputs, targets in DataLoader(source.validation, 32):
        scores, wanted = model(inputs.to(device)), targets.to(device)
        losses.append(cross_entropy(scores, wanted, reduction="none").flatten())
        hits.append((scores.argmax(1) == wanted).flatten())
    return torch.cat(losses).mean().item(), torch.cat(hits).float().mean().item()


if __name__ == "__main__":
    main()
