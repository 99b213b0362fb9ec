"""Data-parallel training with PyTorch's DistributedDataParallel, under torchrun.

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.ddp --model cnn-nano --steps 200

gloo on CPUs, NCCL where each rank has a GPU. Gradients can be compressed on their way.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.common.torch_strategy import Strategy

POWERSGD_FROM = 10
"""First steps whose gradients are not compressed."""


class Ddp(Strategy):
    name = "torch-ddp"

    def wrap(self, model: nn.Module) -> nn.Module:
        device, settings = self.place.device, self.settings(model)
        ids = [device] if device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=ids, **settings)
        register_compression(wrapped, getattr(self.args, "compress", "none"))
        return wrapped

    def settings(self, model: nn.Module) -> dict[str, Any]:
        """Settings of DistributedDataParallel that differ from its defaults."""
        megabytes = self.args.bucket_mb
        if self.place.device.type == "cpu" and getattr(self.args, "compress", "") == "powersgd":
            # With several buckets gloo aborts: their parts may be sent in another order elsewhere.
            sizes = (weights.numel() * weights.element_size() for weights in model.parameters())
            least = sum(sizes) / 2**20
            if megabytes and megabytes < least:
                sys.exit(
                    f"{self.name}: on CPUs --compress powersgd needs all gradients in one bucket: "
                    f"--bucket-mb {least:.0f} or more, or none"
                )
            megabytes = megabytes or least + 1
        return {"bucket_cap_mb": megabytes} if megabytes else {}

    def turn(self, model: Any, *, last: bool) -> AbstractContextManager[None]:
        synchronization: AbstractContextManager[None] = nullcontext()
        return synchronization if last or self.args.no_sync == "off" else model.no_sync()


def register_compression(model: DistributedDataParallel, kind: str) -> None:
    if kind == "bf16":
        model.register_comm_hook(None, bf16_hook)
    elif kind == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=POWERSGD_FROM)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def bf16_hook(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch insists on this annotation
) -> torch.futures.Future[torch.Tensor]:
    """torch's own wants NCCL; gloo averages bfloat16 as well."""
    gradients: torch.Tensor = bucket.buffer()
    short = gradients.to(torch.bfloat16).div_(dist.get_world_size())

    def back(sent: Any) -> torch.Tensor:
        return gradients.copy_(sent.value()[0])

    sent: torch.futures.Future[Any] = dist.all_reduce(short, async_op=True).get_future()
    return sent.then(back)


if __name__ == "__main__":
    main(Ddp)
