"""The rank that slows down the others in a running job, by stacks sampled for a few seconds. Pure.

The culprit is in its own code in far more samples than any other rank, while the others are in a
collective or in the backward pass, in which DDP waits. Fisher's exact test (Fisher 1922) judges the
counts. The samples must also show that many steps passed: twenty samples of one long step are one
observation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.progress import BUSY
from mgpu_doctor.analysis.stacks.thread_states import ThreadState, list_thread_states
from mgpu_doctor.analysis.stacks.wait_classifier import BETWEEN_TWO, WAITING, Doing
from mgpu_doctor.case.job_snapshots import JobSnapshot

LEAST_SNAPSHOTS = 12
"""Fewer samples cannot exclude chance among several ranks."""
RECENT = 60.0
"""Seconds; older snapshots do not count."""
LEAST_EXCESS = 0.35
"""Share of the samples by which the culprit must be at work more often than any other rank."""
LEAST_WAIT = 0.5
"""Share of the samples in which every other rank waits."""
LEAST_TURNS = 6
"""Signs of steps that passed, on the median of the other ranks."""
FALSE_ALARMS = 1e-3
"""Probability of naming any rank in one examination of a healthy job."""
_GONE = frozenset({Doing.DEAD, Doing.STOPPED, Doing.ENDING, Doing.JOINING, Doing.UNKNOWN})
_STARTING = frozenset({Doing.IMPORTING, Doing.COMPILING})


class Work(str, Enum):
    """The kind of the culprit's own work."""

    INPUT = "input"
    COMPUTE = "compute"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SampledStraggler:
    """A rank that the others wait for, step after step."""

    rank: int
    pid: int
    kind: Work
    snapshots: int
    seconds: float
    own: float
    """Share of the samples in which it did not wait."""
    others: float
    """Share of the samples in which the busiest other rank did not wait."""
    waiting: Mapping[int, float]
    """Rank -> share of the samples in which it waited."""
    operation: str | None
    """The operation in which the others waited most often."""
    function: str
    file: str
    line: int | None
    """The most frequent line of its own code."""
    share: float
    """Share of the samples in that function."""
    chance: float
    """p-value of the test, times the number of ranks."""


def why_incomparable(snapshots: Sequence[JobSnapshot]) -> str | None:
    """Why stacks cannot show a slow rank; None if they can.

    On a GPU the host only queues work, so its stack says little about what the device does.
    """
    ranks = snapshots[-1].ranks if len(snapshots) >= LEAST_SNAPSHOTS else ()
    if any(process.on_device for process in ranks):
        return "the ranks compute on devices that run behind their hosts, which stacks do not show"
    if any(process.on_device is None for process in ranks):
        return "whether the ranks compute on devices, which stacks do not show, could not be seen"
    return None


def find_sampled_straggler(snapshots: Sequence[JobSnapshot]) -> SampledStraggler | None:
    """The rank that the others wait for; None if the samples are inconclusive.

    `snapshots`: oldest first, of ranks that can be compared.
    """
    snapshots = [snapshot for snapshot in snapshots if snapshot.at >= snapshots[-1].at - RECENT]
    if len(snapshots) < LEAST_SNAPSHOTS:
        return None
    rounds = [list_thread_states(snapshot) for snapshot in snapshots]
    series = _series(rounds)
    if series is None or len(series) < 2:
        return None
    own = {rank: sum(map(_works, seen)) for rank, seen in series.items()}
    suspect = max(own, key=lambda rank: own[rank])
    rest = [rank for rank in series if rank != suspect]
    second = max(own[rank] for rank in rest)
    count = len(snapshots)
    if (own[suspect] - second) / count < LEAST_EXCESS:
        return None
    waits = {rank: _share(series[rank]) for rank in rest}
    if min(waits.values()) < LEAST_WAIT:
        return None
    chance = len(series) * _fisher(own[suspect], second, count)
    passed = _count_turns(series, rest) >= LEAST_TURNS and _has_run(series[suspect])
    if chance > FALSE_ALARMS or not passed:
        return None
    return _describe_straggler(snapshots, series, suspect, waits, chance)


