"""Faults that make a rank slow: in every step, or now and then. Imports no framework."""

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_trainers import specs
from mgpu_trainers.fault import Fault
from mgpu_trainers.heap import Heap
from mgpu_trainers.specs import ALL, SpecError, key

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mgpu_trainers.faults import Planted

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Late(Fault):
    """Something takes `ms` longer, or `factor` times as long as by itself.

    The time is slept, or computed with `burn=1`; from step `from` on, each `every`-th step.
    """

    ms: float | None = key(specs.number, None)
    factor: float | None = key(specs.factor, None)
    burn: bool = key(specs.flag, False)
    start: int = key(specs.positive, 1, "from")
    every: int = key(specs.positive, 1)

    def __post_init__(self) -> None:
        if (self.ms is None) == (self.factor is None):
            raise SpecError(f"{self.kind} takes either ms= or factor=")

    def due(self, step: int) -> bool:
        return step >= self.start and (step - self.start) % self.every == 0

    def spend(self, natural: float) -> float:
        """Adds to what took `natural` seconds by itself; the seconds added."""
        extra = self.ms / 1000 if self.ms is not None else natural * ((self.factor or 1) - 1)
        end = time.perf_counter() + extra
        if not self.burn:
            time.sleep(extra)
        while time.perf_counter() < end:
            sum(range(1000))
        return extra


@dataclass(frozen=True)
class Slow(Late):
    """One phase of a rank's steps takes longer."""

    kind: ClassVar[str] = "slow"
    phase: str = key(specs.one_of("input", "forward", "backward", "optimizer", "other"), "forward")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor is not None and self.phase == "other":
            raise SpecError("phase=other takes ms=, as it has next to no time of its own")

    def attach(self, job: "Planted") -> None:
        if self.phase == "forward":
            phase = Stretch(self, job)
            job.model.register_forward_pre_hook(phase.begin)
            # Before what a wrapper does when its module returns.
            job.model.register_forward_hook(phase.end, prepend=True)
        elif self.phase == "optimizer":
            phase = Stretch(self, job)
            job.optimizer.register_step_pre_hook(phase.begin)
            job.optimizer.register_step_post_hook(phase.end)
        elif self.phase == "backward":
            StretchedBackward(self, job)

    def begin(self, job: "Planted") -> None:
        if self.phase == "other" and self.due(job.step):
            self.spend(0.0)


@dataclass(frozen=True)
class SlowLoader(Late):
    """Batches come late: `slow:phase=input`, of all ranks unless one is named."""

    kind: ClassVar[str] = "slow-loader"
    rank: int = key(specs.rank, ALL)


@dataclass(frozen=True)
class Stall(Fault):
    """A rank stops between two steps every so often, for `ms` milliseconds."""

    kind: ClassVar[str] = "stall"
    ms: float = key(specs.number, 400.0)
    every: int = key(specs.positive, 20)
    start: int = key(specs.positive, 20, "from")
    how: str = key(specs.one_of("sleep", "gc", "save"), "sleep", "kind")

    def attach(self, job: "Planted") -> None:
        super().attach(job)
        if self.how == "gc":
            Heap.grow(self.ms / 1000)

    def begin(self, job: "Planted") -> None:
        if job.step >= self.start and (job.step - self.start) % self.every == 0:
            {"sleep": self.sleep, "gc": self.collect, "save": self.save}[self.how](job)

    def sleep(self, _job: "Planted") -> None:
        time.sleep(self.ms / 1000)

    def collect(self, _job: "Planted") -> None:
        gc.collect()

    def save(self, job: "Planted") -> None:
        """One checkpoint after the other, each over the one before."""
        import torch

        end = time.perf_counter() + self.ms / 1000
        with tempfile.TemporaryFile() as file:
            while time.perf_counter() < end:
                file.seek(0)
                torch.save(job.model.state_dict(), file)


class Stretch:
    """Lengthens what lies between two hooks."""

    def __init__(self, fault: Late, job: "Planted") -> None:
        self.fault = fault
        self.job = job
        self.began = 0.0

    def begin(self, *_: object) -> None:
        self.began = time.perf_counter()

    def end(self, *_: object) -> None:
        if self.job.training and self.fault.due(self.job.step):
            self.fault.spend(time.perf_counter() - self.began)


class StretchedBackward:
    """Delays backward in the middle of the model, before the last gradients are sent.

    A rank's own part of backward ends when the parameters used first have their gradients; what
    follows waits for others. So a factor goes by the own part of the backward before.
    """

    def __init__(self, fault: Late, job: "Planted") -> None:
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
        if self.fault.due(self.job.step):
            self.added = self.fault.spend(self.own)

    def end(self, _parameter: "torch.Tensor") -> None:
        self.ended = time.perf_counter()


class LateFetch:
    """A dataset whose batches come late, in the loader's workers where it has some.

    Steps are counted as batches made here, by each worker for itself.
    """

    def __init__(self, dataset: Any, collate: Collate, faults: Sequence[Late]) -> None:
        self.dataset = dataset
        self.collate = collate
        self.faults = faults
        self.batches = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        self.batches += 1
        began = time.perf_counter()
        batch = self.collate([self.dataset[index] for index in indices])
        natural = time.perf_counter() - began
        for fault in self.faults:
            if fault.due(self.batches):
                fault.spend(natural)
        return batch
