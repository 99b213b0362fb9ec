"""Findings and the diagnosis: what rules produce and views show. Frozen, JSON-shaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.case.device_times import BoundBy, RunAhead
from mgpu_doctor.case.model import Case, Unexamined
from mgpu_doctor.case.process_metadata import PhaseClock


class Severity(str, Enum):
    """critical: the job is stopped, failing or about to. warning: it costs at least 5 % of total
    time, memory will run out, or training or hardware is defective. info: worth knowing."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Culprit:
    rank: int | None
    host: str | None = None
    device: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseExcess:
    """Evidence of how much longer a phase of the step takes on a rank than on its peers."""

    rank: int
    phase: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured fact. `value` and `baseline` share `unit` (SI, or a word such as "steps")."""

    measure: str
    value: float | int | str | None
    unit: str
    baseline: float | int | str | None = None
    source: str = ""
    where: str | None = None
    excess: PhaseExcess | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the finding costs; None: unknown. `step_fraction` is the share of step time (0..1)
    that mending it would save."""

    step_fraction: float | None = None
    seconds_per_step: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a fix is expected to do. `step_time_ratio`: step time after / before."""

    step_time_ratio: float | None
    memory_bytes: int | None
    basis: str
    """measured what-if, formula or simulation, and its margin."""


@dataclass(frozen=True, slots=True)
class Fix:
    """`summary` is one line; `how` says what to type or change for the framework at hand."""

    id: str
    summary: str
    how: str
    predicted: Predicted | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    severity: Severity
    confidence: float
    title: str
    cause: str
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    since_step: int | None = None
    cost: Cost = Cost()
    fixes: tuple[Fix, ...] = ()
    replaces: tuple[str, ...] = ()
    """Codes that this finding makes redundant for its culprits, beside those that its rule always
    does: only where it explains them."""
    gives_way: bool = False
    """It rests on console text: any critical finding of another source about the same culprits
    makes it redundant."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A finding and when it was seen. Seconds since the epoch."""

    finding: Finding
    """As it was last seen."""
    appeared: float
    resolved: float | None = None
    """When it was first not seen any more; None: it is there."""

    @property
    def is_open(self) -> bool:
        """Whether it is still there."""
        return self.resolved is None


@dataclass(frozen=True, slots=True)
class BusyWaiting:
    """A GPU that counts as busy while its rank waits for other ranks."""

    gpu: int
    """NVML's index, on the rank's host."""
    utilization: float
    """Mean share, 0..1, of the time in which any kernel ran."""
    waiting: float
    """Share, 0..1, of this time that was waiting, at least."""
    waits_for: int | None
    """The rank that most of the waiting is for; None: nobody was named."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """A rank as the diagnosis shows it. `phases`: median seconds a step, after `wait` was split
    into `wait` and `communication` by comparing ranks; None: not measured."""

    rank: int | None
    host: str
    pid: int | None
    device: str | None
    state: str
    exit_code: int | None
    signal: int | None
    last_step: int | None
    step_seconds_median: float | None
    phases: Mapping[str, float | None]
    where: str | None
    clock: PhaseClock | None = None
    """What measured the phases; `HOST`: nothing that shows them. None: no step was recorded."""
    run_ahead: RunAhead | None = None
    """How far its host was ahead of its device; None: unknown, or it computes on the CPU."""
    bound_by: BoundBy | None = None
    """Whether it is host-bound or device-bound; None: the same."""
    busy_waiting: BusyWaiting | None = None
    """None: not known, or hardly any waiting."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What the stacks of some ranks have in common, until they part."""

    depth: int
    """Branches between it and the root."""
    ranks: tuple[int, ...]
    processes: int
    """Those of which the rank is not known are counted, too."""
    calls: tuple[str, ...]
    """`main train.py:87`, outermost first."""
    doing: str | None
    """What they do where it ends; None where it parts: `collective`, `lock`, `loader`, …"""
    operation: str | None
    """`all_reduce` of a collective, the system call of a wait."""
    culprit: bool
    """All of them are a finding's culprits."""


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """A rank that failed first, or in the same event as the first."""

    rank: int | None
    pid: int | None
    at: float | None
    """When it had failed at the latest, in seconds since the epoch. None: its own error says when,
    or it is unknown."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer. `findings` are ordered: what stops the job first, then what costs most."""

    case: Case
    ranks: tuple[RankSummary, ...]
    coverage: float | None
    coverage_reason: str | None
    """Why coverage is None."""
    findings: tuple[Finding, ...]
    unexamined: tuple[Unexamined, ...]
    step_seconds: float | None = None
    """Mean seconds a step of the whole job."""
    ideal_step_seconds: float | None = None
    """The same if every rank always worked like the median rank; None: they cannot be compared."""
    waste_fraction: float | None = None
    """Share of the time, 0..1, that goes into waiting for whoever is slowest, jitter included."""
    load_balance: float | None = None
    """Mean own work of the ranks as a share of the most that any has, 0..1."""
    communication_efficiency: float | None = None
    """The most own work of any rank as a share of the time, 0..1."""
    efficiency_reason: str | None = None
    """Why these two are None."""
    stages: tuple[tuple[int, ...], ...] = ()
    """The ranks of each pipeline stage; empty where all ranks do the same."""
    servers: frozenset[int] = frozenset()
    """Ranks that only serve parameters: their steps are others' updates."""
    tree: tuple[Branch, ...] = ()
    """Where all ranks stood at the last look: their stacks as one tree, from its root on, each
    branch before those that grow from it."""
    first_failures: tuple[FirstFailure, ...] = ()
    """Which ranks failed first; empty if none did or the order is unknown."""

    @property
    def latest_ends(self) -> Mapping[tuple[int | None, int | None], float]:
        """(rank, pid) of the first failing ranks that left no error of their own -> when they had
        failed at the latest, in seconds since the epoch."""
        return {
            (failure.rank, failure.pid): failure.at
            for failure in self.first_failures
            if failure.at is not None
        }

    @property
    def furthest_step(self) -> int | None:
        """The last step of whoever trains and has come furthest."""
        trained = (rank.last_step for rank in self.ranks if rank.rank not in self.servers)
        return max((step for step in trained if step is not None), default=None)

    @property
    def parallel_efficiency(self) -> float | None:
        """Share of the ranks' time, 0..1, that they work instead of standing in collectives."""
        if self.load_balance is None or self.communication_efficiency is None:
            return None
        return self.load_balance * self.communication_efficiency
