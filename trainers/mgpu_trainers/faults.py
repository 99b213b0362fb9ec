"""Faults to plant in a trainer on purpose, so that a doctor has something to find.

One class a kind, a few lines each; `docs/faults.md` shows every one with its command. A fault
sits where a real one would: in the fetch of a batch, in a hook inside the model, inside the
optimizer's step. Where none is asked for, nothing is attached and nothing is paid.
Imports no framework.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mgpu_trainers import specs
from mgpu_trainers.circumstances import HeavyStage, Hog, Missing
from mgpu_trainers.discord import Diverge, ExtraCall, SameData, SkipStep
from mgpu_trainers.fault import Fault
from mgpu_trainers.mishaps import Exit, Hang, Kill, Leak, Nan, Raise, Uneven
from mgpu_trainers.slowness import Collate, LateFetch, Slow, SlowLoader, Stall
from mgpu_trainers.specs import ALL, SpecError

if TYPE_CHECKING:
    import torch
    from torch import nn

KINDS: dict[str, type[Fault]] = {
    fault.kind: fault
    for fault in (
        *(Slow, SlowLoader, Stall, Uneven, Leak, Hang, Kill, Raise, Exit, Nan),
        *(SameData, Diverge, SkipStep, ExtraCall),
        *(Hog, Missing, HeavyStage),
    )
}

MIXED = {
    "torch-fsdp": ("forward", "backward"),
    "torch-tp": ("forward", "backward"),
    "torch-tp-fsdp": ("forward", "backward"),
    "torch-pp": ("backward",),
    "torch-ps": ("optimizer",),
}
"""Phases in which a rank meets others, or does the work of several micro-batches."""
ALIKE = ("torch-tp", "torch-tp-fsdp", "torch-pp")
"""Trainers in which several ranks work on the same batch."""
SERVED = "torch-ps"
"""The trainer whose rank 0 takes no batches."""


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


def check(planted: Iterable[Fault], trainer: str) -> None:
    """Raises SpecError for a fault that the strategy leaves no place for."""
    for fault in planted:
        if fault.only and trainer not in fault.only:
            raise SpecError(f"--fault {fault.kind} is for {', '.join(fault.only)}, not {trainer}")
        if isinstance(fault, Missing | HeavyStage) and fault.rank == ALL:
            raise SpecError(f"--fault {fault.kind} is of one rank, not of all")
        slow = fault.phase if isinstance(fault, Slow) and fault.factor else None
        if slow in MIXED.get(trainer, ()):
            raise SpecError(
                f"--fault {fault}: in {trainer} this phase is not a rank's own work alone, so "
                "no factor of its own work is known; give ms="
            )
        if isinstance(fault, Uneven) and trainer in ALIKE:
            raise SpecError(
                f"--fault {fault}: in {trainer} ranks work on the same batch, so none can take "
                "more samples than the others"
            )
        if trainer == SERVED and fault.rank == 0 and _of_learners(fault):
            raise SpecError(
                f"--fault {fault}: rank 0 of {trainer} is the server, which takes no batches; name "
                "a worker, from rank=1 on"
            )


def _of_learners(fault: Fault) -> bool:
    """Whether it sits where batches are learned from."""
    if isinstance(fault, Slow):
        return fault.phase in ("input", "forward", "backward")
    return isinstance(fault, Uneven | Leak | Nan | SlowLoader | SameData)


def heavy_stage(planted: Iterable[Fault]) -> int | None:
    """The stage of a pipeline that has most of the layers; None: they are divided evenly."""
    return next((fault.rank for fault in planted if isinstance(fault, HeavyStage)), None)


class Planted:
    """The faults of one rank of a job; every method is next to free where there are none."""

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
        for fault in self.faults:
            size = fault.batch(size)
        return size

    def share(self, part: int, parts: int) -> tuple[int, int]:
        """Which part of the data the rank takes, and how many parts there are."""
        for fault in self.faults:
            part = fault.part(part)
        return part, parts

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

    def steps(self, planned: Iterable[int]) -> Iterator[int]:
        """Those that the rank takes, each as it begins."""
        for step in planned:
            self.begin(step)
            if not any(fault.skips(step) for fault in self.faults):
                yield step

    def end(self) -> None:
        """Training is over: what follows is spared."""
        self.training = False


def as_it_is(batch: Any) -> Any:
    return batch
