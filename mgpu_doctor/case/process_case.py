"""A running job as a Case: from snapshots of its processes, with or without a recording."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mgpu_probes.outside.jobs import RunningJob, UnreadSource

from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.ending_records import Ending
from mgpu_doctor.case.job_snapshots import JobSnapshot, Process, Unread
from mgpu_doctor.case.model import (
    Case,
    Gap,
    Job,
    Outcome,
    ProcessEnd,
    Rank,
    State,
    Subject,
    Unexamined,
)
from mgpu_doctor.case.placeholders import blank_rank
from mgpu_doctor.case.this_machine import this_host

GONE = (None, "Z", "X", "x")
_IN_STEP = (
    "torch/nn/modules/", "torch/_tensor.py", "torch/autograd/", "torch/optim/",
    "torch/utils/data/dataloader.py",
)  # fmt: skip
"""Files of which a function on the stack shows that a process trains."""
_TICKS = os.sysconf("SC_CLK_TCK")


def case_of(
    job: RunningJob,
    snapshots: Sequence[JobSnapshot],
    booted: float | None,
    endings: Iterable[Ending] = (),
) -> Case:
    """A job without a recording. `booted`: when this machine booted, in seconds since the epoch;
    None: unknown. `endings`: the machine's ending records. Nothing else is known about its past:
    no steps, no console, and no end of a rank that left no zombie."""
    if train_alone(snapshots):
        job, snapshots = _number_by_start(job, snapshots)
    seen = {rank.pid: rank for snapshot in snapshots for rank in snapshot.ranks}
    alive = {process.rank for process in seen.values() if process.state not in GONE}
    ends = {
        process.pid: end
        for process in seen.values()
        if (end := _end(process, snapshots[-1].at)) is not None
    }
    ranks = [
        _rank(seen[rank.pid], booted, None if rank.rank in alive else ends.get(rank.pid))
        for rank in job.ranks
        if rank.pid in seen
    ]
    ranks += [_missing(number, job.world_size) for number in job.missing]
    started = [rank.started for rank in ranks if rank.started is not None]
    running = any(rank.state is State.RUNNING for rank in ranks)
    pid = job.launcher_pid or min((process.pid for process in job.processes), default=0)
    first = next((process for process in job.processes if process.pid == pid), None)
    return Case(
        subject=Subject("process", str(pid)),
        job=Job(
            id=str(pid),
            command=first.command if first else (),
            cwd=None,
            framework=None,
            strategy=None,
            launcher=job.launcher,
            world_size=job.world_size,
            hosts=(this_host(),),
            started=min(started, default=None),
            ended=None,
            outcome=Outcome.RUNNING if running else Outcome.UNKNOWN,
            exit_code=None,
            signal=None,
            asked=None,
            pid=pid or None,
        ),
        observed=snapshots[-1].at,
        ranks=tuple(
            sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.pid or 0))
        ),
        ends=tuple(ends.values()),
        job_snapshots=tuple(snapshots),
        endings=tuple(endings),
        unexamined=(*unexamined_of(_unread(snapshots)), _PAST),
    )


def train_alone(snapshots: Sequence[JobSnapshot]) -> bool:
    """Whether the ranks train without a process group: they are in none, nor on their way into one,
    and one of them was seen in a step."""
    if not snapshots or not all(snapshot.apart for snapshot in snapshots):
        return False
    files = {
        frame.file
        for snapshot in snapshots
        for rank in snapshot.ranks
        if (stack := snapshot.stack(rank.pid)) is not None and stack.main is not None
        for frame in stack.main.frames
    }
    joins = any("torch/distributed/" in file for file in files)
    return not joins and any(part in file for part in _IN_STEP for file in files)


def _number_by_start(
    job: RunningJob, snapshots: Sequence[JobSnapshot]
) -> tuple[RunningJob, list[JobSnapshot]]:
    """The same, with ranks that are numbered in the order of their start, each in a world of its
    own."""
    started = sorted(job.ranks, key=lambda rank: (rank.start_ticks, rank.pid))
    numbers = {rank.pid: number for number, rank in enumerate(started)}

    def numbered(process: Process) -> Process:
        number = numbers.get(process.pid, numbers.get(process.parent or 0))
        return process if number is None else replace(process, rank=number, world_size=1)

    return replace(job, world_size=None), [
        replace(_without_places(snapshot), processes=tuple(map(numbered, snapshot.processes)))
        for snapshot in snapshots
    ]


def _without_places(snapshot: JobSnapshot) -> JobSnapshot:
    """The snapshot without what it could not see of the ranks' places in a process group."""
    untold = tuple(source for source in snapshot.untold if source.source != "environment")
    return replace(snapshot, untold=untold)


def with_snapshots(case: Case, snapshots: Sequence[JobSnapshot]) -> Case:
    """A recorded job, with a snapshot of its processes."""
    if are_independent(case.ranks):
        snapshots = list(map(_without_places, snapshots))
    return replace(
        case,
        job_snapshots=(*case.job_snapshots, *snapshots),
        observed=max(case.observed, *(snapshot.at for snapshot in snapshots)),
        unexamined=(*case.unexamined, *unexamined_of(_unread(snapshots))),
    )


def unexamined_of(untolds: Iterable[Unread | UnreadSource]) -> tuple[Unexamined, ...]:
    """What could not be seen: each reason once, with its processes."""
    pids: dict[tuple[str, str, str], set[int]] = {}
    for untold in untolds:
        same = pids.setdefault((untold.source, untold.reason, untold.remedy), set())
        same.update(() if untold.pid is None else (untold.pid,))
    return tuple(
        Unexamined(_of(source, whose), reason, remedy)
        for (source, reason, remedy), whose in pids.items()
    )


def _unread(snapshots: Iterable[JobSnapshot]) -> Iterator[Unread]:
    return (source for snapshot in snapshots for source in snapshot.untold)


_PAST = Unexamined(
    "in-process probe",
    "the job was not started under `mgpu-doctor run`: its steps and its output are unknown",
    "start it with `mgpu-doctor run -- COMMAND` next time",
    Gap.PROCESS_PROBE,
)


def _of(source: str, pids: set[int]) -> str:
    named = ", ".join(str(pid) for pid in sorted(pids)[:8])
    more = ", …" if len(pids) > 8 else ""
    return f"{source} of process {named}{more}" if pids else source


def _rank(process: Process, booted: float | None, end: ProcessEnd | None) -> Rank:
    """`end`: how it ended, unless another process has taken its place."""
    gone = process.state in GONE
    fell = end is not None and bool(end.signal or end.exit_code)
    age = None if process.start_ticks is None else process.start_ticks / _TICKS
    return blank_rank(
        rank=process.rank,
        local_rank=process.local_rank,
        world_size=process.world_size,
        host=this_host(),
        pid=process.pid,
        state=State.DEAD if fell else State.EXITED if gone else State.RUNNING,
        exit_code=end.exit_code if end is not None else None,
        signal=end.signal if end is not None else None,
        started=None if booted is None or age is None else booted + age,
        is_here=not gone,
    )


def _end(process: Process, at: float) -> ProcessEnd | None:
    """The end of a zombie, at some earlier time."""
    status = process.wait_status
    if status is None:
        return None
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return ProcessEnd(process.pid, code if code >= 0 else None, -code if code < 0 else None, at)


def _missing(number: int, world_size: int | None) -> Rank:
    return blank_rank(rank=number, world_size=world_size, host=this_host(), state=State.MISSING)
