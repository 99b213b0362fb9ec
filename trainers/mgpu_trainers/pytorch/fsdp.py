"""Fully sharded data parallel training (FSDP2): each rank keeps a part of everything.

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.fsdp --steps 150

The weights of a block are gathered before it computes, and its gradients are added up where their
part lives.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from mgpu_trainers.pytorch.common import torch_checkpoints
from mgpu_trainers.pytorch.common.passes import SHORT
from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.common.torch_strategy import Strategy, refuse_torch

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:
    refuse_torch("torch-fsdp")


class Fsdp(Strategy):
    name = "torch-fsdp"
    autocasts = False
    validates_together = True

    def wrap(self, model: nn.Module) -> nn.Module:
        return self.shard(model, init_device_mesh(self.place.device.type, (self.place.world,)))

    def shard(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        inner = outer = MixedPrecisionPolicy()
        if short := SHORT.get(self.args.precision):
            inner = MixedPrecisionPolicy(short, torch.float32)
            outer = MixedPrecisionPolicy(short, torch.float32, torch.float32)
            for norm in (
                module for module in model.modules() if isinstance(module, nn.BatchNorm2d)
            ):
                fully_shard(norm, mesh=mesh)  # what it counts stays in float32, so must its weights
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh, mp_policy=inner)
        # Of scores that are a view of others, fully_shard would warn.
        model.register_forward_hook(lambda _, __, scores: scores.contiguous())
        fully_shard(model, mesh=mesh, mp_policy=outer)
        return model

    def turn(self, model: Any, *, last: bool) -> AbstractContextManager[None]:
        if self.args.accumulate > 1:
            model.set_requires_gradient_sync(last or self.args.no_sync == "off")
        return nullcontext()

    def state(self, model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None:
        return torch_checkpoints.gather_state(model, optimizer)

    def load(self, model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
        torch_checkpoints.load_state(model, optimizer, weights, states)


if __name__ == "__main__":
    main(Fsdp)
