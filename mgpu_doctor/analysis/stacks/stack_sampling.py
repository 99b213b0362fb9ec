"""Who works while the others wait, in a job that moves: stacks sampled for a few seconds. Pure.

The culprit is the rank whose own code is on top of its stack far more often than any other's, while
the others are in a collective or in the backward pass, in which DDP waits. The samples are counted
with Fisher's exact test (Fisher 1922); what they must show beyond it is that many steps passed
meanwhile: of one long step, twenty samples say the same twenty times.
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
from mgpu_doctor.analysis.stacks.thread_states import Posture, postures
from mgpu_doctor.analysis.stacks.wait_classifier import BETWEEN_TWO, WAITING, Doing
from mgpu_doctor.case.job_snapshots import Look

LEAST_LOOKS = 12
"""Fewer cannot be told from chance among several ranks."""
RECENT = 60.0
"""Seconds; older looks are of another time."""
LEAST_EXCESS = 0.35
"""Share of the samples by which its own work must exceed that of every other rank."""
LEAST_WAIT = 0.5
"""Share of the samples in which every other rank waits."""
LEAST_TURNS = 6
"""Signs of steps that passed, on the median of the other ranks."""
FALSE_ALARMS = 1e-3
"""Of one examination of a healthy job, all its ranks together."""
_GONE = frozenset({Doing.DEAD, Doing.STOPPED, Doing.ENDING, Doing.JOINING, Doing.UNKNOWN})
_STARTING = frozenset({Doing.IMPORTING, Doing.COMPILING})


class Work(str, Enum):
    """What the culprit's own work is."""

    INPUT = "input"
    COMPUTE = "compute"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Sampled:
    """The rank that keeps the others waiting, step after step."""

    rank: int
    pid: int
    kind: Work
    looks: int
    seconds: float
    own: float
    """Share of the samples in which it did not wait."""
    others: float
    """The same of the rank that did so most often of the others."""
    waiting: Mapping[int, float]
    """Rank -> share of the samples in which it waited."""
    operation: str | None
    """What the others waited in most often."""
    function: str
    file: str
    line: int | None
    """Where it was, and the others were not."""
    share: float
    """Of the samples, in that function."""
    chance: float
    """That a rank like the others would be seen so, times the number of ranks."""


def why_incomparable(looks: Sequence[Look]) -> str | None:
    """Why the stacks of a job that moves say nothing of who is waited for; None: they do. On a GPU
    the host only queues work: where it is says little of what the device does or waits for."""
    ranks = looks[-1].ranks if len(looks) >= LEAST_LOOKS else ()
    if any(process.on_device for process in ranks):
        return "the ranks compute on devices that run behind their hosts, which stacks do not show"
    if any(process.on_device is None for process in ranks):
        return "whether the ranks compute on devices, which stacks do not show, could not be seen"
    return None


def sampled(looks: Sequence[Look]) -> Sampled | None:
    """The rank that the others wait for, where samples decide it. `looks`: oldest first, of ranks
    that can be compared."""
    looks = [look for look in looks if look.at >= looks[-1].at - RECENT]
    if len(looks) < LEAST_LOOKS:
        return None
    rounds = [postures(look) for look in looks]
    series = _series(rounds)
    if series is None or len(series) < 2:
        return None
    own = {rank: sum(map(_works, seen)) for rank, seen in series.items()}
    suspect = max(own, key=lambda rank: own[rank])
    rest = [rank for rank in series if rank != suspect]
    second = max(own[rank] for rank in rest)
    count = len(looks)
    if (own[suspect] - second) / count < LEAST_EXCESS:
        return None
    waits = {rank: _share(series[rank]) for rank in rest}
    if min(waits.values()) < LEAST_WAIT:
        return None
    chance = len(series) * _fisher(own[suspect], second, count)
    if chance > FALSE_ALARMS or _turns(series, rest) < LEAST_TURNS:
        return None
    return _told(looks, series, suspect, waits, chance)


def _series(rounds: Sequence[Sequence[Posture]]) -> dict[int, list[Posture]] | None:
    """Rank -> where it was, look by look; None where they cannot be compared: ranks come, go or
    start, or they are stages of a pipeline, of which each rightly does something else."""
    series: dict[int, list[Posture]] = {}
    for found in rounds:
        for one in found:
            wrong = one.doing in _GONE or one.doing in _STARTING or one.operation in BETWEEN_TWO
            if one.rank is None or wrong:
                return None
            series.setdefault(one.rank, []).append(one)
    complete = all(len(seen) == len(rounds) for seen in series.values())
    steady = all(len({one.pid for one in seen}) == 1 for seen in series.values())
    return series if complete and steady else None


def _works(posture: Posture) -> bool:
    return posture.doing not in WAITING


def _share(seen: Sequence[Posture]) -> float:
    return sum(not _works(posture) for posture in seen) / len(seen)


def _fisher(high: int, low: int, count: int) -> float:
    """That of two ranks alike one is found at work `high` or more times and the other `low` times,
    of `count` looks each: the hypergeometric tail."""
    total = high + low
    ways = math.comb(2 * count, total)
    tail = sum(math.comb(count, k) * math.comb(count, total - k) for k in range(high, total + 1))
    return tail / ways


def _turns(series: Mapping[int, Sequence[Posture]], rest: Sequence[int]) -> int:
    """How many signs there are that steps passed: a rank that turned from work to wait or back, or
    used some processor time between two looks though it waits without spinning."""
    signs = []
    for rank in rest:
        seen = series[rank]
        pairs = list(pairwise(seen))
        turned = sum(_works(one) != _works(other) for one, other in pairs)
        signs.append(max(turned, sum(_stirred(one, other) for one, other in pairs)))
    return sorted(signs)[len(signs) // 2]


def _stirred(posture: Posture, other: Posture) -> bool:
    """Its main thread, of which the kernel counts nanoseconds, ran in between, yet mostly did
    not. One that waits in gloo does not run at all."""
    before, after = posture.process.main_cpu_seconds, other.process.main_cpu_seconds
    if before is None or after is None or posture.at >= other.at:
        return False
    return 1e-4 < after - before < BUSY * (other.at - posture.at)


def _told(
    looks: Sequence[Look],
    series: Mapping[int, Sequence[Posture]],
    suspect: int,
    waits: Mapping[int, float],
    chance: float,
) -> Sampled | None:
    count = len(looks)
    working = [one.point for one in series[suspect] if _works(one)]
    inputs = sum(_input(one) for one in series[suspect] if _works(one))
    places = Counter((one.place.file, one.place.function) for one in working if one.place)
    if not places:
        return None
    (file, function), times = places.most_common(1)[0]
    lines = Counter(
        one.place.line
        for one in working
        if one.place and (one.place.file, one.place.function) == (file, function)
    )
    computes = sum(map(_computes, working))
    kind = Work.OTHER
    if 2 * inputs > len(working):
        kind = Work.INPUT
    elif 2 * computes > len(working):
        kind = Work.COMPUTE
    operations = Counter(one.operation for rank in waits for one in series[rank] if not _works(one))
    return Sampled(
        rank=suspect,
        pid=series[suspect][-1].pid,
        kind=kind,
        looks=count,
        seconds=looks[-1].at - looks[0].at,
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


def _input(posture: Posture) -> bool:
    return posture.doing is Doing.LOADER or frames.anywhere(
        posture.trail, "torch/utils/data/", "tensorflow/python/data/"
    )


def _computes(posture: Posture) -> bool:
    return any(
        frames.name(frame) == "forward" or frames.within(frame, "torch/nn/", "torch/optim/")
        for frame in posture.trail
    )
