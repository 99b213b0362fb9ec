"""What is measured of ranks without a process group, each by itself. Pure.

No rank waits for them or is compared with them, and what one of them does or did is no reason for
what another one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.postmortem.failure_order import find_first_failures
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.analysis.stacks.hang_analysis import Hang, Kind, analyse_hang
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls, find_stalls_alone
from mgpu_doctor.case.job_snapshots import JobSnapshot, Role
from mgpu_doctor.case.model import Case, Rank


def find_stalls_of_each(ranks: Iterable[Rank]) -> tuple[Stalls, ...] | None:
    """What the probe saw stop each rank; None: too few steps are known of any."""
    known = [stalls for rank in ranks if (stalls := find_stalls_alone(rank)) is not None]
    return tuple(stall for stalls in known for stall in stalls) if known else None


def find_blocked_alone(snapshots: Sequence[JobSnapshot], ranks: Iterable[Rank]) -> Hang | None:
    """The ranks that are blocked, each by its own stacks; None: none is. `snapshots`: oldest
    first."""
    alone = [analyse_hang([_keep_rank(snapshot, rank) for snapshot in snapshots]) for rank in ranks]
    blocked = [hang for hang in alone if hang is not None and hang.kind is Kind.BEHIND]
    if not blocked:
        return None
    return replace(
        blocked[0],
        seconds=min(hang.seconds for hang in blocked),
        culprits=tuple(culprit for hang in blocked for culprit in hang.culprits),
    )


def find_later_failures(
    failures: Iterable[RankFailure], first: Sequence[RankFailure], case: Case
) -> Iterator[tuple[RankFailure, ...]]:
    """Yields the failures after the first, each with those of the same event. Those of processes
    that their program ended are left out."""
    left = [failure for failure in failures if failure.kind is not FailureKind.SECONDARY]
    event = first
    while event:
        named = {failure.pid for failure in event}
        left = [failure for failure in left if failure.pid not in named]
        event = find_first_failures(tuple(left), case)
        if event:
            yield event


def _keep_rank(snapshot: JobSnapshot, rank: Rank) -> JobSnapshot:
    """The snapshot without other ranks. What it knows from outside is which process is which, not
    the rank's number."""
    pid = rank.stack_pid
    others = {process.pid for process in snapshot.ranks} - {pid}
    kept = tuple(
        replace(process, rank=rank.rank, role=Role.RANK) if process.pid == pid else process
        for process in snapshot.processes
        if process.pid not in others
    )
    return replace(snapshot, processes=kept, missing=(), world_size=1)
