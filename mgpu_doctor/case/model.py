"""The facts of one job as frozen dataclasses. No judgement: what is unknown is None.

Times are seconds since the epoch unless a name says otherwise; durations are seconds; memory is
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from mgpu_doctor.recording.device_position import NoPosition

if TYPE_CHECKING:  # what a job's files hold is loaded by who reads them
    import numpy as np
    import numpy.typing as npt

    from mgpu_doctor.case.allocator_snapshots import Snapshot
    from mgpu_doctor.case.device_samples import DeviceSample
    from mgpu_doctor.case.ending_records import Ending
    from mgpu_doctor.case.flight_records import Flight
    from mgpu_doctor.case.host_samples import HostSample
    from mgpu_doctor.case.job_snapshots import JobSnapshot
    from mgpu_doctor.case.log_matches import LogMatch
    from mgpu_doctor.case.process_metadata import ProcessMetadata
    from mgpu_doctor.case.profiler_traces import Trace
    from mgpu_doctor.case.treatment_proofs import TreatmentProof
    from mgpu_doctor.recording.columns import Columns

Records: TypeAlias = "npt.NDArray[np.void] | Columns"
"""Step records, a structured array or read like one, see `mgpu_doctor.recording.box.STEP_DTYPE`:
`seq`, `end_ns` (monotonic), `wall_ns`, `step`, `flags`, `phases` (n × 10 float32 seconds, NaN: not
measured), `samples`, `tokens`, `loss`, `gc_s`, `group_seq`, `collectives`, `micro_batches`,
`cpu_s`, `device_bytes`, `stage`, `group`, `resident_bytes`. Sorted by `seq`, which may have
gaps."""


class State(str, Enum):
    """What a rank is doing. HUNG is a judgement and is set by rules only."""

    RUNNING = "running"
    WAITING = "waiting"
    HUNG = "hung"
    EXITED = "exited"
    DEAD = "dead"
    MISSING = "missing"


class Outcome(str, Enum):
    """How the job ended, by the facts alone."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    HUNG = "hung"
    KILLED = "killed"
    UNKNOWN = "unknown"


class Gap(Enum):
    """What could not be examined, where a reader acts on it; others only show it."""

    PROCESS_PROBE = "process probe"
    KERNEL_LOG = "kernel log"
    RANK_COMPARISON = "rank comparison"
    FEW_STEPS = "few steps"
    """A comparison of ranks that more steps make possible."""
    BLOCKING_RANK = "blocking rank"
    """Which rank the others wait for in a job that makes no progress."""


@dataclass(frozen=True, slots=True)
class Unexamined:
    """What could not be examined, why, and how to make it possible."""

    probe: str
    """The subject in words, for people."""
    reason: str
    remedy: str
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What was handed to the doctor: kind is process, recording, log, trace,
    command or machine."""

    kind: str
    ref: str


@dataclass(frozen=True, slots=True)
class Now:
    """What a rank was doing at its last sign of life."""

    phase: str
    since: float
    step: int
    site: str | None
    """The collective and its call site, e.g. `all_reduce train.py:87`, while the rank is in one."""
    group_seq: int | None


@dataclass(frozen=True, slots=True)
class DevicePosition:
    """How far a rank's device got while its host was blocked: the newest mark that it passed."""

    turn: int
    """The turn's key: equal on all ranks of the job in the same turn of the training loop."""
    step: int
    marks: int
    """Marks of the turn that it has passed."""
    phase: str
    """What it does from the last of them on."""
    has_more: bool
    """The next mark is queued and not reached. False: the host has set no other mark."""
    since: float
    """When it was first seen there."""
    seen: float
    """When it was last seen there."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    at: float
    step: int
    seconds: float
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait for other ranks, in a collective or a receive, that an exception ended."""

    since: float
    seconds: float
    site: str | None
    """The collective and its call site; None: DistributedDataParallel's, or unknown."""


