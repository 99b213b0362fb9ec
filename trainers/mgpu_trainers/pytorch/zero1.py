"""Data-parallel training in which each rank keeps the optimizer's states of a part of the weights.

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.zero1 --steps 200

DistributedDataParallel with ZeroRedundancyOptimizer, which sends each rank's part of the new
weights to the others (ZeRO stage 1).
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.ddp import Ddp


class Zero1(Ddp):
    name = "torch-zero1"

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW, lr=self.args.lr
        )

    def state(self, model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None:
        optimizer.consolidate_state_dict(to=0)
        return super().state(model, optimizer)


if __name__ == "__main__":
    main(Zero1)
