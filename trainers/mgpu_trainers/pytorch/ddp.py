"""Data-parallel training with PyTorch's DistributedDataParallel, under torchrun.

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.ddp --model cnn-nano --steps 200

gloo on CPUs, NCCL where each rank has a GPU.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mgpu_trainers.pytorch.common import compress
from mgpu_trainers.pytorch.common.loop import main
from mgpu_trainers.pytorch.common.strategy import Strategy


class Ddp(Strategy):
    name = "torch-ddp"

    def wrap(self, model: nn.Module) -> nn.Module:
        device, settings = self.place.device, self.settings(model)
        ids = [device] if device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=ids, **settings)
        compress.register(wrapped, getattr(self.args, "compress", "none"))
        return wrapped

    def settings(self, model: nn.Module) -> dict[str, Any]:
        """Of DistributedDataParallel, where they are not its own."""
        megabytes = self.args.bucket_mb
        if self.place.device.type == "cpu" and getattr(self.args, "compress", "") == "powersgd":
            # With several buckets gloo aborts: their parts may be sent in another order elsewhere.
            least = sum(each.numel() * each.element_size() for each in model.parameters()) / 2**20
            if megabytes and megabytes < least:
                sys.exit(
                    f"{self.name}: on CPUs --compress powersgd needs all gradients in one bucket: "
                    f"--bucket-mb {least:.0f} or more, or none"
                )
            megabytes = megabytes or least + 1
        return {"bucket_cap_mb": megabytes} if megabytes else {}

    def turn(self, model: Any, *, last: bool) -> AbstractContextManager[None]:
        held: AbstractContextManager[None] = nullcontext()
        return held if last or self.args.no_sync == "off" else model.no_sync()


if __name__ == "__main__":
    main(Ddp)
