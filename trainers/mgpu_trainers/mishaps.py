"""Faults other than slowness: unequal work, leaks, and what ends a rank. Imports no framework."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mgpu_trainers import specs
from mgpu_trainers.fault import Fault
from mgpu_trainers.specs import key

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mgpu_trainers.faults import Planted


@dataclass(frozen=True)
class Uneven(Fault):
    """A rank takes `factor` times as many samples at once as the others."""

    kind: ClassVar[str] = "uneven"
    factor: float = key(specs.factor, 2.0)

    def batch(self, size: int) -> int:
        return round(size * self.factor)


@dataclass(frozen=True)
class Leak(Fault):
    """A rank keeps `mb` megabytes (of 2**20 bytes) more on its device with each forward."""

    kind: ClassVar[str] = "leak"
    mb: float = key(specs.number, 1.0)

    def attach(self, job: "Planted") -> None:
        kept: list[torch.Tensor] = []

        def keep(_module: "nn.Module", _inputs: object, output: "torch.Tensor") -> None:
            if job.training:
                kept.append(output.new_ones(int(self.mb * 2**20) // output.element_size()))

        job.model.register_forward_hook(keep)


@dataclass(frozen=True)
class AtStep(Fault):
    """Something that happens once, as the rank is about to begin `step`."""

    step: int = key(specs.positive, 10)

    def begin(self, job: "Planted") -> None:
        if job.step == self.step:
            self.happen(job)

    def happen(self, job: "Planted") -> None:
        """What happens then."""


@dataclass(frozen=True)
class Hang(AtStep):
    """A rank goes round in its own code and never reaches the next collective."""

    kind: ClassVar[str] = "hang"

    def happen(self, _job: "Planted") -> None:
        while True:
            time.sleep(0.01)


@dataclass(frozen=True)
class Kill(AtStep):
    """A rank gets a signal, as from the kernel's out-of-memory killer or a broken library."""

    kind: ClassVar[str] = "kill"
    signal: str = key(specs.signal_name, "KILL")

    def happen(self, _job: "Planted") -> None:
        os.kill(os.getpid(), signal.Signals[f"SIG{self.signal}"])


@dataclass(frozen=True)
class Raise(AtStep):
    """A rank raises an exception that nobody catches."""

    kind: ClassVar[str] = "exception"

    def happen(self, _job: "Planted") -> None:
        raise RuntimeError(f"planted exception at step {self.step}")


@dataclass(frozen=True)
class Exit(AtStep):
    """A rank leaves by `sys.exit(code)`."""

    kind: ClassVar[str] = "exit"
    code: int = key(specs.exit_code, 3)

    def happen(self, _job: "Planted") -> None:
        sys.exit(self.code)


@dataclass(frozen=True)
class Nan(AtStep):
    """A rank's gradients are no numbers in one step, and with them everybody's weights."""

    kind: ClassVar[str] = "nan"

    def attach(self, job: "Planted") -> None:
        def poison(_module: "nn.Module", _inputs: object, output: "torch.Tensor") -> None:
            if job.training and job.step == self.step:
                output.register_hook(lambda gradient: gradient * float("nan"))

        job.model.register_forward_hook(poison)
