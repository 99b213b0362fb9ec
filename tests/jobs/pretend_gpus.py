"""Training on pretend GPUs (tests/support/pretend_accelerator): torch's own DistributedDataParallel
and fully_shard, with streams, events and autograd's device threads, on a machine without a GPU."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.pretend_accelerator import load, time_every_turn

MS = 1_000_000
BLOCKS = 4
PERIOD = 4
"""Steps between two averages of local SGD."""
MICRO_BATCHES = 4
"""Of a pipeline."""

parser = argparse.ArgumentParser()
parser.add_argument("--build", required=True, help="where the device is compiled")
parser.add_argument(
    "--strategy",
    default="ddp",
    help="ddp, buffers, fsdp, allreduce, zero2, zero3 (of a stand-in for DeepSpeed), single, "
    "gradients (no autograd, asynchronous collectives), calls (neither autograd nor optimizer), "
    "localsgd, tensor, pipeline",
)
parser.add_argument("--checkpointing", action="store_true", help="of activations, under ddp")
parser.add_argument(
    "--optimizers",
    default="one",
    help="one, two (each with half of the weights), sharded (ZeroRedundancyOptimizer), backward "
    "(one for each weight, in the backward pass)",
)
parser.add_argument("--scaler", action="store_true", help="scales the loss, under ddp")
parser.add_argument("--packages", help="where the stand-in for DeepSpeed is")
parser.add_argument("--steps", type=int, default=80)
parser.add_argument(
    "--usual-limit",
    action="store_true",
    help="the probe times as many turns as it may, not every one",
)
parser.add_argument("--copies", type=float, default=0, help="ms that copying a batch takes")
parser.add_argument("--no-loader", action="store_true", help="batches are made on the device")
parser.add_argument("--slow", default="", help="rank:phase:milliseconds")
parser.add_argument("--scale", type=float, default=1, help="of the time that all work takes")
parser.add_argument(
    "--tensor-cores", action="store_true", help="a block computes bfloat16 in a quarter of the time"
)
parser.add_argument("--endless", default="", help="rank:phase:step of work that never ends")
parser.add_argument("--nan-from", type=int, help="the loss is no number from this step on")
options = parser.parse_args()

pretend = load(options.build)
if not options.usual_limit:
    time_every_turn()
if options.strategy != "single":
    dist.init_process_group("pretend")
rank = int(os.environ.get("RANK", "0"))
slow_rank, slow_phase, milliseconds = (options.slow or "-1:none:0").split(":")
extra = {slow_phase: float(milliseconds)} if rank == int(slow_rank) else {}


endless_rank, endless_phase, endless_step = (options.endless or "-1:none:-1").split(":")
endless = (endless_phase, int(endless_step)) if rank == int(endless_rank) else ("none", -1)
step = 0


def work(phase: str, milliseconds: float, parts: int = 1) -> None:
    """The device computes for as long as this phase takes, or one of its parts."""
    if (phase, step) == endless:
        milliseconds = 1e9
    pretend.native.work(int((options.scale * milliseconds + extra.get(phase, 0)) / parts * MS))


parts = BLOCKS * (MICRO_BATCHES if options.strategy == "pipeline" else 1)


def share_of_time(tensor: Any) -> float:
    return 0.25 if options.tensor_cores and tensor.dtype is torch.bfloat16 else 1.0


class Work(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, batch: Any) -> Any:
        context.save_for_backward(batch)  # else nothing is computed again under checkpointing
        work("forward", 8 * share_of_time(batch), parts)
        return batch.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        assert context.saved_tensors
        work("backward", 16 * share_of_time(gradient), parts)
        return gradient.clone()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.norm = torch.nn.BatchNorm1d(64) if options.strategy == "buffers" else None

    def forward(self, batch: Any) -> Any:
        hidden = self.linear(batch)
        if self.norm is not None:
            hidden = self.norm(hidden)
        if options.checkpointing:
            return checkpoint(Work.apply, torch.relu(hidden), use_reentrant=False)
        return Work.apply(torch.relu(hidden))  # type: ignore[no-untyped-call]


class Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        work("optimizer", 2, optimizers)
        return super().step(closure)


torch.manual_seed(0)
model: Any = torch.nn.Sequential(*[Block() for _ in range(BLOCKS)]).to("pretend")
parameters = list(model.parameters())
if options.strategy in ("ddp", "buffers"):
    model = torch.nn.parallel.DistributedDataParallel(model)
elif options.strategy == "fsdp":
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    fully_shard(model)
    parameters = list(model.parameters())
elif options.strategy == "tensor":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("pretend", (dist.get_world_size(),))
    for number, block in enumerate(model):  # pairs that reduce once in forward, once in backward
        plan: Any = {"linear": RowwiseParallel() if number % 2 else ColwiseParallel()}
        parallelize_module(block, mesh, plan, src_data_rank=None)
    parameters = list(model.parameters())
elif options.strategy == "pipeline":
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stages = dist.get_world_size()
    example: Any = {"size": (8 // MICRO_BATCHES, 64), "device": "pretend"}
    stage = PipelineStage(
        model,
        rank,
        stages,
        torch.device("pretend"),
        input_args=torch.zeros(**example, requires_grad=rank > 0),
        output_args=torch.zeros(**example, requires_grad=True),
    )
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda output, _: output.pow(2).mean())
optimizers = {"two": 2, "backward": len(parameters)}.get(options.optimizers, 1)
"""That share the work of an update."""
optimizer: Any = None
if options.optimizers == "sharded":
    optimizer = ZeroRedundancyOptimizer(parameters, Optimizer, lr=1e-3)
elif options.strategy == "localsgd":
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(Optimizer(parameters, lr=1e-3), averager)
elif options.optimizers == "one":
    optimizer = Optimizer(parameters, lr=1e-3)
scaler = torch.amp.GradScaler("pretend", init_scale=16.0) if options.scaler else None
if optimizer is None:
    each = [Optimizer(parameters[part::optimizers], lr=1e-3) for part in range(optimizers)]


def update() -> None:
    """Of all optimizers that step after the backward pass."""
    if options.optimizers == "backward":
        return
    for one in [optimizer] if optimizer is not None else each:
        if scaler is None:
            one.step()
        else:
            scaler.step(one)
            scaler.update()
        one.zero_grad()


def update_in_backward(parameter: torch.Tensor) -> None:
    one = owners[parameter]
    one.step()
    one.zero_grad()


if options.optimizers == "backward":
    owners = dict(zip(parameters, each, strict=True))
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(update_in_backward)
engine: Any = None
if options.strategy in ("zero2", "zero3"):
    sys.path.insert(0, options.packages)
    from deepspeed.runtime.engine import DeepSpeedEngine

    model = engine = DeepSpeedEngine(model, optimizer, int(options.strategy[-1]))


def collate(samples: Any) -> torch.Tensor:
    time.sleep(extra.get("input", 0) / 1e3)
    return torch.stack([sample for (sample,) in samples])


def batches() -> Iterator[torch.Tensor]:
    """Of the device."""
    if options.no_loader:
        for _ in range(options.steps):
            yield torch.randn(8, 64).to("pretend", non_blocking=True)
        return
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    data = TensorDataset(torch.randn(options.steps * 8 * ranks, 64))
    sampler: Any = DistributedSampler(data, ranks, rank)
    for batch in DataLoader(data, batch_size=8, sampler=sampler, collate_fn=collate):
        copy = batch.to("pretend", non_blocking=True)
        work("transfer", options.copies)
        yield copy


def learn(batch: torch.Tensor, step: int) -> torch.Tensor:
    """The loss, once all gradients are there."""
    if options.strategy in ("gradients", "calls"):
        with torch.no_grad():
            loss = model(batch).pow(2).mean()
            work("backward", 16)
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
    elif options.strategy == "pipeline":
        losses: list[torch.Tensor] = []
        last = rank == stages - 1
        schedule.step(
            *([batch] if rank == 0 else []),
            target=batch if last else None,
            losses=losses if last else None,
        )
        loss = torch.stack(losses).mean() if last else torch.zeros((), device="pretend")
    else:
        loss = model(batch).pow(2).mean()
        if options.nan_from is not None and step >= options.nan_from:
            loss = loss * float("nan")
        if scaler is not None:
            scaler.scale(loss).backward()
        elif engine is None:
            loss.backward()
        else:
            engine.backward(loss)
    if options.strategy in ("allreduce", "gradients", "calls"):
        asynchronous = options.strategy == "gradients"
        handles = [dist.all_reduce(made.grad, async_op=asynchronous) for made in parameters]
        for handle in handles if asynchronous else ():
            handle.wait()
    return loss  # type: ignore[no-any-return]


losses = []
for step, batch in enumerate(batches()):
    loss = learn(batch, step)
    if options.strategy == "calls":
        work("optimizer", 2)
    elif engine is not None:
        engine.step()
    else:
        update()
    losses.append(loss.detach())
waits = pretend.native.synchronizations()
report = json.dumps({"rank": rank, "synchronizations": waits, "losses": [x.item() for x in losses]})
os.write(1, f"{report}\n".encode())
if dist.is_initialized():
    dist.barrier()  # torch cannot destroy a group that is written in Python
