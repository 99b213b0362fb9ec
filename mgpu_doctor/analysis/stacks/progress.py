"""What stood still from look to look, and since when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.thread_states import Posture, natives, postures
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.job_snapshots import Look, Process

STILL = 0.002
"""Cores that the main thread of a rank that stands may use. The kernel counts it in nanoseconds:
measured 0 while it waits in gloo, a lock or a pipe, 0.01 and more in steps of a millisecond."""
TICK = 0.02
"""Two clock ticks: what a process may seem to have used where its threads are not told apart."""
LEAST_REST = 0.5
"""Seconds for which a thread has not run, by the scheduler, from which it counts as standing: a
thread that does not run does not leave its line."""
BUSY = 0.7
"""Cores from which a thread does not wait."""


@dataclass(frozen=True, slots=True)
class Motion:
    """What the looks together tell of one rank."""

    posture: Posture
    """In the newest look."""
    since: float
    """It has stood there at least since, in seconds since the epoch."""
    cores: float | None
    """That its main thread used meanwhile, else its process; None: one look, or not known."""
    flat: bool
    """It used no processor time meanwhile."""
    turning: bool = False
    """It runs on in one function of the user's own, which does not return."""
    all_flat: bool = False
    """None of its threads used any."""
    all_cores: float | None = None
    """That all its threads used meanwhile."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The newest look, read with those before it."""

    at: float
    looks: int
    world_size: int | None
    missing: tuple[int, ...]
    motions: tuple[Motion, ...] = field(default_factory=tuple)


def follow(looks: Sequence[Look]) -> Followed | None:
    """None where there are no looks with ranks in them. `looks`: oldest first."""
    if not looks or not looks[-1].ranks:
        return None
    native = natives(looks)
    rounds = [
        (look.at, {posture.pid: posture for posture in postures(look, native)}) for look in looks
    ]
    last = looks[-1]
    return Followed(
        at=last.at,
        looks=len(looks),
        world_size=last.world_size or _world(last),
        missing=tuple(sorted({*last.missing} - {rank.rank for rank in last.ranks})),
        motions=tuple(_motion(one, rounds) for one in rounds[-1][1].values()),
    )


def _world(look: Look) -> int | None:
    return max((rank.world_size for rank in look.ranks if rank.world_size), default=None)


def _motion(newest: Posture, rounds: Sequence[tuple[float, Mapping[int, Posture]]]) -> Motion:
    at = rounds[-1][0]
    since, first = _back(newest, rounds, _alike)
    if _turns(newest, newest):
        began, start = _back(newest, rounds, _turns)
        cores = _cores(start.process, newest.process, at - began)
        if cores is not None and cores >= BUSY:
            return Motion(newest, began, cores, flat=False, turning=True)
    seconds = at - since
    rested = newest.point.process.rested or 0.0
    return Motion(
        posture=newest,
        since=min(since, at - rested) if rested >= LEAST_REST else since,
        cores=_cores(first.process, newest.process, seconds),
        flat=(seconds > 0 and _flat(first, newest, seconds)) or rested >= LEAST_REST,
        all_flat=seconds > 0 and _all_flat(first.process, newest.process, seconds),
        all_cores=_all_cores(first.process, newest.process, seconds),
    )


def _back(
    newest: Posture,
    rounds: Sequence[tuple[float, Mapping[int, Posture]]],
    same: Callable[[Posture, Posture], bool],
) -> tuple[float, Posture]:
    """How far back it was the same, and what it was then."""
    since, first = rounds[-1][0], newest
    for earlier, found in reversed(rounds[:-1]):
        sample = found.get(newest.pid)
        if sample is None or not same(sample, newest):
            break
        since, first = earlier, sample
    return since, first


def _alike(posture: Posture, other: Posture) -> bool:
    """Whether it has not moved, as far as stacks tell."""
    if (posture.doing, posture.trail) != (other.doing, other.trail):
        return False
    if posture.worker is None or other.worker is None:  # not every look reads the workers' stacks
        return True
    return _alike(posture.worker, other.worker)


def _turns(posture: Posture, other: Posture) -> bool:
    """Whether both are in the same call of the same function of the user's own, which itself runs,
    on whatever line."""
    if (
        posture.doing is not Doing.OWN
        or other.doing is not Doing.OWN
        or not (posture.gil and other.gil)
    ):
        return False
    if not posture.trail or not other.trail or not frames.own(posture.trail[-1]):
        return False
    inner, outer = posture.trail[-1], other.trail[-1]
    return posture.trail[:-1] == other.trail[:-1] and (
        (inner.file, inner.function) == (outer.file, outer.function)
    )


def _cores(first: Process, last: Process, seconds: float) -> float | None:
    """Of its main thread, where that is told."""
    before, after = first.main_cpu_seconds, last.main_cpu_seconds
    if before is None or after is None or seconds <= 0:
        return _all_cores(first, last, seconds)
    return max(0.0, after - before) / seconds


def _all_cores(first: Process, last: Process, seconds: float) -> float | None:
    before, after = first.cpu_seconds, last.cpu_seconds
    if before is None or after is None or seconds <= 0:
        return None
    return max(0.0, after - before) / seconds


def _flat(first: Posture, last: Posture, seconds: float) -> bool:
    """Of its main thread, where that is told, and of the worker that it waits for."""
    before, after = first.process.main_cpu_seconds, last.process.main_cpu_seconds
    if before is None or after is None:
        still = _all_flat(first.process, last.process, seconds)
    else:
        still = after - before <= STILL * max(seconds, 1.0)
    if last.doing is Doing.CHILD:
        still = still and last.started_cpu - first.started_cpu <= TICK * max(seconds, 1.0) + 1e-9
    if first.worker is None or last.worker is None:
        return still
    return still and _flat(first.worker, last.worker, seconds)


def _all_flat(first: Process, last: Process, seconds: float) -> bool:
    before, after = first.cpu_seconds, last.cpu_seconds
    if before is None or after is None:
        return False
    return after - before <= max(TICK, TICK * seconds) + 1e-9
