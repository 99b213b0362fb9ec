"""Faults that end a rank, spoil its results, break its agreement with the other ranks, or disturb
it from outside. Imports no framework."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mgpu_trainers.capabilities import Capability
from mgpu_trainers.fault_spec import (
    ALL,
    SpecError,
    key,
    read_choice,
    read_exit_code,
    read_number,
    read_positive,
    read_rank,
    read_signal,
)
from mgpu_trainers.planting import Fault, Planted

if TYPE_CHECKING:
    import torch
    from torch import nn

MEGABYTE = 2**20
MOST_HOGS = 64
"""Processes that `hog` starts at most, so that a slip of the finger does not choke the machine."""


@dataclass(frozen=True)
class Leak(Fault):
    """A rank keeps `mb` megabytes more on its device with each forward."""

    kind: ClassVar[str] = "leak"
    summary: ClassVar[str] = "keeps more memory on its device with each forward"
    learns: ClassVar[bool] = True
    mb: float = key(read_number, 1.0, "memory kept with each forward", unit="MiB")

    def attach(self, job: Planted) -> None:
        leaked: list[torch.Tensor] = []

        def keep(_module: "nn.Module", _inputs: object, output: "torch.Tensor") -> None:
            if job.training:
                leaked.append(output.new_ones(int(self.mb * MEGABYTE) // output.element_size()))

        job.model.register_forward_hook(keep)


@dataclass(frozen=True)
class AtStep(Fault):
    """Something that happens once, as the rank is about to begin `step`."""

    step: int = key(read_positive, 10, "step before which it happens")

    def begin(self, job: Planted) -> None:
        if job.step == self.step:
            self.happen(job)

    def happen(self, job: Planted) -> None:
        """What happens then."""


@dataclass(frozen=True)
class Hang(AtStep):
    kind: ClassVar[str] = "hang"
    summary: ClassVar[str] = "loops in its own code and never reaches the next collective"

    def happen(self, _job: Planted) -> None:
        while True:
            time.sleep(0.01)


@dataclass(frozen=True)
class Kill(AtStep):
    kind: ClassVar[str] = "kill"
    summary: ClassVar[str] = (
        "gets a signal, as from the out-of-memory killer (KILL) or a broken library (SEGV, BUS)"
    )
    signal: str = key(read_signal, "KILL", "name of the signal")

    def happen(self, _job: Planted) -> None:
        os.kill(os.getpid(), signal.Signals[f"SIG{self.signal}"])


@dataclass(frozen=True)
class Raise(AtStep):
    kind: ClassVar[str] = "exception"
    summary: ClassVar[str] = "raises an exception that nothing catches"

    def happen(self, _job: Planted) -> None:
        raise RuntimeError(f"planted exception at step {self.step}")


@dataclass(frozen=True)
class Exit(AtStep):
    kind: ClassVar[str] = "exit"
    summary: ClassVar[str] = "calls `sys.exit(code)`"
    code: int = key(read_exit_code, 3, "exit code")

    def happen(self, _job: Planted) -> None:
        sys.exit(self.code)


@dataclass(frozen=True)
class Nan(AtStep):
    kind: ClassVar[str] = "nan"
    summary: ClassVar[str] = "has NaN gradients in that step, and with them every rank's weights"
    learns: ClassVar[bool] = True

    @property
    def is_inside_step(self) -> bool:
        return True

    def attach(self, job: Planted) -> None:
        def poison(_module: "nn.Module", _inputs: object, output: "torch.Tensor") -> None:
            if job.training and job.step == self.step:
                output.register_hook(lambda gradient: gradient * float("nan"))

        job.model.register_forward_hook(poison)


@dataclass(frozen=True)
class SameData(Fault):
    kind: ClassVar[str] = "same-data"
    summary: ClassVar[str] = "reads the first rank's part of the data"
    needs: ClassVar[Capability | None] = Capability.OWN_DATA
    learns: ClassVar[bool] = True
    rank: int = key(read_rank, ALL, "rank that has it; all: every rank")

    def part(self, _part: int) -> int:
        return 0


@dataclass(frozen=True)
class Diverge(AtStep):
    kind: ClassVar[str] = "diverge"
    summary: ClassVar[str] = "halves its weights, once"
    needs: ClassVar[Capability | None] = Capability.EQUAL_COPIES

    def happen(self, job: Planted) -> None:
        for parameter in job.model.parameters():
            parameter.data.mul_(0.5)


@dataclass(frozen=True)
class SkipStep(AtStep):
    kind: ClassVar[str] = "skip-collective"
    summary: ClassVar[str] = "leaves out one step and its collectives"
    needs: ClassVar[Capability | None] = Capability.STEP_COLLECTIVES

    def skips(self, step: int) -> bool:
        return step == self.step


@dataclass(frozen=True)
class ExtraCall(AtStep):
    kind: ClassVar[str] = "extra-collective"
    summary: ClassVar[str] = "calls one collective that no other rank calls"
    needs: ClassVar[Capability | None] = Capability.COLLECTIVES
    call: str = key(read_choice("all_reduce", "broadcast"), "all_reduce", "which collective")

    def happen(self, job: Planted) -> None:
        import torch
        import torch.distributed as dist

        metric = torch.ones(1, device=next(job.model.parameters()).device)
        if self.call == "broadcast":
            dist.broadcast(metric, src=dist.get_rank())
        else:
            dist.all_reduce(metric)


@dataclass(frozen=True)
class Hog(AtStep):
    """From a step on, other processes compute on the core of a rank, which cannot move."""

    kind: ClassVar[str] = "hog"
    summary: ClassVar[str] = "shares its only core with other computing processes from that step on"
    needs: ClassVar[Capability | None] = Capability.RANKS_MEET
    processes: int = key(read_positive, 1, "how many of them")

    def __post_init__(self) -> None:
        if self.processes > MOST_HOGS:
            raise SpecError(f"hog takes {MOST_HOGS} processes at most")

    def happen(self, job: Planted) -> None:
        cores = sorted(os.sched_getaffinity(0))
        pin_threads(cores[job.rank % len(cores)])
        spin = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(1000000))"
        for _ in range(self.processes):
            subprocess.Popen([sys.executable, "-S", "-c", spin], env={})


def pin_threads(core: int) -> None:
    """Keeps all threads of this process, a framework's included, to one core."""
    pinned = set[int]()
    while new := {int(name) for name in os.listdir("/proc/self/task")} - pinned:
        for thread in new:
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, {core})
        pinned |= new


@dataclass(frozen=True)
class HeavyStage(Fault):
    """Planted where the model is divided; see `faults.find_heavy_stage`."""

    kind: ClassVar[str] = "heavy-stage"
    summary: ClassVar[str] = "has all blocks of the model but one of each other stage"
    needs: ClassVar[Capability | None] = Capability.PIPELINE
    of_one_rank: ClassVar[bool] = True


@dataclass(frozen=True)
class Missing(Fault):
    kind: ClassVar[str] = "missing"
    summary: ClassVar[str] = "is started and never joins the others"
    needs: ClassVar[Capability | None] = Capability.RENDEZVOUS
    of_one_rank: ClassVar[bool] = True

    def join(self) -> None:
        while True:
            time.sleep(1.0)
