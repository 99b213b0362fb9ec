"""Samples a running job until it is clear whether it hangs, and which rank the others wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from mgpu_probes.outside import jobs, processes
from mgpu_probes.outside.exit_evidence import ExitEvidence
from mgpu_probes.outside.flight.live_recorders import gather_recorders, read_environment
from mgpu_probes.outside.flight.nccl_ras import address_of, find_stuck_communicators
from mgpu_probes.outside.job_snapshot import take_snapshot
from mgpu_probes.outside.jobs import FoundJob
from mgpu_probes.outside.stacks.stack_reader import Aid

from mgpu_doctor.analysis.stacks.hang_analysis import analyse_hang, list_unclear_processes, waits
from mgpu_doctor.analysis.stacks.progress import measure_progress
from mgpu_doctor.case.ending_records import Ending, ending_of
from mgpu_doctor.case.flight_records import flight_of
from mgpu_doctor.case.job_snapshots import Look, read_look
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.process_case import GONE, case_of, unexamined_of, with_looks
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.case.this_machine import this_host
from mgpu_doctor.formatting import format_count
from mgpu_doctor.recording.live_recordings import is_living, living
from mgpu_doctor.rules.hang.blocked_rank import describe_activity

CONFIRM = (0.9, 1.8)
"""Seconds after the first look: a second one tells whether the job stands, a third confirms it."""
SAMPLES = 20
APART = 0.15
"""Seconds between the samples of a job that moves."""
FLIGHT_PATIENCE = 10.0
MOST_NATIVE = 4
"""Suspects of a job that stands whose C functions are looked at."""
MOST_NAMED = 2
"""Ranks that are named after the first look."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A job that runs here: its processes, its recording, or both."""

    job: FoundJob | None
    recording: Path | None = None

    @property
    def identity(self) -> object:
        """The same for two that are the same job."""
        if self.recording is not None:
            return self.recording.resolve()
        return frozenset(process.pid for process in self.job.processes) if self.job else None


def of_pid(pid: int) -> Target | str:
    """The job that a process belongs to, or a sentence that says why there is none."""
    job = jobs.find(pid)
    if job is None:
        return f"{jobs.unseen(pid)}: name the launcher or any rank of one."
    return next((one for one in _recorded() if _same(one.job, job)), Target(job))


def of_recording(folder: Path) -> Target:
    """A recording, with the job's processes if they run here."""
    return next(
        (one for one in _recorded([folder] if is_living(folder) else [])), Target(None, folder)
    )


def everything() -> list[Target]:
    """Every job that runs here, those that are recorded first."""
    known = list(_recorded())
    others = [job for job in jobs.find_all() if not any(_same(one.job, job) for one in known)]
    return [*known, *(Target(job) for job in others)]


class EndedMeanwhile(Exception):  # noqa: N818 - it says what happened
    """The job's processes have gone since it was found."""


def examine(target: Target, tell: Tell) -> Case:
    """The case of a running job, after a first look within a second and some more. `tell`: called
    with what there is to say meanwhile. Raises NotARecording, and EndedMeanwhile for a job without
    a recording."""
    recorded = None if target.recording is None else load_recording(target.recording)
    if target.job is None:
        assert recorded is not None
        return recorded
    ranks = recorded.ranks if recorded is not None else ()
    aids = {pid: Aid(worker_socket=path) for pid, path in _sockets(ranks).items()}
    # Where steps are recorded, they tell of a job that moves what stacks could, and more.
    steps = any(len(rank.steps) for rank in ranks)
    looks = _looks(target.job, aids, tell, samples=0 if steps else SAMPLES)
    if recorded is None and not any(one.state not in GONE for one in looks[-1].ranks):
        raise EndedMeanwhile
    if recorded is None:
        case = case_of(target.job, looks, psutil.boot_time(), _endings(looks[-1]))
    else:
        case = with_looks(recorded, looks)
    if analyse_hang(looks) is not None:
        gathered = gather_recorders(target.job, _sockets(ranks), timeout=FLIGHT_PATIENCE)
        case = replace(case, unexamined=(*case.unexamined, *unexamined_of(gathered.untold)))
        forms = gathered.forms or _told_by_nccl(target.job)
    elif not any(look.stacks for look in looks):
        forms = _told_by_nccl(target.job)
    else:
        return case
    return replace(case, flights=(*case.flights, *map(flight_of, forms)))


