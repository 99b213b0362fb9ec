"""A training job on a GPU or on the pretend one, with what the GPU tests plant in it.

Each phase keeps the device busy for a known time. At its end each rank prints a JSON object: its
losses, how often its host waited for the device, and how far the host ran ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.gpu.jobs.job_device import leave, open_device

WIDTH, SAMPLES = 64, 8
USUAL = {"forward": 8.0, "backward": 16.0, "optimizer": 2.0}
"""Milliseconds on the device, times `--scale`."""
WARM_UP = 5
"""Steps before the host's waits are counted: the first ones allocate and compile."""
ENDLESS = 1e7
"""Milliseconds that work takes which does not end."""

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=("pretend", "cuda"), required=True)
parser.add_argument("--build", help="where the pretend device is compiled")
parser.add_argument("--group", choices=("streams", "gloo", "nccl", "pretend"))
parser.add_argument("--strategy", choices=("single", "ddp", "fsdp", "allreduce"), default="ddp")
parser.add_argument("--steps", type=int, default=150)
parser.add_argument(
    "--usual-limit",
    action="store_true",
    help="the probe times as many turns of the pretend device as it may, not every one",
)
parser.add_argument("--scale", type=float, default=1.0, help="of all work")
parser.add_argument("--slow", default="", help="rank:phase:milliseconds of more work")
parser.add_argument("--endless", default="", help="rank:phase:step of work that does not end")
parser.add_argument(
    "--side-stream", type=float, default=0, help="ms of a stream that is waited for"
)
parser.add_argument("--blocks", type=int, default=4, help="of the model")
parser.add_argument("--copies", choices=("pinned", "pageable", "prefetched"))
parser.add_argument("--copied-mib", type=float, default=32, help="of each such copy")
parser.add_argument("--accumulate", type=int, default=1, help="backward passes per update")
parser.add_argument(
    "--overflows", type=int, help="autocast and gradient scaler; inf in one update of so many"
)
parser.add_argument("--nan-from", type=int, help="the loss is no number from this step on")
parser.add_argument("--reads-loss", action="store_true", help="the host waits in every step")
parser.add_argument("--workers", type=int, default=0, help="forked processes of the loader")
parser.add_argument("--killed-at", type=int, help="the step in which SIGKILL ends the process")
parser.add_argument("--counts-waits", action="store_true", help="of the host for the device")
parser.add_argument("--reports-cost", action="store_true", help="of the device clock")
parser.add_argument("--forbids-waits", action="store_true", help="torch raises where it can")
options = parser.parse_args()

device = open_device(options.device, options.build)
if not options.usual_limit:
    device.time_every_turn()
if options.group:
    device.join(options.group)
rank = int(os.environ.get("RANK", "0"))
slow_rank, slow_phase, milliseconds = (options.slow or "-1:none:0").split(":")
extra = {slow_phase: float(milliseconds)} if rank == int(slow_rank) else {}
endless_rank, endless_phase, endless_step = (options.endless or "-1:none:-1").split(":")
endless = (endless_phase, int(endless_step)) if rank == int(endless_rank) else None
update = 0


def work(phase: str, parts: int = 1) -> None:
    """The device computes for as long as this phase takes, or one of its parts."""
    if (phase, update) == endless:
        device.work(ENDLESS)
    device.work((USUAL[phase] * options.scale + extra.get(phase, 0)) / parts / options.accumulate)


class Work(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, batch: Any) -> Any:
        work("forward", options.blocks)
        return batch.clone()

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        work("backward", options.blocks)
        return gradient.clone()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Any) -> Any:
        return Work.apply(torch.relu(self.linear(batch)))  # type: ignore[no-untyped-call]


class Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for _ in range(options.accumulate):
            work("optimizer")
        return super().step(closure)


def collate(samples: Any) -> torch.Tensor:
    time.sleep(extra.get("input", 0) / 1e3)
    return torch.stack([sample for (sample,) in samples])


def copied(batch: torch.Tensor) -> torch.Tensor:
    """The batch on the device, and more that is copied with it."""
    if payload is not None and options.copies == "prefetched":
        with device.module.stream(side):
            payload.to(device.name, non_blocking=True)
    elif payload is not None:
        payload.to(device.name, non_blocking=True)
    return batch.to(device.name, non_blocking=True)