@dataclass(frozen=True, slots=True)
class Error:
    """An exception that ended a rank."""

    type: str
    message: str
    file: str | None
    line: int | None
    function: str | None
    traceback: str
    at: float | None
    wait: Wait | None = None
    """The wait that it ended; None: it was raised elsewhere, or that is unknown."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of the last attempt. `rank` is None where the process never learned it."""

    rank: int | None
    local_rank: int | None
    world_size: int | None
    host: str
    pid: int | None
    attempt: int
    stage: int | None
    device: str | None
    state: State
    exit_code: int | None
    signal: int | None
    ended: float | None
    """When the process was seen to have ended, by itself or from outside."""
    started: float | None
    metadata: ProcessMetadata
    steps: Records
    history: Records
    events: tuple[Event, ...]
    now: Now | None
    error: Error | None
    probe_cost: float | None
    """Seconds the probe spent in this rank, by its own count."""
    lost_records: int
    """Step records that the ring no longer holds or that were damaged."""
    clock_offset: float
    """Add to a monotonic second of this rank to get seconds since the epoch."""
    took_leave: bool = False
    """Its interpreter reported its exit; native code may still run, and fail, for a while."""
    is_here: bool = False
    """Its process runs on this machine, identified by pid, start time and boot, and belongs to the
    user of the recording. Only then may the process be read or queried: an untrusted recording may
    name any pid."""
    device_times: npt.NDArray[np.void] | None = None
    """Times of some steps on the device's clock, `mgpu_doctor.recording.box.DEVICE_DTYPE`, joined
    by the sequence number of the step record; None: the box has no room for any."""
    device_position: DevicePosition | NoPosition = NoPosition.NO_BOX
    """How far its device got while the host was blocked, or why that is unknown."""
    pids_above: int = 0
    """What is added to pids of its host in stack snapshots, which may be of several hosts."""
    process_started: float | None = None
    """When its process started, by the kernel; `started` is when it began to train or to join a
    group."""

    @property
    def stack_pid(self) -> int | None:
        """Its pid in stack snapshots."""
        return None if self.pid is None else self.pid + self.pids_above

    @property
    def last_step(self) -> int | None:
        """The last step that the rank finished, as it counts them; None: no step is recorded. Its
        record may be missing, because those of untimed steps are written some steps later."""
        if not len(self.steps):
            return None
        recorded = int(self.steps["step"][-1])
        return recorded if self.now is None else max(recorded, self.now.step - 1)


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """A process that ended, rank or not, as seen from outside."""

    pid: int
    exit_code: int | None
    signal: int | None
    at: float


@dataclass(frozen=True, slots=True)
class JobEnd:
    """`end.json`, if it exists. `over`: it exists and is not after the moment viewed."""

    over: bool = False
    exit_code: int | None = None
    signal: int | None = None
    at: float | None = None
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedEnd:
    """An ending in the console text (torchrun's summary, a traceback, mp.spawn)."""

    rank: int | None
    pid: int | None
    exit_code: int | None
    signal: int | None
    first: bool
    """The text itself calls it the first or root failure."""
    error: Error | None
    source: str
    """The kind of text, e.g. `torchrun summary`, `traceback`."""
    order: int | None = None
    """Position among all ranks' final output; None: the order is unknown."""
    sent_by_launcher: bool | None = None
    """Whether the launcher says that it sent the signal; None: it does not list its signals."""


@dataclass(frozen=True, slots=True)
class Console:
    """The bounded, decoded end of what the job printed."""

    tail: tuple[str, ...] = ()
    ends: tuple[LoggedEnd, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    command: tuple[str, ...]
    cwd: str | None
    framework: str | None
    strategy: str | None
    launcher: str | None
    world_size: int | None
    hosts: tuple[str, ...]
    started: float | None
    ended: float | None
    outcome: Outcome
    exit_code: int | None
    signal: int | None
    asked: str | None
    """The signal that asked the whole job to end, e.g. `SIGINT`."""
    pid: int | None = None
    """Its first process; None: unknown, or on another host than the recording."""


@dataclass(frozen=True, slots=True)
class AskedHost:
    """A host that the user or the job itself named. `node`: its own name, and of its ranks; None:
    it never answered. `trouble`: why it is not seen, a part of a sentence; None: it is seen;
    `remedy`: what to do. `silent`: nothing answers there, as if the machine were off."""

    name: str
    node: str | None
    trouble: str | None = None
    remedy: str = "wait for it"
    silent: bool = False


@dataclass(frozen=True, slots=True)
class LostHost:
    """A host whose part of the recording stops without an end, as when a machine fails. `seen`: of
    its last record."""

    name: str
    seen: float | None


@dataclass(frozen=True, slots=True)
class Case:
    """Everything known about one job at one moment."""

    subject: Subject
    job: Job
    observed: float
    """The moment of this view: now for a live job, the last sign of life of a finished one."""
    ranks: tuple[Rank, ...]
    """Sorted by rank; those of the last restart attempt."""
    earlier: tuple[Rank, ...] = ()
    """Ranks of earlier restart attempts."""
    ends: tuple[ProcessEnd, ...] = ()
    console: Console = Console()
    host_samples: tuple[HostSample, ...] = ()
    device_samples: tuple[DeviceSample, ...] = ()
    job_snapshots: tuple[JobSnapshot, ...] = ()
    """Oldest first."""
    flights: tuple[Flight, ...] = ()
    signs: tuple[LogMatch, ...] = ()
    """Signs, in the order in which they were printed."""
    endings: tuple[Ending, ...] = ()
    """The ending record of each host."""
    snapshots: tuple[Snapshot, ...] = ()
    """Snapshots of devices' memory."""
    traces: tuple[Trace, ...] = ()
    """Traces of PyTorch's profiler, one per rank."""
    asked_hosts: tuple[AskedHost, ...] = ()
    """The hosts that were asked for ranks, if the user named any; of a recording into which several
    nodes write, those of which nothing is in it."""
    tried: tuple[TreatmentProof, ...] = ()
    """What trials of treatments showed about this job."""
    applied: TreatmentProof | None = None
    """The treatments that it was started with; None: none."""
    lost_hosts: tuple[LostHost, ...] = ()
    unexamined: tuple[Unexamined, ...] = ()
