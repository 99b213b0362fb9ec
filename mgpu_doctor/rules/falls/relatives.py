"""Processes around a fallen rank: its children that ended, and what the machine tells of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from mgpu_doctor.case.endings import Ending
from mgpu_doctor.case.host import HostSample
from mgpu_doctor.case.model import Case
from mgpu_doctor.rules.falls.falls import Fall

SHORTLY = 2.0
"""Seconds after its rank's fall in which a child may still be seen to end, though it was first."""
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
    """What a rank's exception says of its data-loader workers. `signal`: in words, as strsignal(3)
    gives it; None: not told."""

    pids: tuple[int, ...]
    signal: str | None


def lost_workers(fall: Fall) -> LostWorkers | None:
    """The workers whose death a rank raised, by torch's own message (torch 1.10 to 2.13)."""
    told = _WORKER.search(fall.error.message) if fall.error is not None else None
    if told is None:
        return None
    pids = tuple(int(pid) for pid in told["pids"].split(", "))
    return LostWorkers(pids, (told["signal"] or "").strip() or None)


def ending_of(fall: Fall, case: Case) -> Ending | None:
    """What was recorded on the rank's host; where the fall names none, of the only host."""
    found = [one for one in case.endings if fall.host is None or one.host == fall.host]
    return found[0] if len(found) == 1 else None


def ended_children(fall: Fall, case: Case, number: int) -> tuple[int, ...]:
    """Children of a fallen rank that a signal ended just before it fell, or that it says did."""
    told, own = lost_workers(fall), children_of(fall, case)
    seen = {
        end.pid
        for end in case.ends
        if end.pid in own and end.signal == number and just_before(end.at, fall)
    }
    if told is not None and told.signal == signal.strsignal(number):
        seen |= set(told.pids)
    return tuple(sorted(seen))


def children_of(fall: Fall, case: Case) -> frozenset[int]:
    """Every child that a fallen rank is known to have had, those that it says it lost included."""
    if fall.pid is None:
        return frozenset()
    told, parents = lost_workers(fall), parents_of(case, ending_of(fall, case))
    own = {pid for pid, parent in parents.items() if parent == fall.pid}
    return frozenset(own | set(told.pids if told is not None else ()))


def not_long_before(seen: float | None, fall: Fall) -> bool:
    """The same of something that was seen at some look after it happened."""
    return seen is None or fall.at is None or seen >= fall.at - SOON


def just_before(at: float | None, fall: Fall) -> bool:
    """Whether something at this moment may be why the rank fell."""
    if at is None or fall.at is None:
        return True
    return fall.at - SOON <= at <= fall.at + SHORTLY


def parents_of(case: Case, ending: Ending | None) -> Mapping[int, int]:
    """pid -> its parent's, as far as anybody noted them."""
    found: dict[int, int] = {}
    for sample in case.host_samples:
        for pid, task in sample.tasks.items():
            if task.parent is not None:
                found[pid] = task.parent
    if ending is not None:
        for pid, process in ending.processes.items():
            if process.parent is not None:
                found[pid] = process.parent
    return found


def last_seen(case: Case, host: str | None, before: float | None) -> HostSample | None:
    """The newest sample of a host before a moment, a minute old at most, that lists processes."""
    moment = case.observed if before is None else before
    for sample in reversed(case.host_samples):
        here = host is None or sample.host in (None, host)
        if here and sample.processes and moment - LAST_MINUTE <= sample.at <= moment:
            return sample
    return None
