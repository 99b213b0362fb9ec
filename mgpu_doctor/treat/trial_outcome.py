"""The trials of one treatment so far, and what they showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mgpu_doctor.advice.treatment import Value
from mgpu_doctor.analysis.trials.memory_effect import MemoryChange
from mgpu_doctor.analysis.trials.paired_effect import Saving
from mgpu_doctor.analysis.trials.trial_run import TrialRun
from mgpu_doctor.analysis.trials.trial_verdict import LossChange, Verdict
from mgpu_doctor.treat.trial_runner import TrialFailure


@dataclass(frozen=True, slots=True)
class Outcome:
    """What trials of a treatment, or of several together, showed."""

    values: Mapping[str, Value]
    verdict: Verdict
    reason: str | None = None
    """Why it could not be measured, a clause."""
    saved: Saving | None = None
    loss: LossChange | None = None
    """None: no loss was seen."""
    memory_bytes: int | None = None
    """Peak memory of the rank with the most; None: unknown."""
    memory: MemoryChange | None = None
    """Memory with and without it; None: unknown, or it was switched within its runs."""
    by_memory: bool = False
    """Whether the verdict is about memory, not about the step time."""
    sites: tuple[str, ...] = ()
    """The script's lines whose calls were changed, as `file:line`."""
    runs: int = 0
    switched: bool = False
    """Whether it was switched on and off within its runs."""

    @property
    def decisive(self) -> Saving | None:
        """What the verdict is about: the memory or the step time that is saved; None: unknown."""
        if self.by_memory:
            return self.memory.saved if self.memory is not None else None
        return self.saved

    @property
    def gain(self) -> float:
        """The share of it that is saved, 0 if that is unknown."""
        return self.decisive.share if self.decisive is not None else 0.0


@dataclass(slots=True)
class Tried:
    """The trials of one treatment so far."""

    values: Mapping[str, Value]
    blocks: list[tuple[TrialRun, TrialRun, TrialRun, TrialRun]] = field(default_factory=list)
    switched: list[TrialRun] = field(default_factory=list)
    """Runs in which it was switched on and off, in inverse order in the second one."""
    block: int = 0
    """Steps per block of these runs."""
    failure: TrialFailure | None = None
    unfinished: str = ""
    """Why there are not more trials, a clause; empty: there may be more."""
    sites: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Blocks, or runs in which it was switched."""
        return len(self.switched) or len(self.blocks)

    @property
    def treated(self) -> list[TrialRun]:
        return [run for block in self.blocks for run in block[1:3]]
