"""Samples a running job until it is clear whether it hangs, and which rank the others wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from mgpu_probes.outside import jobs, processes
from mgpu_probes.outside.exit_evidence import ExitEvidence
from mgpu_probes.outside.flight.live_recorders import gather_recorders, read_environment
from mgpu_probes.outside.flight.nccl_ras import address_of, find_stuck_communicators
from mgpu_probes.outside.job_snapshot import take_snapshot
from mgpu_probes.outside.jobs import RunningJob
from mgpu_probes.outside.stacks.stack_reader import Aid

from mgpu_doctor.analysis.stacks.hang_analysis import analyse_hang, list_unclear_processes, waits
from mgpu_doctor.analysis.stacks.progress import measure_progress
from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.earlier_runs import load_with_earlier_runs
from mgpu_doctor.case.ending_records import Ending, ending_of
from mgpu_doctor.case.flight_records import flight_of
from mgpu_doctor.case.job_snapshots import JobSnapshot, read_job_snapshot
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.process_case import GONE, case_of, unexamined_of, with_snapshots
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.case.this_machine import this_host
from mgpu_doctor.examine.device_watch import DeviceWatch
from mgpu_doctor.formatting import format_count
from mgpu_doctor.recording.live_recordings import is_living, living
from mgpu_doctor.rules.hang.blocked_rank import describe_activity

CONFIRM_AFTER = (0.9, 1.8)
"""Seconds after the first snapshot at which a second shows whether the job hangs, and a third
confirms it."""
SAMPLES = 20
"""Snapshots of a job that makes progress."""
SAMPLE_INTERVAL = 0.15
"""Seconds between snapshots of a job that makes progress."""
FLIGHT_TIMEOUT = 10.0
"""Seconds to wait for the flight recorders of hung ranks."""
MAX_NATIVE = 4
"""Suspect ranks of a hung job whose C stacks are also read."""
MAX_NAMED_RANKS = 2
"""Ranks named on the progress line after the first snapshot."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A job to examine: its processes if they run here, its recording, or both."""

    job: RunningJob | None
    recording: Path | None = None
    others: tuple[Path, ...] = ()
    """Recordings of the same job by other nodes."""

    @property
    def identity(self) -> object:
        """Equal for two targets that are the same job."""
        if self.recording is not None:
            return self.recording.resolve()
        return frozenset(process.pid for process in self.job.processes) if self.job else None


def target_of_pid(pid: int) -> Target | str:
    """The job that a process belongs to, or a sentence that says why there is no such job."""
    job = jobs.find(pid)
    if job is None:
        return f"{jobs.unseen(pid)}: name the launcher or any rank of a job."
    return next((target for target in _recorded_targets() if _same(target.job, job)), Target(job))


def target_of_recording(folder: Path) -> Target:
    """A recording, with the job's processes if they run here."""
    return next(_recorded_targets([folder] if is_living(folder) else []), Target(None, folder))


def find_running_targets() -> list[Target]:
    """Every job that is running here, recorded jobs first."""
    recorded = list(_recorded_targets())
    unrecorded = [
        job for job in jobs.find_all() if not any(_same(target.job, job) for target in recorded)
    ]
    return [*recorded, *(Target(job) for job in unrecorded)]


class JobEnded(Exception):  # noqa: N818 - says what happened
    """The processes of the job ended after the job was found."""


def examine_target(target: Target, tell: Tell) -> Case:
    """The case of a job; if it is running, its stacks are sampled for a few seconds. `tell` is
    called with progress messages. Raises NotARecording, and JobEnded for a job without a
    recording."""
    recorded = (
        None
        if target.recording is None
        else load_with_earlier_runs(target.recording, target.others)
    )
    if target.job is None:
        assert recorded is not None
        return recorded
    ranks = recorded.ranks if recorded is not None else ()
    aids = {pid: Aid(worker_socket=path) for pid, path in _sockets(ranks).items()}
    # If steps are recorded, they show more about a job that makes progress than stacks do.
    has_steps = any(len(rank.steps) for rank in ranks)
    # A recording has its own samples of the GPUs.
    with DeviceWatch() if recorded is None else nullcontext() as watch:
        snapshots = _take_snapshots(target.job, aids, tell, 0 if has_steps else SAMPLES)
    if recorded is None and all(rank.state in GONE for rank in snapshots[-1].ranks):
        raise JobEnded
    if recorded is None:
        case = case_of(target.job, snapshots, psutil.boot_time(), _read_endings(snapshots[-1]))
        case = replace(case, device_samples=watch.samples if watch is not None else ())
    else:
        case = with_snapshots(recorded, snapshots)
    if are_independent(case.ranks):
        return case  # no recorder holds anything of a rank without a process group
    if analyse_hang(snapshots) is not None:
        gathered = gather_recorders(target.job, _sockets(ranks), timeout=FLIGHT_TIMEOUT)
        case = replace(case, unexamined=(*case.unexamined, *unexamined_of(gathered.unread)))
        forms = gathered.forms or _query_nccl(target.job)
    elif not any(snapshot.stacks for snapshot in snapshots):
        forms = _query_nccl(target.job)
    else:
        return case
    return replace(case, flights=(*case.flights, *map(flight_of, forms)))


