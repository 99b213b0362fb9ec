"""Faults in what ranks must do alike: other data, equal weights, the same collectives in the same
order. Imports no framework."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mgpu_trainers import specs
from mgpu_trainers.fault import Fault
from mgpu_trainers.mishaps import AtStep
from mgpu_trainers.specs import ALL, key

if TYPE_CHECKING:
    from mgpu_trainers.faults import Planted

_COPIES = ("torch-ddp", "ray-torch")
"""Trainers whose ranks have the whole model, equal in each step."""
IN_STEP = (*_COPIES, "torch-zero1", "torch-fsdp", "torch-tp", "torch-tp-fsdp", "torch-pp")
"""Trainers whose ranks meet in each step."""
_FED_APART = (*_COPIES, "torch-zero1", "torch-fsdp", "torch-localsgd", "torch-diloco", "torch-ps")


@dataclass(frozen=True)
class SameData(Fault):
    """A rank is given the part of the data that is the first rank's."""

    kind: ClassVar[str] = "same-data"
    only: ClassVar[tuple[str, ...]] = _FED_APART
    rank: int = key(specs.rank, ALL)

    def part(self, _own: int) -> int:
        return 0


@dataclass(frozen=True)
class Diverge(AtStep):
    """A rank's weights are halved, once, and from then on they are not those of the others."""

    kind: ClassVar[str] = "diverge"
    only: ClassVar[tuple[str, ...]] = _COPIES

    def happen(self, job: "Planted") -> None:
        for parameter in job.model.parameters():
            parameter.data.mul_(0.5)


@dataclass(frozen=True)
class SkipStep(AtStep):
    """A rank leaves out one step and its collectives, as one that finds a batch not worth it."""

    kind: ClassVar[str] = "skip-collective"
    only: ClassVar[tuple[str, ...]] = IN_STEP

    def skips(self, step: int) -> bool:
        return step == self.step


@dataclass(frozen=True)
class ExtraCall(AtStep):
    """A rank calls a collective by itself, as one that alone adds up a metric."""

    kind: ClassVar[str] = "extra-collective"
    only: ClassVar[tuple[str, ...]] = (*IN_STEP, "torch-localsgd", "torch-diloco")
    call: str = key(specs.one_of("all_reduce", "broadcast"), "all_reduce")

    def happen(self, job: "Planted") -> None:
        import torch
        import torch.distributed as dist

        metric = torch.ones(1, device=next(job.model.parameters()).device)
        if self.call == "broadcast":
            dist.broadcast(metric, src=dist.get_rank())
        else:
            dist.all_reduce(metric)