def _told_by_nccl(job: FoundJob) -> tuple[dict[str, Any], ...]:
    """What NCCL itself counts of a job that stands, where nothing else tells."""
    first = next(iter(job.ranks), None)
    address = first and address_of(read_environment(first.pid, processes.PROC))
    numbers = {rank.pid: rank.rank for rank in job.ranks if rank.rank is not None}
    return find_stuck_communicators(numbers, address) if address else ()


def _endings(look: Look) -> tuple[Ending, ...]:
    """What the machine remembers of deaths, where a rank is gone."""
    if all(rank.state not in GONE for rank in look.ranks):
        return ()
    endings = ExitEvidence(history=True)
    endings.look()
    endings.close()
    return (ending_of(this_host(), endings.told()),)


def _recorded(folders: Iterable[Path] | None = None) -> Iterator[Target]:
    """Recordings whose jobs run here, and their processes."""
    for folder in living() if folders is None else folders:
        try:
            case = load_recording(folder)
        except (NotARecording, OSError):
            continue
        pids = [rank.pid for rank in case.ranks if rank.pid is not None and rank.is_here]
        found = map(jobs.find, pids)
        own = (job for job in found if job is not None and _has_one_of(job, pids))
        yield Target(next(own, None), folder)


def _same(found_job: FoundJob | None, other: FoundJob) -> bool:
    return found_job is not None and _has_one_of(
        found_job, (process.pid for process in other.processes)
    )


def _has_one_of(job: FoundJob, pids: Iterable[int]) -> bool:
    return bool({process.pid for process in job.processes} & {*pids})


def _sockets(ranks: Iterable[Rank]) -> dict[int, str]:
    """pid -> where an instrumented rank answers."""
    told = ((rank.pid, rank.metadata.worker_socket) for rank in ranks if rank.is_here)
    return {pid: path for pid, path in told if pid is not None and isinstance(path, str)}


def _looks(job: FoundJob, aids: Mapping[int, Aid], tell: Tell, samples: int) -> tuple[Look, ...]:
    """`samples`: looks at a job that moves."""
    started = time.monotonic()
    seen = [_look(job, aids)]
    first = _first_word(seen)
    tell(f"{first}; looking again")
    suspects: tuple[int, ...] = ()
    for at in CONFIRM:
        time.sleep(max(0.0, started + at - time.monotonic()))
        seen.append(_look(job, aids, suspects))
        if analyse_hang(seen) is None:
            if len(seen) < samples:
                tell("the job moves; sampling its stacks")
            return _sampled(job, aids, seen, samples)
        suspects = list_unclear_processes(seen)[:MOST_NATIVE]
        tell(f"{first}; making sure")
    return tuple(seen)


def _first_word(seen: list[Look]) -> str:
    """What one look tells: not yet whether it is a hang."""
    followed = measure_progress(seen)
    ranks = followed.ranks if followed is not None else ()
    busy = [progress for progress in ranks if not waits(progress)]
    if not busy or len(busy) == len(ranks) or len(busy) > MOST_NAMED:
        return format_count(len(ranks), "rank") + " seen"
    told = ", ".join(f"rank {one.state.rank} {describe_activity(one)}" for one in busy)
    return f"{told}; {format_count(len(ranks) - len(busy), 'other')} in a wait"


def _sampled(
    job: FoundJob, aids: Mapping[int, Aid], seen: list[Look], samples: int
) -> tuple[Look, ...]:
    while len(seen) < samples:
        time.sleep(APART)
        seen.append(_look(job, aids, loaders=False))
    return tuple(seen)


def _look(
    job: FoundJob, aids: Mapping[int, Aid], native: tuple[int, ...] = (), *, loaders: bool = True
) -> Look:
    """`native`: pids whose C functions are wanted, too; that pauses them for a moment. `loaders`:
    also the stacks of data-loader workers."""
    found = read_look(take_snapshot(job, aids=aids, native=native, loaders=loaders))
    assert found is not None  # it has a time
    return found
