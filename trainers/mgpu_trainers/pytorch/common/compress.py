"""Gradients made smaller for the way between the ranks of a DistributedDataParallel."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

POWERSGD_FROM = 10
"""Steps whose gradients go whole, before they are known well enough."""


def register(model: DistributedDataParallel, kind: str) -> None:
    if kind == "bf16":
        model.register_comm_hook(None, bf16)
    elif kind == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=POWERSGD_FROM)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def bf16(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch insists on this annotation
) -> torch.futures.Future[torch.Tensor]:
    """torch's own wants NCCL; gloo averages bfloat16 as well."""
    whole: torch.Tensor = bucket.buffer()
    short = whole.to(torch.bfloat16).div_(dist.get_world_size())

    def back(sent: Any) -> torch.Tensor:
        return whole.copy_(sent.value()[0])

    sent: torch.futures.Future[Any] = dist.all_reduce(short, async_op=True).get_future()
    return sent.then(back)
