"""Joins the process group: this process's rank, world size and device."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch._dynamo  # before the process group: see `joined`
import torch.distributed as dist

from mgpu_trainers.process_lifetime import end_with
from mgpu_trainers.pytorch import LAUNCHER


@dataclass(frozen=True, slots=True)
class Place:
    rank: int
    world: int
    device: torch.device


@contextmanager
def join_group(
    name: str, wanted: str, timeout: float | None, *, backend: str | None = None
) -> Iterator[Place]:
    """Joins the process group of the ranks that torchrun or `apart` started, and leaves it at the
    end.

    `timeout`: seconds that a collective may take; `backend`: None chooses by the device. Exits with
    a message if the process was not started so or there are too few GPUs. Ends with its launcher.
    """
    if "RANK" not in os.environ:
        launcher = "python -m mgpu_trainers.apart" if backend else "torchrun"
        sys.exit(f"{name}: start it with {launcher}, which says to each process which rank it is")
    end_with(LAUNCHER)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    enough = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = choose_device(name, wanted, enough, int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        backend or ("nccl" if device.type == "cuda" else "gloo"),
        init_method=os.environ.get("INIT_METHOD"),
        timeout=timedelta(seconds=timeout) if timeout else None,
        rank=rank,
        world_size=world,
    )
    yield Place(rank, world, device)
    # This ends gloo's threads only if nothing holds the group any more: no model, and no
    # torch._dynamo that was first loaded beside it. A thread that lives on may abort the process
    # at its exit (measured with torch 2.13; pytorch issue 190489). Hooks bind models and optimizers
    # into rings, which only the collector undoes.
    gc.collect()
    dist.destroy_process_group()


@contextmanager
def run_alone(name: str, wanted: str, _timeout: float | None) -> Iterator[Place]:
    """The only process; its device is the first of the GPUs that it drives."""
    yield Place(0, 1, choose_device(name, wanted, torch.cuda.is_available(), 0))


def choose_device(name: str, wanted: str, enough: bool, index: int) -> torch.device:
    """The GPU of that index if there are enough, else the CPU."""
    if wanted == "cpu" or (wanted == "auto" and not enough):
        return torch.device("cpu")
    if not enough:
        sys.exit(f"{name}: {torch.cuda.device_count()} GPUs are too few; try --device cpu")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device
