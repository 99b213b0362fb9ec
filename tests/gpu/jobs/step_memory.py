"""Trains models for a few steps, one after the other; prints the peaks of the device's memory.

Each case is MODEL:BATCH:PRECISION:CHECKPOINTING, as `mgpu-doctor plan` takes them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from mgpu_trainers.pytorch import torch_plan_models

from mgpu_doctor.plan.tracing.torch_step import recompute_blocks
from tests.gpu.jobs.job_device import open_device

STEPS = 3

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=("pretend", "cuda"), required=True)
parser.add_argument("--build")
parser.add_argument("cases", nargs="+")
options = parser.parse_args()
device = open_device(options.device, options.build)


def train(model: str, batch: str, precision: str, checkpointing: str) -> float:
    """The last loss."""
    made, make_batch, loss_of = getattr(torch_plan_models, model.replace("-", "_"))()
    network: Any = made.to(device.name)
    if checkpointing == "full":
        assert recompute_blocks(network, 1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, foreach=True)
    autocast = torch.autocast(device.name, torch.bfloat16) if precision == "bf16" else nullcontext()
    loss: Any = None
    for _ in range(STEPS):
        samples = tuple(part.to(device.name) for part in make_batch(int(batch)))
        with autocast:
            loss = loss_of(network, samples)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def peaks() -> dict[str, int | None]:
    if device.name != "cuda":
        return {"allocated": None, "reserved": None}
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


cases = {}
for case in options.cases:
    gc.collect()
    if device.name == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    loss = train(*case.split(":"))
    cases[case] = {"loss": loss, **peaks()}
os.write(1, f"{json.dumps({'rank': 0, 'cases': cases})}\n".encode())
