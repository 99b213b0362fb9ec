"""Pipeline parallel training: each rank has some layers, and passes micro-batches on to the next.

    torchrun --nproc-per-node 4 -m mgpu_trainers.pytorch.pp --schedule 1f1b --micro-batches 4

The first stage has the embedding, the last one the loss.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from mgpu_trainers import faults
from mgpu_trainers.pytorch.common import torch_models
from mgpu_trainers.pytorch.common.passes import Precision
from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.common.torch_strategy import Strategy, refuse_torch

try:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class
except ImportError:
    refuse_torch("torch-pp")

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
}


class Pp(Strategy):
    name = "torch-pp"
    validates_together = True
    begun = False
    schedule: Any
    pipeline: "Pipeline"
    names: list[str]
    """Names of all weights, in the order in which a single process would have them."""

    def owners(self) -> list[int]:
        """The rank of each stage."""
        ranks = list(range(self.place.world))
        again = {"interleaved": ranks, "zbv": ranks[::-1]}.get(self.args.schedule, [])
        return ranks + again

    def reporter(self) -> int:
        return self.owners()[-1]

    def wrap(self, model: nn.Module) -> nn.Module:
        owners, device = self.owners(), self.place.device
        mine = [number for number, owner in enumerate(owners) if owner == self.place.rank]
        heavy = faults.find_heavy_stage(faults.parse(self.args.fault, self.place.world))
        parts = {number: torch_models.stage(model, number, len(owners), heavy) for number in mine}
        stages = [PipelineStage(parts[index], index, len(owners), device) for index in mine]
        kind = get_schedule_class(SCHEDULES[self.args.schedule])
        single = self.args.schedule in ("gpipe", "1f1b")
        self.schedule = kind(
            stages[0] if single else stages, self.args.micro_batches, loss_fn=cross_entropy
        )
        self.names = [name for name, _ in model.named_parameters()]
        self.pipeline = Pipeline(parts, owners, device)
        model.to("meta")  # the rest is with the other ranks
        return self.pipeline

    def inside(self, _inner: nn.Module) -> nn.Module:
        return self.pipeline.parts()[0]

    def learn(
        self, _model: nn.Module, _precision: Precision, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor | None:
        owners, losses = self.owners(), list[torch.Tensor]()
        last = {"target": targets, "losses": losses} if self.place.rank == owners[-1] else {}
        first = (inputs,) if self.place.rank == owners[0] else ()
        with nullcontext() if self.begun else buffers_kept(self.pipeline):
            self.schedule.step(*first, **last)
        self.begun = True
        return torch.stack(losses).mean() if losses else None

    def state(self, _model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None:
        """Weights and optimizer states, as of a single process."""
        stage_state = optimizer.state_dict()
        stage_states = [_on_cpu(state) for state in stage_state["state"].values()]
        states = dict(zip(self.pipeline.names(), stage_states, strict=True))
        weights = _on_cpu(
            {k: v for part in self.pipeline.parts() for k, v in part.state_dict().items()}
        )
        gathered: list[Any] | None = [None] * self.place.world if self.place.rank == 0 else None
        dist.gather_object((weights, states), gathered)
        if gathered is None:
            return None
        weights = {
            name: weight for stage_weights, _ in gathered for name, weight in stage_weights.items()
        }
        states = {
            name: state for _, stage_states in gathered for name, state in stage_states.items()
        }
        numbered = {number: states[name] for number, name in enumerate(self.names)}
        group = {**stage_state["param_groups"][0], "params": list(numbered)}
        return weights, {"state": numbered, "param_groups": [group]}

    def load(self, _model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
        for part in self.pipeline.parts():
            part.load_state_dict({name: weights[name] for name in part.state_dict()})
        (group,) = states["param_groups"]
        keys = dict(zip(self.names, group["params"], strict=True))
        stage_states = [states["state"][keys[name]] for name in self.pipeline.names()]
        group = {**group, "params": list(range(len(stage_states)))}
        optimizer.load_state_dict({"state": dict(enumerate(stage_states)), "param_groups": [group]})


class Pipeline(nn.Module):
    """The stages of this rank. If all ranks call it, a batch passes through all stages.

    Used for validation, where batch sizes differ and nothing is trained.
    """

    def __init__(
        self, parts: dict[int, nn.Module], owners: list[int], device: torch.device
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleDict({str(number): part for number, part in parts.items()})
        self.owners = owners
        self.device = device

    def parts(self) -> list[nn.Module]:
        return list(self.stages.children())

    def names(self) -> list[str]:
        """Names of this rank's weights, in the order of its optimizer."""
        return [name for part in self.parts() for name, _ in part.named_parameters()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, owner in enumerate(self.owners):
            is_mine = str(number) in self.stages
            passed = [self.stages[str(number)](x).cpu() if is_mine else None]
            dist.broadcast_object_list(passed, src=owner)
            assert passed[0] is not None
            x = passed[0].to(self.device)
        return x


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Leaves what batch norm has counted as it was.

    To find the shapes between stages, a schedule's first step begins with a batch of uninitialized
    memory (torch 2.13), which batch norm would count, too.
    """
    saved = [buffer.clone() for buffer in model.buffers()]
    yield
    for buffer, saved_buffer in zip(model.buffers(), saved, strict=True):
        buffer.copy_(saved_buffer)


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


if __name__ == "__main__":
    main(Pp)