def _query_nccl(job: RunningJob) -> tuple[dict[str, Any], ...]:
    """Stuck communicators as NCCL's own RAS counts them, if no other source is available."""
    first = next(iter(job.ranks), None)
    address = first and address_of(read_environment(first.pid, processes.PROC))
    numbers = {rank.pid: rank.rank for rank in job.ranks if rank.rank is not None}
    return find_stuck_communicators(numbers, address) if address else ()


def _read_endings(snapshot: JobSnapshot) -> tuple[Ending, ...]:
    """How processes ended according to this machine; empty if every rank is alive."""
    if all(rank.state not in GONE for rank in snapshot.ranks):
        return ()
    endings = ExitEvidence(history=True)
    endings.poll()
    endings.close()
    return (ending_of(this_host(), endings.evidence()),)


def _recorded_targets(folders: Iterable[Path] | None = None) -> Iterator[Target]:
    """Recordings whose jobs run here, with their processes."""
    for folder in living() if folders is None else folders:
        try:
            case = load_recording(folder)
        except (NotARecording, OSError):
            continue
        pids = [rank.pid for rank in case.ranks if rank.pid is not None and rank.is_here]
        running = map(jobs.find, pids)
        examining = (job for job in running if job is not None and _has_one_of(job, pids))
        yield Target(next(examining, None), folder)


def _same(found_job: RunningJob | None, running_job: RunningJob) -> bool:
    return found_job is not None and _has_one_of(
        found_job, (process.pid for process in running_job.processes)
    )


def _has_one_of(job: RunningJob, pids: Iterable[int]) -> bool:
    return bool({process.pid for process in job.processes} & {*pids})


def _sockets(ranks: Iterable[Rank]) -> dict[int, str]:
    """Pid -> path of the socket on which an instrumented rank answers."""
    sockets = ((rank.pid, rank.metadata.worker_socket) for rank in ranks if rank.is_here)
    return {pid: path for pid, path in sockets if pid is not None and isinstance(path, str)}


def _take_snapshots(
    job: RunningJob, aids: Mapping[int, Aid], tell: Tell, samples: int
) -> tuple[JobSnapshot, ...]:
    """Snapshots of a job: three if it hangs, else `samples`, at least two. Whether a rank without a
    process group hangs says nothing about the others."""
    started = time.monotonic()
    snapshots = [_take_snapshot(job, aids)]
    first = _describe_first(snapshots)
    tell(f"{first}; taking a second sample")
    suspects: tuple[int, ...] = ()
    for seconds in CONFIRM_AFTER:
        time.sleep(max(0.0, started + seconds - time.monotonic()))
        snapshots.append(_take_snapshot(job, aids, suspects))
        if job.apart or analyse_hang(snapshots) is None:
            if len(snapshots) < samples:
                moves = (
                    "its ranks are in no process group" if job.apart else "the job makes progress"
                )
                tell(f"{moves}; sampling its stacks")
            return _sample(job, aids, snapshots, samples)
        suspects = list_unclear_processes(snapshots)[:MAX_NATIVE]
        tell(f"{first}; confirming")
    return tuple(snapshots)


def _describe_first(snapshots: list[JobSnapshot]) -> str:
    """What the first snapshot shows, which is not yet whether the job hangs."""
    progress = measure_progress(snapshots)
    ranks = progress.ranks if progress is not None else ()
    busy = [rank for rank in ranks if not waits(rank)]
    if not busy or len(busy) == len(ranks) or len(busy) > MAX_NAMED_RANKS:
        return format_count(len(ranks), "rank") + " sampled"
    named = ", ".join(f"rank {rank.state.rank} {describe_activity(rank)}" for rank in busy)
    return f"{named}; {format_count(len(ranks) - len(busy), 'other')} waiting"


def _sample(
    job: RunningJob, aids: Mapping[int, Aid], snapshots: list[JobSnapshot], samples: int
) -> tuple[JobSnapshot, ...]:
    while len(snapshots) < samples:
        time.sleep(SAMPLE_INTERVAL)
        snapshots.append(_take_snapshot(job, aids, loaders=False))
    if suspects := list_unclear_processes(snapshots)[:MAX_NATIVE]:
        snapshots.append(_take_snapshot(job, aids, suspects, loaders=False))
    return tuple(snapshots)


def _take_snapshot(
    job: RunningJob, aids: Mapping[int, Aid], native: tuple[int, ...] = (), *, loaders: bool = True
) -> JobSnapshot:
    """A snapshot of the stacks of a job. `native`: pids whose C stacks are read, too, which pauses
    these processes briefly. `loaders`: also read the stacks of data-loader workers."""
    snapshot = read_job_snapshot(take_snapshot(job, aids=aids, native=native, loaders=loaders))
    assert snapshot is not None  # it has a time
    return snapshot
