"""The base classes of planted faults, and the faults of one rank while it trains.

A fault sits where a real one would: in the fetch of a batch, in a hook inside the model, inside the
optimizer's step. Without faults, nothing is attached and nothing costs time. Imports no
framework.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_trainers.capabilities import Capability
from mgpu_trainers.fault_spec import (
    ALL,
    SpecError,
    format_fault,
    key,
    read_factor,
    read_flag,
    read_number,
    read_positive,
    read_rank,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Fault:
    """One fault; the methods say where it takes hold, by default nowhere.

    `summary` completes the sentence "a rank with this fault …". The class variables and properties
    say what the fault is, so that `faults.check_faults` can say in which trainers it is impossible.
    """

    kind: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[Capability | None] = None
    """What a trainer must have for any fault of the kind."""
    of_one_rank: ClassVar[bool] = False
    """Whether `rank=all` makes no sense."""
    learns: ClassVar[bool] = False
    """Whether it sits where batches are learned from, which a parameter server does not do."""
    rank: int = key(read_rank, 1, "rank that has it; all: every rank")

    def __str__(self) -> str:
        return format_fault(self)

    @property
    def requirement(self) -> Capability | None:
        """What a trainer must have for this very fault."""
        return self.needs

    @property
    def is_in_batches(self) -> bool:
        """Whether this very fault sits where batches are learned from."""
        return self.learns

    @property
    def slow_phase(self) -> str | None:
        """The phase of a step that takes longer."""
        return None

    @property
    def is_inside_step(self) -> bool:
        """Whether it changes what happens inside a step."""
        return False

    def join(self) -> None:
        """Called before the rank joins the others."""

    def batch(self, size: int) -> int:
        """The rank's own batch size, where `size` is everybody's."""
        return size

    def part(self, part: int) -> int:
        """The part of the data that the rank takes, where `own` is the one it should take."""
        return part

    def skips(self, step: int) -> bool:
        """Whether the rank leaves out that step."""
        assert step > 0
        return False

    def attach(self, job: "Planted") -> None:
        """Puts hooks into the rank's model and optimizer."""

    def begin(self, job: "Planted") -> None:
        """Called before the rank begins step `job.step`; the first is 1."""


@dataclass(frozen=True)
class DelayFault(Fault):
    """Something takes `ms` longer, or `factor` times as long as by itself."""

    ms: float | None = key(read_number, None, "time added each time the phase runs", unit="ms")
    factor: float | None = key(read_factor, None, "multiple of the phase's own time")
    burn: bool = key(read_flag, False, "0: the added time is slept; 1: it is computed")
    start: int = key(read_positive, 1, "first slow step", name="from")
    every: int = key(read_positive, 1, "distance of slow steps", unit="steps")

    def __post_init__(self) -> None:
        if (self.ms is None) == (self.factor is None):
            raise SpecError(f"{self.kind} takes either ms= or factor=")

    def is_due(self, step: int) -> bool:
        """Whether that step is slow."""
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


class Planted:
    """The faults of one rank; without faults, every method costs next to nothing."""

    model: "nn.Module"
    optimizer: "torch.optim.Optimizer"

    def __init__(self, faults: Iterable[Fault], rank: int) -> None:
        self.faults = tuple(fault for fault in faults if fault.rank in (rank, ALL))
        self.rank = rank
        self.step = 0
        self.training = True

    def join(self) -> None:
        """Called before the rank joins the others."""
        for fault in self.faults:
            fault.join()

    def batch(self, size: int) -> int:
        """The rank's own batch size, where `size` is everybody's."""
        for fault in self.faults:
            size = fault.batch(size)
        return size

    def share(self, part: int, parts: int) -> tuple[int, int]:
        """Which part of the data the rank takes, and how many parts there are."""
        for fault in self.faults:
            part = fault.part(part)
        return part, parts

    def find_slow(self, phase: str) -> list[DelayFault]:
        """The faults that make this phase of a step longer."""
        return [
            fault
            for fault in self.faults
            if isinstance(fault, DelayFault) and fault.slow_phase == phase
        ]

    def fetch(self, dataset: Any, collate: Collate) -> tuple[Any, Collate]:
        """The dataset and the collate function for the rank's training loader."""
        slow = self.find_slow("input")
        return (SlowDataset(dataset, collate, slow), keep_batch) if slow else (dataset, collate)

    def attach(self, model: "nn.Module", optimizer: "torch.optim.Optimizer") -> None:
        """Plants faults in the user's own model, inside any wrapper, and in the optimizer."""
        self.model, self.optimizer = model, optimizer
        for fault in self.faults:
            fault.attach(self)

    def begin(self, step: int) -> None:
        """Called as a step begins, before its batch is fetched; the first is 1."""
        self.step = step
        for fault in self.faults:
            fault.begin(self)

    def steps(self, planned: Iterable[int]) -> Iterator[int]:
        """The steps that the rank takes, each as it begins."""
        for step in planned:
            self.begin(step)
            if not any(fault.skips(step) for fault in self.faults):
                yield step

    def end(self) -> None:
        """Training is over; validation is spared."""
        self.training = False


class SlowDataset:
    """A dataset whose batches come late, in the loader's workers if it has some.

    Steps are counted as batches made here, by each worker for itself.
    """

    def __init__(self, dataset: Any, collate: Collate, faults: Sequence[DelayFault]) -> None:
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
            if fault.is_due(self.batches):
                fault.spend(natural)
        return batch


def keep_batch(batch: Any) -> Any:
    """The collate function for whole batches; a function, as workers pickle it."""
    return batch
