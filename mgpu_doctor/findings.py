"""Findings and the diagnosis: what rules produce and views show. Frozen, JSON-shaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mgpu_probes.inprocess.training_objects import UnseenWaits

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
    that fixing it would save."""

    step_fraction: float | None = None
    seconds_per_step: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a fix is expected to do. `step_time_ratio`: step time after / before."""

    step_time_ratio: float | None
    memory_bytes: int | None
    basis: str
    """Measured what-if, formula or simulation, and its margin."""


@dataclass(frozen=True, slots=True)
class Fix:
    """`summary` is one line; `how` says what to type or change in the job's framework."""

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
    ruled_out: tuple[str, ...] = ()
    """Causes that were measured and explain too little."""
    not_measured: tuple[str, ...] = ()
    """Causes that could not be examined."""
    replaces: tuple[str, ...] = ()
    """Codes that this finding makes redundant for its culprits because it explains them, besides
    those that its rule always makes redundant."""
    gives_way: bool = False
    """Whether it rests on console text alone: any critical finding of another source about the same
    culprits makes it redundant."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A finding and when it was seen. Seconds since the epoch."""

    finding: Finding
    """The finding as last seen."""
    appeared: float
    resolved: float | None = None
    """When it was first absent again; None: it is still present."""

    @property
    def is_open(self) -> bool:
        """Whether it is still present."""
        return self.resolved is None


@dataclass(frozen=True, slots=True)
class BusyWaiting:
    """A GPU that counts as busy while its rank waits for other ranks."""

    gpu: int
    """NVML's index, on the rank's host."""
    utilization: float
    """Mean share, 0..1, of the time in which any kernel ran."""
    waiting: float
    """Least share, 0..1, of this time that was waiting."""
    waits_for: int | None
    """The rank that most of the waiting is for; None: no rank was named."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """A rank as the diagnosis shows it. `phases`: median seconds per step, after `wait` was split
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
    """The clock that measured the phases; `HOST`: nothing measured the device. None: no step."""
    run_ahead: RunAhead | None = None
    """How far its host was ahead of its device; None: unknown, or it computes on the CPU."""
    bound_by: BoundBy | None = None
    """Whether it is host-bound or device-bound; None: unknown, or it computes on the CPU."""
    busy_waiting: BusyWaiting | None = None
    """None: unknown, or hardly any waiting."""
    unseen_waits: UnseenWaits | None = None
    """Why its own work is unknown: the probe does not see all its waits for other ranks."""
    still_seconds: float | None = None
    """How long it has been at one place, by its stacks; None: it moved, or they cannot tell."""


@dataclass(frozen=True, slots=True)
class Branch:
    """The frames that the stacks of some ranks share, up to where they branch."""

    depth: int
    """Branches between it and the root."""
    ranks: tuple[int, ...]
    processes: int
    """The number of processes, including those with an unknown rank."""
    calls: tuple[str, ...]
    """`main train.py:87`, outermost first."""
    doing: str | None
    """What they do at the end (`collective`, `lock`, `loader`, …); None if the stacks branch."""
    operation: str | None
    """`all_reduce` of a collective, the system call of a wait."""
    culprit: bool
    """Whether all of them are a finding's culprits."""


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """A rank that failed first, or in the same event as the first."""

    rank: int | None
    pid: int | None
    at: float | None
    """The latest possible time of its failure, in seconds since the epoch. None: its own error has
    the time, or it is unknown."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis. `findings` are ordered: those that stop the job first, then the costliest."""

    case: Case
    ranks: tuple[RankSummary, ...]
    coverage: float | None
    coverage_reason: str | None
    """Why coverage is None."""
    findings: tuple[Finding, ...]
    unexamined: tuple[Unexamined, ...]
    step_seconds: float | None = None
    """Mean seconds per step of the whole job."""
    ideal_step_seconds: float | None = None
    """The same if every rank always worked like the median rank; None: not comparable."""
    waste_fraction: float | None = None
    """Share of the time, 0..1, spent waiting for the slowest rank of each step, jitter included."""
    load_balance: float | None = None
    """Mean own work of the ranks as a share of the largest of any rank, 0..1."""
    communication_efficiency: float | None = None
    """The largest own work of any rank as a share of the time, 0..1."""
    efficiency_reason: str | None = None
    """Why these two are None."""
    stages: tuple[tuple[int, ...], ...] = ()
    """The ranks of each pipeline stage; empty if all ranks do the same work."""
    servers: frozenset[int] = frozenset()
    """Ranks that only serve parameters: their steps are updates of the other ranks."""
    tree: tuple[Branch, ...] = ()
    """Where all ranks were in the last snapshot: their stacks as one tree, root first, each
    branch before its children."""
    first_failures: tuple[FirstFailure, ...] = ()
    """Which ranks failed first; empty if none did or the order is unknown."""

    @property
    def latest_ends(self) -> Mapping[tuple[int | None, int | None], float]:
        """(rank, pid) of the first failing ranks without an error of their own -> the latest
        possible time of the failure, in seconds since the epoch."""
        return {
            (failure.rank, failure.pid): failure.at
            for failure in self.first_failures
            if failure.at is not None
        }

    @property
    def furthest_step(self) -> int | None:
        """The last step of the training rank that is furthest ahead."""
        trained = (rank.last_step for rank in self.ranks if rank.rank not in self.servers)
        return max((step for step in trained if step is not None), default=None)

    @property
    def parallel_efficiency(self) -> float | None:
        """Share of the ranks' time, 0..1, in which they work instead of waiting in collectives."""
        if self.load_balance is None or self.communication_efficiency is None:
            return None
        return self.load_balance * self.communication_efficiency
