"""Faults that make a rank slow, in every step or now and then. Imports no framework."""

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mgpu_trainers.capabilities import PHASES, Capability
from mgpu_trainers.fault_spec import (
    ALL,
    SpecError,
    key,
    read_choice,
    read_factor,
    read_number,
    read_positive,
    read_rank,
)
from mgpu_trainers.planting import DelayFault, Fault, Planted

if TYPE_CHECKING:
    import torch
    from torch import nn

BETWEEN_STEPS = "other"
"""The phase of time between steps."""
LEARNING_PHASES = ("input", "forward", "backward")
"""Phases that a parameter server does not have."""


@dataclass(frozen=True)
class Slow(DelayFault):
    """One phase of a rank's steps takes longer."""

    kind: ClassVar[str] = "slow"
    summary: ClassVar[str] = "takes longer for one phase of its steps"
    phase: str = key(read_choice(*PHASES, BETWEEN_STEPS), "forward", "phase that takes longer")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor is not None and self.phase == BETWEEN_STEPS:
            raise SpecError("phase=other takes ms=, as it has next to no time of its own")

    @property
    def slow_phase(self) -> str | None:
        return self.phase

    @property
    def is_inside_step(self) -> bool:
        return self.phase not in ("input", BETWEEN_STEPS)

    @property
    def is_in_batches(self) -> bool:
        return self.phase in LEARNING_PHASES

    def attach(self, job: Planted) -> None:
        if self.phase == "forward":
            delay = DelayBetweenHooks(self, job)
            job.model.register_forward_pre_hook(delay.begin)
            # Before what a wrapper does when its module returns.
            job.model.register_forward_hook(delay.end, prepend=True)
        elif self.phase == "optimizer":
            delay = DelayBetweenHooks(self, job)
            job.optimizer.register_step_pre_hook(delay.begin)
            job.optimizer.register_step_post_hook(delay.end)
        elif self.phase == "backward":
            BackwardDelay(self, job)

    def begin(self, job: Planted) -> None:
        if self.phase == BETWEEN_STEPS and self.is_due(job.step):
            self.spend(0.0)


@dataclass(frozen=True)
class SlowLoader(DelayFault):
    """Batches come late: `slow:phase=input`, on all ranks unless one is named."""

    kind: ClassVar[str] = "slow-loader"
    summary: ClassVar[str] = "gets its batches late"
    learns: ClassVar[bool] = True
    rank: int = key(read_rank, ALL, "rank that has it; all: every rank")

    @property
    def slow_phase(self) -> str | None:
        return "input"


@dataclass(frozen=True)
class Stall(Fault):
    """A rank stops between two steps every so often."""

    kind: ClassVar[str] = "stall"
    summary: ClassVar[str] = "stops between two steps every so often"
    ms: float = key(read_number, 400.0, "time that it stops", unit="ms")
    every: int = key(read_positive, 20, "distance of stalls", unit="steps")
    start: int = key(read_positive, 20, "first step that begins with a stall", name="from")
    how: str = key(
        read_choice("sleep", "gc", "save"),
        "sleep",
        "sleep, garbage collection, or writing checkpoints",
        name="kind",
    )

    @property
    def requirement(self) -> Capability | None:
        return Capability.SAVING_STALLS if self.how == "save" else None

    def attach(self, job: Planted) -> None:
        super().attach(job)
        if self.how == "gc":
            Heap.grow(self.ms / 1000)

    def begin(self, job: Planted) -> None:
        if job.step < self.start or (job.step - self.start) % self.every:
            return
        if self.how == "sleep":
            time.sleep(self.ms / 1000)
        elif self.how == "gc":
            gc.collect()
        else:
            self.save(job)

    def save(self, job: Planted) -> None:
        """Writes one checkpoint over the other until the time is over."""
        import torch

        end = time.perf_counter() + self.ms / 1000
        with tempfile.TemporaryFile() as file:
            while time.perf_counter() < end:
                file.seek(0)
                torch.save(job.model.state_dict(), file)


@dataclass(frozen=True)
class Uneven(Fault):
    """A rank takes `factor` times as many samples at once as the others."""

    kind: ClassVar[str] = "uneven"
    summary: ClassVar[str] = "takes `factor` times as many samples at once"
    learns: ClassVar[bool] = True
    factor: float = key(read_factor, 2.0, "multiple of the other ranks' batch")

    def batch(self, size: int) -> int:
        return round(size * self.factor)


class Heap:
    """Small objects, kept while the process lives, that the garbage collector must visit."""

    kept: ClassVar[list[list[int]]] = []
    FIRST: ClassVar[int] = 100_000
    """Objects of the first round."""

    @classmethod
    def grow(cls, seconds: float) -> None:
        """Adds objects until a full collection takes that long."""
        count, took = cls.FIRST, 0.0
        while took < seconds:
            cls.kept += [[number] for number in range(count)]
            began = time.perf_counter()
            gc.collect()
            took = time.perf_counter() - began
            count = int(len(cls.kept) * min(1.0, max(0.1, seconds / took - 1)))


class DelayBetweenHooks:
    """Delays the second of two hooks."""

    def __init__(self, fault: DelayFault, job: Planted) -> None:
        self.fault = fault
        self.job = job
        self.began = 0.0

    def begin(self, *_: object) -> None:
        self.began = time.perf_counter()

    def end(self, *_: object) -> None:
        if self.job.training and self.fault.is_due(self.job.step):
            self.fault.spend(time.perf_counter() - self.began)


class BackwardDelay:
    """Delays backward in the middle of the model, before the last gradients are sent.

    A rank's own part of backward ends when the parameters used first have their gradients; what
    follows waits for other ranks. So a factor multiplies the own part of the previous backward.
    """

    def __init__(self, fault: DelayFault, job: Planted) -> None:
        self.fault = fault
        self.job = job
        self.began = self.ended = self.own = self.added = 0.0
        blocks = list(job.model.get_submodule("blocks").children())
        job.model.register_forward_hook(self._on_gradient(self.begin))
        blocks[len(blocks) // 2].register_forward_hook(self._on_gradient(self.middle))
        for parameter in list(job.model.parameters())[:4]:
            parameter.register_post_accumulate_grad_hook(self.end)

    @staticmethod
    def _on_gradient(hook: Callable[["torch.Tensor"], None]) -> Callable[..., None]:
        def after_forward(_module: "nn.Module", _inputs: object, output: "torch.Tensor") -> None:
            if output.requires_grad:
                output.register_hook(hook)

        return after_forward

    def begin(self, _gradient: "torch.Tensor") -> None:
        self.own = max(0.0, self.ended - self.began - self.added)
        self.began, self.added = time.perf_counter(), 0.0

    def middle(self, _gradient: "torch.Tensor") -> None:
        if self.fault.is_due(self.job.step):
            self.added = self.fault.spend(self.own)

    def end(self, _parameter: "torch.Tensor") -> None:
        self.ended = time.perf_counter()
