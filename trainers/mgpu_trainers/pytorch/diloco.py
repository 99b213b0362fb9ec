"""Data-parallel training, little communication: DiLoCo (Douillard et al. 2023, arXiv 2311.08105).

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.diloco --sync-every 20

Each rank trains by itself with AdamW. Every `--sync-every` steps, the ranks' average change of the
weights is the gradient of a second optimizer, and all ranks continue with its weights.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector

from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.common.torch_strategy import Strategy

RATE, MOMENTUM = 0.7, 0.9
"""Learning rate and momentum of the outer optimizer, as in the paper."""


class Diloco(Strategy):
    name = "torch-diloco"
    alone = 0
    """Steps since the ranks last met."""

    def wrap(self, model: nn.Module) -> nn.Module:
        self.shared = parameters_to_vector(model.parameters()).detach().clone()
        self.outer = torch.optim.SGD([self.shared], RATE, MOMENTUM, nesterov=True)
        return model

    def updated(self, model: nn.Module, _step: int) -> None:
        self.alone += 1
        if self.alone == self.args.sync_every:
            self.meet(model)

    def trained(self, model: nn.Module) -> None:
        if self.alone:
            self.meet(model)

    def meet(self, model: nn.Module) -> None:
        """Updates the shared weights, from which each rank continues."""
        self.shared.grad = self.shared - parameters_to_vector(model.parameters()).detach()
        self.average(self.shared.grad)
        self.outer.step()
        set_weights(model, self.shared)
        for counted in (buffer for buffer in model.buffers() if buffer.is_floating_point()):
            self.average(counted)
        self.alone = 0

    def average(self, numbers: torch.Tensor) -> None:
        """Replaces them by their mean over the ranks; gloo has no average before torch 2.8."""
        dist.all_reduce(numbers)
        numbers /= self.place.world

    def state(self, model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None:
        self.trained(model)
        return super().state(model, optimizer)

    def load(self, model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
        super().load(model, optimizer, weights, states)
        self.shared.copy_(parameters_to_vector(model.parameters()).detach())


@torch.no_grad()
def set_weights(model: nn.Module, weights: torch.Tensor) -> None:
    """Copies weights from a flat tensor into the model."""
    parameters = list(model.parameters())
    parts = weights.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view_as(parameter))


if __name__ == "__main__":
    main(Diloco)
