"""Faults in what surrounds a rank: who computes beside it, which part of the model it was given,
whether it comes at all. Imports no framework."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mgpu_trainers import specs
from mgpu_trainers.discord import IN_STEP
from mgpu_trainers.fault import Fault
from mgpu_trainers.mishaps import AtStep
from mgpu_trainers.specs import SpecError, key

if TYPE_CHECKING:
    from mgpu_trainers.faults import Planted

_RANKS = (*IN_STEP, "torch-localsgd", "torch-diloco", "tf-multiworker")
"""Trainers each of whose ranks is a process that meets the others."""
_MOST_HOGS = 64
_STARTED = tuple(name for name in _RANKS if name != "ray-torch")


@dataclass(frozen=True)
class Hog(AtStep):
    """From a step on, `processes` others compute on the core of a rank, which cannot move."""

    kind: ClassVar[str] = "hog"
    only: ClassVar[tuple[str, ...]] = _RANKS
    processes: int = key(specs.positive, 1)

    def __post_init__(self) -> None:
        if self.processes > _MOST_HOGS:
            raise SpecError(f"hog takes {_MOST_HOGS} processes at most")

    def happen(self, job: "Planted") -> None:
        cores = sorted(os.sched_getaffinity(0))
        _keep_to(cores[job.rank % len(cores)])
        spin = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(1000000))"
        for _ in range(self.processes):
            subprocess.Popen([sys.executable, "-S", "-c", spin], env={})


def _keep_to(core: int) -> None:
    """All threads of this process, and those that they start: a framework's own may compute."""
    kept = set[int]()
    while new := {int(name) for name in os.listdir("/proc/self/task")} - kept:
        for thread in new:
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, {core})
        kept |= new


@dataclass(frozen=True)
class Missing(Fault):
    """A rank never comes: it is started and waits for something else than the others."""

    kind: ClassVar[str] = "missing"
    only: ClassVar[tuple[str, ...]] = _STARTED

    def join(self) -> None:
        while True:
            time.sleep(1.0)


@dataclass(frozen=True)
class HeavyStage(Fault):
    """A pipeline's rank has all the layers but one of each other."""

    kind: ClassVar[str] = "heavy-stage"
    only: ClassVar[tuple[str, ...]] = ("torch-pp",)
