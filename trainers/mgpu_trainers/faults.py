"""Faults to plant in a trainer on purpose, so that a doctor has something to find.

One class a kind, a few lines each; `docs/faults.md` shows every one with its command. A fault
sits where a real one would: in the fetch of a batch, in a hook inside the model, inside the
optimizer's step. Where none is asked for, nothing is attached and nothing is paid.
Imports no framework.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_trainers import specs
from mgpu_trainers.specs import ALL, SpecError, key

if TYPE_CHECKING:
    import torch
    from torch import nn

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Fault:
    """What one planted fault is; the methods say where it takes hold, by default nowhere."""

    kind: ClassVar[str]
    rank: int = key(specs.rank, 1)

    def __str__(self) -> str:
        return specs.write(self)

    def batch(self, size: int) -> int:
        """The rank's own batch size, where `size` is everybody's."""
        return size

    def attach(self, job: "Planted") -> None:
        """Puts hooks into the rank's model and optimizer."""

    def begin(self, job: "Planted") -> None:
        """The rank is about to begin step `job.step`; the first is 1."""


# ----------------------------------------------------------------------------- what is slow


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
            job.model.register_forward_hook(phase.end)
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


# --------------------------------------------------------------------- what is otherwise wrong


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
            self.happen()

    def happen(self) -> None:
        """What happens then."""


@dataclass(frozen=True)
class Hang(AtStep):
    """A rank goes round in its own code and never reaches the next collective."""

    kind: ClassVar[str] = "hang"

    def happen(self) -> None:
        while True:
            time.sleep(0.01)


@dataclass(frozen=True)
class Kill(AtStep):
    """A rank gets a signal, as from the kernel's out-of-memory killer or a broken library."""

    kind: ClassVar[str] = "kill"
    signal: str = key(specs.signal_name, "KILL")

    def happen(self) -> None:
        os.kill(os.getpid(), signal.Signals[f"SIG{self.signal}"])


@dataclass(frozen=True)
class Raise(AtStep):
    """A rank raises an exception that nobody catches."""

    kind: ClassVar[str] = "exception"

    def happen(self) -> None:
        raise RuntimeError(f"planted exception at step {self.step}")


@dataclass(frozen=True)
class Exit(AtStep):
    """A rank leaves by `sys.exit(code)`."""

    kind: ClassVar[str] = "exit"
    code: int = key(specs.exit_code, 3)

    def happen(self) -> None:
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


# ------------------------------------------------------------------------------------- all

KINDS: dict[str, type[Fault]] = {
    fault.kind: fault for fault in (Slow, SlowLoader, Uneven, Leak, Hang, Kill, Raise, Exit, Nan)
}


def parse(texts: Iterable[str], ranks: int) -> tuple[Fault, ...]:
    """The faults that the texts ask for in a job of so many ranks.

    Raises SpecError for a text that cannot be read, and for a rank that the job does not have.
    """
    found = tuple(fault for text in texts for fault in specs.read(text, KINDS))
    for fault in found:
        if fault.rank >= ranks:
            raise SpecError(
                f"--fault {fault.kind}: there is no rank {fault.rank} among {ranks} "
                f"(the first is 0; rank=all is every rank)"
            )
    return found


class Planted:
    """The faults of one rank of a job; every method is next to free where there are none."""

    model: "nn.Module"
    optimizer: "torch.optim.Optimizer"

    def __init__(self, faults: Iterable[Fault], rank: int) -> None:
        self.faults = tuple(fault for fault in faults if fault.rank in (rank, ALL))
        self.step = 0
        self.training = True

    def batch(self, size: int) -> int:
        for fault in self.faults:
            size = fault.batch(size)
        return size

    def fetch(self, dataset: Any, collate: Collate) -> tuple[Any, Collate]:
        """The dataset and the collate function that the rank's training loader shall have."""
        late = [
            fault
            for fault in self.faults
            if isinstance(fault, SlowLoader) or (isinstance(fault, Slow) and fault.phase == "input")
        ]
        return (LateFetch(dataset, collate, late), as_it_is) if late else (dataset, collate)

    def attach(self, model: "nn.Module", optimizer: "torch.optim.Optimizer") -> None:
        """Takes the user's own model, inside any wrapper, and the optimizer."""
        self.model, self.optimizer = model, optimizer
        for fault in self.faults:
            fault.attach(self)

    def begin(self, step: int) -> None:
        """Called as a step begins, before its batch is fetched; the first is 1."""
        self.step = step
        for fault in self.faults:
            fault.begin(self)

    def end(self) -> None:
        """Training is over: what follows is spared."""
        self.training = False


def as_it_is(batch: Any) -> Any:
    return batch
