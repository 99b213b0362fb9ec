"""Tensor parallel inside groups of ranks, fully sharded data parallel between the groups.

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.tp_fsdp --tp 2 --steps 120

The ranks of a group, which talk all the time, are best on one host.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.fsdp import Fsdp
from mgpu_trainers.pytorch.tp import divide


class TpFsdp(Fsdp):
    name = "torch-tp-fsdp"

    def note(self) -> str | None:
        if self.share()[1] > 1:
            return None
        return "all ranks are one tensor-parallel group: nothing is divided by fully_shard"

    def wrap(self, model: nn.Module) -> nn.Module:
        shape = (self.share()[1], self.args.tp)
        kind = self.place.device.type
        mesh = init_device_mesh(kind, shape, mesh_dim_names=("data", "tensor"))
        divide(model, mesh["tensor"])
        return self.shard(model, mesh["data"])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        # Weights divided in one and in two ways cannot be updated in one go.
        return torch.optim.AdamW(model.parameters(), lr=self.args.lr, foreach=False)


if __name__ == "__main__":
    main(TpFsdp)
