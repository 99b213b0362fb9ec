"""Data-parallel training, rare communication: post-local SGD (Lin et al. 2018, arXiv 1808.07217).

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.localsgd --sync-every 8

Gradients are averaged in each of the first steps. Then each rank trains by itself, and only the
weights are averaged, every `--sync-every` steps.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel

from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.ddp import Ddp


class LocalSgd(Ddp):
    name = "torch-localsgd"

    def wrap(self, model: nn.Module) -> nn.Module:
        wrapped = super().wrap(model)
        assert isinstance(wrapped, DistributedDataParallel)
        state = PostLocalSGDState(
            None,
            None,
            start_localSGD_iter=self.args.sync_first,
            post_local_gradient_allreduce=False,
        )
        wrapped.register_comm_hook(state, post_localSGD_hook)
        wrapped.broadcast_buffers = False  # an argument of this name is deprecated in torch 2.13
        return wrapped

    def updated(self, model: nn.Module, step: int) -> None:
        if step > self.args.sync_first and step % self.args.sync_every == 0:
            average(model)

    def trained(self, model: nn.Module) -> None:
        average(model)

    def state(self, model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None:
        average(model)
        return super().state(model, optimizer)


def average(model: nn.Module) -> None:
    """Weights, and what batch norm has counted."""
    counted = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    everything: Iterator[Any] = chain(model.parameters(), counted)
    assert dist.group.WORLD is not None
    average_parameters(everything, dist.group.WORLD)


if __name__ == "__main__":
    main(LocalSgd)
