"""Trains a transformer with DistributedDataParallel on one rank, and measures its phases itself.

Prints, per step, seconds by events of its own and by DDP's logger; leaves a trace of torch's
profiler in which the phases of the last steps are annotated, where it records kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[3]))
from mgpu_trainers.pytorch import torch_plan_models

from tests.gpu.jobs.job_device import CudaDevice, leave, open_device

WARM_UP, TRACED = 10, 12

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=("pretend", "cuda"), required=True)
parser.add_argument("--build")
parser.add_argument("--group", required=True)
parser.add_argument("--model", choices=("gpt_nano", "gpt2_small"), required=True)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--trace", required=True, help="where the trace is written")
options = parser.parse_args()
device = open_device(options.device, options.build)
device.join(options.group)
bare, make_batch, loss_of = getattr(torch_plan_models, options.model)()
torch.manual_seed(0)
model: Any = torch.nn.parallel.DistributedDataParallel(bare.to(device.name))
has_logger = isinstance(device, CudaDevice)  # DDP times CPU and CUDA alone
if has_logger:
    model._set_ddp_runtime_logging_sample_rate(1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batches = [tuple(part.to(device.name) for part in make_batch(options.batch))] * options.steps
module = device.module
steps: list[list[Any]] = []
logged: list[tuple[float, float] | None] = []


def event() -> Any:
    made = module.Event(enable_timing=True)
    made.record(module.current_stream())
    return made


def annotated(number: int, phase: str) -> Any:
    profiler = torch.autograd.profiler
    return profiler.record_function(f"mgpu-doctor {number} {phase}")


def step(number: int, batch: Any) -> None:
    events = [event()]
    with annotated(number, "forward"):
        loss = loss_of(model, batch)
    events.append(event())
    with annotated(number, "backward"):
        loss.backward()
    events.append(event())
    with annotated(number, "optimizer"):
        optimizer.step()
    events.append(event())
    optimizer.zero_grad()
    steps.append(events)


def read_logger(number: int) -> None:
    """What DDP itself measured of the step before this one: it takes stock when the next forward
    pass begins. This waits for the device."""
    known = model._get_ddp_logging_data() if has_logger else {}
    times = [known.get(f"{phase}_compute_time", 0) for phase in ("forward", "backward")]
    if all(times):
        logged[number - 1] = (times[0] * 1e-9, times[1] * 1e-9)


def trace() -> Any:
    if not has_logger:
        return nullcontext()
    activities = torch.profiler.ProfilerActivity
    return torch.profiler.profile(activities=[activities.CPU, activities.CUDA])


loader = enumerate(DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
for number, batch in loader:
    step(number, batch)
    logged.append(None)
    if number + 1 == options.steps - 2 * TRACED:
        break
with trace() as profile:
    for number, batch in loader:
        step(number, batch)
        logged.append(None)
        if number + 1 == options.steps - TRACED:
            break
    module.synchronize()
if profile is not None:
    profile.export_chrome_trace(options.trace)
for number, batch in loader:
    step(number, batch)
    logged.append(None)
    read_logger(number)
module.synchronize()
report = {
    "rank": 0,
    "own": [[a.elapsed_time(b) * 1e-3 for a, b in pairwise(events)] for events in steps],
    "logged": logged,
}
os.write(1, f"{json.dumps(report)}\n".encode())
leave(device)
