"""Processes around a failed rank: its ended children, and the machine's record of its end."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.ending_records import Ending
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case

SHORTLY = 2.0
"""Seconds after its rank's failure in which a child's earlier end may still be observed."""
SOON = 10.0
"""Seconds in which a rank notices that a child of its is gone: a DataLoader looks every 5 s
(MP_STATUS_CHECK_INTERVAL of torch/utils/data/_utils)."""
LAST_MINUTE = 60.0
_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? (?P<pids>\d{1,9}(?:, \d{1,9})*)\) "
    r"(?:is killed by signal: (?P<signal>[A-Za-z /]{1,40})|exited unexpectedly)"
)


@dataclass(frozen=True, slots=True)
class LostWorkers:
    """Data-loader workers that a rank's exception reports as lost. `signal`: its description by
    strsignal(3); None: unknown."""

    pids: tuple[int, ...]
    signal: str | None


def parse_lost_workers(failure: RankFailure) -> LostWorkers | None:
    """The workers whose death a rank raised, by torch's own message (torch 1.10 to 2.13)."""
    match = _WORKER.search(failure.error.message) if failure.error is not None else None
    if match is None:
        return None
    pids = tuple(int(pid) for pid in match["pids"].split(", "))
    return LostWorkers(pids, (match["signal"] or "").strip() or None)


def ending_of(failure: RankFailure, case: Case) -> Ending | None:
    """The endings recorded on the rank's host, or on the only host if the failure names none."""
    endings = [
        ending for ending in case.endings if failure.host is None or ending.host == failure.host
    ]
    return endings[0] if len(endings) == 1 else None


def ended_children(failure: RankFailure, case: Case, number: int) -> tuple[int, ...]:
    """Children of a failed rank that a signal ended just before it failed, or that it says did."""
    lost_workers, own = parse_lost_workers(failure), children_of(failure, case)
    seen = {
        end.pid
        for end in case.ends
        if end.pid in own and end.signal == number and just_before(end.at, failure)
    }
    if lost_workers is not None and lost_workers.signal == signal.strsignal(number):
        seen |= set(lost_workers.pids)
    return tuple(sorted(seen))


def children_of(failure: RankFailure, case: Case) -> frozenset[int]:
    """Every child that a failed rank is known to have had, those that it says it lost included."""
    if failure.pid is None:
        return frozenset()
    lost_workers, parents = parse_lost_workers(failure), parents_of(case, ending_of(failure, case))
    own = {pid for pid, parent in parents.items() if parent == failure.pid}
    return frozenset(own | set(lost_workers.pids if lost_workers is not None else ()))


def not_long_before(seen: float | None, failure: RankFailure) -> bool:
    """The same of something that was seen at some look after it happened."""
    return seen is None or failure.at is None or seen >= failure.at - SOON


def just_before(at: float | None, failure: RankFailure) -> bool:
    """Whether something at this moment may be why the rank failed."""
    if at is None or failure.at is None:
        return True
    return failure.at - SOON <= at <= failure.at + SHORTLY


def parents_of(case: Case, ending: Ending | None) -> Mapping[int, int]:
    """pid -> its parent's, as far as anybody noted them."""
    parents: dict[int, int] = {}
    for sample in case.host_samples:
        for pid, task in sample.tasks.items():
            if task.parent is not None:
                parents[pid] = task.parent
    if ending is not None:
        for pid, process in ending.processes.items():
            if process.parent is not None:
                parents[pid] = process.parent
    return parents


def last_seen(case: Case, host: str | None, before: float | None) -> HostSample | None:
    """The newest sample of a host before a moment, a minute old at most, that lists processes."""
    moment = case.observed if before is None else before
    for sample in reversed(case.host_samples):
        here = host is None or sample.host in (None, host)
        if here and sample.processes and moment - LAST_MINUTE <= sample.at <= moment:
            return sample
    return None