def make_payload() -> torch.Tensor | None:
    """What is copied in each step; page-locked, unless that is the fault."""
    if options.copies is None:
        return None
    made = torch.zeros(int(options.copied_mib * (1 << 20)), dtype=torch.uint8)
    pins = device.name == "cuda" and options.copies != "pageable"
    return made.pin_memory() if pins else made


def clock_seconds() -> float | None:
    """What timing steps on the device has cost by the probe's own count; None: no probe is here."""
    events: Any = sys.modules.get("_mgpu_probe.frameworks.torch.device_events")
    timer = None if events is None else events.probe.device_timer
    return None if timer is None else timer.spent_ns * 1e-9


def passes() -> Iterator[tuple[int, torch.Tensor]]:
    """Number of the update, and a batch."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    data = TensorDataset(torch.randn(options.steps * options.accumulate * SAMPLES * ranks, WIDTH))
    sampler: Any = DistributedSampler(data, ranks, rank)
    loader = DataLoader(
        data,
        batch_size=SAMPLES,
        sampler=sampler,
        collate_fn=collate,
        num_workers=options.workers,
        multiprocessing_context="fork" if options.workers else None,
        pin_memory=device.name == "cuda",
    )
    for number, batch in enumerate(loader):
        yield number // options.accumulate, copied(batch)


def wait_for_side_stream() -> None:
    """The stream that computes waits for work in another one."""
    side.wait_stream(device.module.current_stream())
    with device.module.stream(side):
        device.work(options.side_stream)
    device.module.current_stream().wait_stream(side)


torch.manual_seed(0)
model: Any = torch.nn.Sequential(*[Block() for _ in range(options.blocks)]).to(device.name)
parameters = list(model.parameters())
if options.strategy == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
elif options.strategy == "fsdp":
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    fully_shard(model)
    parameters = list(model.parameters())
optimizer = Optimizer(parameters, lr=1e-3, fused=True if options.overflows else None)
scaler = torch.amp.GradScaler(device.name, init_scale=16.0, enabled=bool(options.overflows))
side = device.module.Stream()
payload = make_payload()
losses: list[torch.Tensor] = []


def train() -> None:
    """The loop, from the step after the last one."""
    global update
    for update, batch in batches:
        last = len(losses) % options.accumulate == options.accumulate - 1
        accumulates = options.strategy == "ddp" and not last
        with model.no_sync() if accumulates else nullcontext():
            if options.side_stream:
                wait_for_side_stream()
            with autocast():
                loss = model(batch).pow(2).mean() / options.accumulate
            if options.nan_from is not None and update >= options.nan_from:
                loss = loss * float("nan")
            if options.overflows and update % options.overflows == options.overflows - 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
        losses.append(loss.detach())
        if update == options.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if last:
            learn()
        if options.reads_loss:
            loss.item()
        if last and update + 1 == WARM_UP:
            break


def autocast() -> Any:
    """Mixed precision, where the gradients are scaled."""
    return torch.autocast(device.name, torch.bfloat16, enabled=bool(options.overflows))


def learn() -> None:
    if options.strategy == "allreduce":
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def queue_events() -> Any:
    """An event behind all that is queued."""
    event = device.module.Event()
    event.record(device.module.current_stream())
    return event


batches = passes()
train()
if options.forbids_waits:
    device.begin_check()
began = time.perf_counter()
with device.counted_waits() if options.counts_waits else nullcontext():
    train()
ran_ahead = not queue_events().query()
if options.forbids_waits:
    device.end_check()
report: dict[str, Any] = {
    "rank": rank,
    "waits": device.waits,
    "ran_ahead": ran_ahead,
    "scale": scaler.get_scale(),
    "losses": [loss.item() for loss in losses],
}
if options.reports_cost:
    device.module.synchronize()
    report["seconds"] = time.perf_counter() - began
    report["clock_seconds"] = clock_seconds()
os.write(1, f"{json.dumps(report)}\n".encode())
leave(device)
