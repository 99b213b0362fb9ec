"""Stacks of a running job, read once on demand: of one rank, or of all. No process is paused."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mgpu_probes.outside import jobs
from mgpu_probes.outside.job_snapshot import take_snapshot
from mgpu_probes.outside.jobs.running_jobs import LOADER, RANK, JobProcess, RunningJob
from mgpu_probes.outside.stacks.stack_reader import Aid

from mgpu_doctor.case.job_snapshots import JobSnapshot, read_job_snapshot
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.this_machine import this_host
from mgpu_doctor.findings import Branch, Finding, RankSummary
from mgpu_doctor.rules.hang.stack_branches import build_branches

AT_ONCE = 16
"""Ranks read between two progress messages."""
NOT_RECORDED = (
    "No stacks were recorded by this moment: `run` records them when a job seems to hang."
)
NO_PROCESS = "There is no process of this rank."
NOT_SENT = "The hosts sent no stacks: the job has ended there, or they do not answer."
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The stacks of ranks at one moment. `pid`: the only rank sampled; None: all ranks, as
    `tree`."""

    snapshot: JobSnapshot
    pid: int | None
    tree: tuple[Branch, ...] = ()


def read_rank_stacks(
    case: Case,
    ranks: Sequence[RankSummary],
    findings: Sequence[Finding] = (),
    *,
    alone: bool,
    replayed: bool = False,
    tell: Tell = lambda _: None,
) -> RankStacks | str:
    """Returns the stacks now, or those recorded by the moment of a replay, or why there are none.
    `ranks`: all ranks, or with `alone` a single one with its data-loader workers. `tell`: called
    with progress messages."""
    known = _recorded(case, ranks[0], findings, alone=alone)
    if replayed or case.job.ended is not None:
        return known
    here = {rank.pid for rank in case.ranks if rank.is_here}
    reachable = next((rank for rank in ranks if _unreachable(rank, here) is None), None)
    if reachable is None or reachable.pid is None:
        return known if isinstance(known, RankStacks) else _unreachable(ranks[0], here) or known
    running_job = jobs.find(reachable.pid)
    if running_job is None:
        return f"{jobs.unseen(reachable.pid)}."
    if alone:
        whose = (
            process
            for process in running_job.processes
            if reachable.pid in (process.pid, _loads_for(process))
        )
        return RankStacks(
            _read_snapshot(replace(running_job, processes=tuple(whose)), case), reachable.pid
        )
    snapshots: list[JobSnapshot] = []
    for done, some in _portions(running_job):
        tell(f"{done} of {len(running_job.ranks)} ranks read")
        snapshots.append(_read_snapshot(some, case))
    return merged(case, snapshots, findings)


def newest_stacks(
    case: Case | None, rank: RankSummary, findings: Sequence[Finding], *, alone: bool
) -> RankStacks | str:
    """Returns the stacks that the hosts of a job have just sent, or why there are none. `case`:
    None: they sent nothing. `alone`: of this rank, else of all."""
    snapshots = case.job_snapshots if case is not None else ()
    if case is None or not snapshots:
        return NOT_SENT
    if alone:
        pid = _find_stack_pid(case, rank)
        return NO_PROCESS if pid is None else RankStacks(snapshots[-1], pid)
    return merged(case, snapshots[-1:], findings)


def _recorded(
    case: Case, rank: RankSummary, findings: Sequence[Finding], *, alone: bool
) -> RankStacks | str:
    """Returns the newest snapshot of the recording."""
    snapshots = [snapshot for snapshot in case.job_snapshots if snapshot.stacks]
    pid = _find_stack_pid(case, rank)
    if alone:
        snapshots = [snapshot for snapshot in snapshots if pid is not None and snapshot.stack(pid)]
    if not snapshots:
        return NOT_RECORDED
    return RankStacks(snapshots[-1], pid) if alone else merged(case, snapshots[-1:], findings)


def _find_stack_pid(case: Case, rank: RankSummary) -> int | None:
    """Returns the pid that a rank has in snapshots."""
    place = rank.host, rank.pid
    return next((one.stack_pid for one in case.ranks if (one.host, one.pid) == place), rank.pid)


def merged(case: Case, snapshots: Sequence[JobSnapshot], findings: Sequence[Finding]) -> RankStacks:
    """Returns the snapshots of parts of one job merged into one."""
    job_snapshot = replace(
        snapshots[0],
        processes=tuple(process for snapshot in snapshots for process in snapshot.processes),
        stacks=tuple(stack for snapshot in snapshots for stack in snapshot.stacks),
        untold=tuple(dict.fromkeys(unread for snapshot in snapshots for unread in snapshot.untold)),
    )
    return RankStacks(
        job_snapshot, None, build_branches(replace(case, job_snapshots=(job_snapshot,)), findings)
    )


def _unreachable(rank: RankSummary, here: Container[object]) -> str | None:
    """Returns why a rank's stack cannot be read. `here`: the ranks known to run on this machine."""
    if rank.pid is None:
        return NO_PROCESS
    if rank.host != this_host():
        return f"It runs on {rank.host}: read its stacks there, with `mgpu-doctor top`."
    if rank.state in ("exited", "dead", "missing"):
        return "Its process has ended: there is no stack to read."
    if rank.pid not in here:
        return "It is not certain that this process is this rank: its stack is not read."
    return None


def _portions(job: RunningJob) -> Iterator[tuple[int, RunningJob]]:
    """Yields batches of ranks with their data-loader workers, and how many ranks came before."""
    ranks = job.ranks
    for done in range(0, len(ranks), AT_ONCE):
        pids = {rank.pid for rank in ranks[done : done + AT_ONCE]}
        some = (process for process in job.processes if pids & {process.pid, _loads_for(process)})
        first = done == 0
        yield (
            done,
            replace(
                job,
                processes=tuple(some),
                missing=job.missing if first else (),
                unread=job.unread if first else (),
            ),
        )


def _loads_for(found_process: JobProcess) -> int | None:
    return found_process.parent if found_process.role == LOADER else None


def _read_snapshot(job: RunningJob, case: Case) -> JobSnapshot:
    aids = _aids(case, {process.pid for process in job.processes if process.role == RANK})
    seen = read_job_snapshot(take_snapshot(job, aids=aids))
    assert seen is not None  # it has a time
    return seen


def _aids(case: Case, pids: set[int]) -> Mapping[int, Aid]:
    """Returns the sockets of instrumented ranks."""
    here = (rank for rank in case.ranks if rank.pid in pids and rank.is_here)
    facts = ((rank.pid, rank.metadata.worker_socket) for rank in here)
    return {
        pid: Aid(worker_socket=path)
        for pid, path in facts
        if pid is not None and isinstance(path, str)
    }
