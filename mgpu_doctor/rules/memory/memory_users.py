"""The host memory of each process just before a failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.postmortem.child_processes import ending_of, last_seen, parents_of
from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Evidence

MOST_TOLD = 8
"""Ranks whose memory is listed one by one, the largest first."""


@dataclass(frozen=True, slots=True)
class User:
    """A rank and its child processes. Resident bytes, in which shared pages count for each."""

    pid: int
    rank: int | None
    own: int
    of_workers: int
    workers: int

    @property
    def total(self) -> int:
        return self.own + self.of_workers


def users(case: Case, failure: RankFailure) -> tuple[User, ...]:
    """The ranks of the failed one's host by the last sample before, the largest first."""
    sample = last_seen(case, failure.host, failure.at)
    if sample is None:
        return ()
    parents = parents_of(case, ending_of(failure, case))
    result = []
    for rank in case.ranks:
        own = sample.processes.get(rank.pid) if rank.pid is not None else None
        if rank.pid is None or own is None or sample.host not in (None, rank.host):
            continue
        workers = [
            resident
            for pid, (_, resident) in sample.processes.items()
            if parents.get(pid) == rank.pid
        ]
        result.append(User(rank.pid, rank.rank, own[1], sum(workers), len(workers)))
    return tuple(sorted(result, key=lambda user: -user.total))


def list_evidence(users: Iterable[User]) -> tuple[Evidence, ...]:
    """The memory of each rank as evidence, the largest first."""
    lines = []
    for user in tuple(users)[:MOST_TOLD]:
        who = "a process" if user.rank is None else f"rank {user.rank}"
        what = f"resident memory of {who} in the last sample"
        lines.append(Evidence(what, user.own, "bytes", source="host samples"))
        if user.workers:
            what = f"resident memory of its worker processes ({user.workers})"
            lines.append(Evidence(what, user.of_workers, "bytes", source="host samples"))
    return tuple(lines)
