"""Tensor parallel training: each rank has a part of every layer, and all see the same batch.

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.tp --steps 120

Attention heads, the inner width of the MLPs and the classes of the head are divided; ranks add up
what they have after each attention and each MLP.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from mgpu_trainers.pytorch.common import torch_checkpoints
from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.common.torch_models import GptNano, TransformerBlock
from mgpu_trainers.pytorch.common.torch_strategy import Strategy

try:
    from torch.distributed.tensor import Replicate
except ImportError:  # torch 2.4
    from torch.distributed._tensor import Replicate  # type: ignore[attr-defined]


class Tp(Strategy):
    name = "torch-tp"
    validates_together = True

    def wrap(self, model: nn.Module) -> nn.Module:
        divide(model, init_device_mesh(self.place.device.type, (self.place.world,)))
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        # Divided weights and whole ones cannot be updated in one go.
        return torch.optim.AdamW(model.parameters(), lr=self.args.lr, foreach=False)

    def state(self, model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None:
        return torch_checkpoints.gather_state(model, optimizer)

    def load(self, model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
        torch_checkpoints.load_state(model, optimizer, weights, states)


def divide(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divides the layers of a GptNano over the ranks of `mesh`."""
    assert isinstance(model, GptNano)
    for block in model.blocks.values():
        assert isinstance(block, TransformerBlock)
        block.attention.heads //= mesh.size()
        plan = {
            f"attention.{projection}": ColwiseParallel() for projection in ("query", "key", "value")
        }
        plan |= {"mlp.0": ColwiseParallel()}
        parallelize_module(
            block,
            mesh,
            {**plan, "attention.out": RowwiseParallel(), "mlp.2": RowwiseParallel()},
        )
    assert model.head is not None
    parallelize_module(model.head, mesh, ColwiseParallel(output_layouts=Replicate()))


if __name__ == "__main__":
    main(Tp)