def _series(rounds: Sequence[Sequence[ThreadState]]) -> dict[int, list[ThreadState]] | None:
    """Rank -> its state in each snapshot; None if the ranks cannot be compared.

    That is so if ranks come, go or start, or if they are the stages of a pipeline, which do
    different work.
    """
    series: dict[int, list[ThreadState]] = {}
    for thread_states in rounds:
        for thread_state in thread_states:
            wrong = (
                thread_state.doing in _GONE
                or thread_state.doing in _STARTING
                or thread_state.operation in BETWEEN_TWO
            )
            if thread_state.rank is None or wrong:
                return None
            series.setdefault(thread_state.rank, []).append(thread_state)
    complete = all(len(seen) == len(rounds) for seen in series.values())
    steady = all(len({rank.pid for rank in seen}) == 1 for seen in series.values())
    return series if complete and steady else None


def _works(state: ThreadState) -> bool:
    return state.doing not in WAITING


def _share(seen: Sequence[ThreadState]) -> float:
    return sum(not _works(state) for state in seen) / len(seen)


def _fisher(high: int, low: int, count: int) -> float:
    """The probability that two equal ranks are at work `high` or more times and `low` times, in
    `count` samples each: the hypergeometric tail."""
    total = high + low
    ways = math.comb(2 * count, total)
    tail = sum(math.comb(count, k) * math.comb(count, total - k) for k in range(high, total + 1))
    return tail / ways


def _count_turns(series: Mapping[int, Sequence[ThreadState]], rest: Sequence[int]) -> int:
    """How many signs show that steps passed, on the median rank: changes between work and wait, or
    some CPU time between two samples of a rank that waits without spinning."""
    signs = []
    for rank in rest:
        seen = series[rank]
        pairs = list(pairwise(seen))
        turned = sum(_works(thread_state) != _works(other) for thread_state, other in pairs)
        signs.append(
            max(turned, sum(_stirred(thread_state, other) for thread_state, other in pairs))
        )
    return sorted(signs)[len(signs) // 2]


def _stirred(state: ThreadState, other: ThreadState) -> bool:
    """Whether the main thread ran between two samples, but for less than most of the time. A thread
    that waits in gloo does not run at all."""
    before, after = state.process.main_cpu_seconds, other.process.main_cpu_seconds
    if before is None or after is None or state.at >= other.at:
        return False
    return 1e-4 < after - before < BUSY * (other.at - state.at)


def _has_run(seen: Sequence[ThreadState]) -> bool:
    """Whether the main thread used CPU time between the first sample and the last, or that is not
    known. If not, the steps of the others passed without it."""
    before, after = seen[0].process.main_cpu_seconds, seen[-1].process.main_cpu_seconds
    return before is None or after is None or after > before


def _describe_straggler(
    snapshots: Sequence[JobSnapshot],
    series: Mapping[int, Sequence[ThreadState]],
    suspect: int,
    waits: Mapping[int, float],
    chance: float,
) -> SampledStraggler | None:
    count = len(snapshots)
    working = [one_series.point for one_series in series[suspect] if _works(one_series)]
    inputs = sum(_input(one_series) for one_series in series[suspect] if _works(one_series))
    places = Counter(
        (thread_state.place.file, thread_state.place.function)
        for thread_state in working
        if thread_state.place
    )
    if not places:
        return None
    (file, function), times = places.most_common(1)[0]
    lines = Counter(
        thread_state.place.line
        for thread_state in working
        if thread_state.place
        and (thread_state.place.file, thread_state.place.function) == (file, function)
    )
    computes = sum(map(_computes, working))
    kind = Work.OTHER
    if 2 * inputs > len(working):
        kind = Work.INPUT
    elif 2 * computes > len(working):
        kind = Work.COMPUTE
    operations = Counter(
        one_series.operation
        for rank in waits
        for one_series in series[rank]
        if not _works(one_series)
    )
    return SampledStraggler(
        rank=suspect,
        pid=series[suspect][-1].host_pid,
        kind=kind,
        snapshots=count,
        seconds=snapshots[-1].at - snapshots[0].at,
        own=1 - _share(series[suspect]),
        others=1 - min(waits.values()),
        waiting=waits,
        operation=operations.most_common(1)[0][0] if operations else None,
        function=function.rpartition(".")[2],
        file=file,
        line=lines.most_common(1)[0][0],
        share=times / count,
        chance=chance,
    )


def _input(state: ThreadState) -> bool:
    return state.doing is Doing.LOADER or frames.is_any_in(
        state.trail, "torch/utils/data/", "tensorflow/python/data/"
    )


def _computes(state: ThreadState) -> bool:
    return any(
        frames.function_name(frame) == "forward" or frames.is_in(frame, "torch/nn/", "torch/optim/")
        for frame in state.trail
    )
