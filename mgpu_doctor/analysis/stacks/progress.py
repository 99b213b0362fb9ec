"""Measures how long each rank has been at the same place in the code, from snapshots of its stacks.

`hang_analysis` judges the result. A rank that makes progress must never appear as idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mgpu_doctor.analysis.stacks.thread_states import ThreadState, list_thread_states, native_calls
from mgpu_doctor.analysis.stacks.wait_classifier import RUNNABLE, Doing
from mgpu_doctor.case.job_snapshots import JobSnapshot, Loop, Process
from mgpu_doctor.case.user_code import is_user_code

LEAST_BLOCKED = 0.8
"""Seconds that snapshots must span without any rank using CPU time: in no healthy step are all
ranks idle for this long."""
STILL = 0.002
"""Cores that the main thread of a blocked rank may use. The kernel counts in nanoseconds. Measured:
0 while waiting in gloo, for a lock or for a pipe; 0.01 and more in training steps of 1 ms."""
TICK = 0.02
"""CPU seconds (two clock ticks) by which the counters of an idle process may grow."""
LEAST_REST = 0.5
"""Seconds without running, by the scheduler, from which a thread counts as blocked: a thread that
does not run does not leave its line."""
BUSY = 0.7
"""Cores from which a thread is busy, not waiting."""
NAPS = 0.05
"""Cores that a polling rank may use: measured 0.005 for sleeps of 10 ms, 0.02 for 1 ms."""
_POLLS = frozenset({Doing.OWN, Doing.SLEEPING})
"""What a polling rank is seen doing: one that reads makes progress, such as a download."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How long one rank has been at its place, and the CPU time that it used there."""

    state: ThreadState
    """In the newest snapshot. A rank that sleeps again and again at one line is asleep there, also
    if that snapshot caught it waking up."""
    since: float
    """When it was first seen there, in seconds since the epoch."""
    cores: float | None
    """Cores that its main thread (else its process) used there; None: unknown, or one snapshot."""
    idle: bool
    """Whether its main thread used no CPU time there."""
    looping: bool = False
    """Whether it keeps running within a single call of one of the user's functions."""
    computing: bool = False
    """Whether it keeps running within a single call of one of the user's functions or in libraries
    called from there."""
    napping: bool = False
    """Whether every snapshot shows it below the same call of one of the user's functions, where it
    used hardly any CPU time (`NAPS`): it asks again and again, and sleeps. False if it has slept
    at one line for `LEAST_BLOCKED`, however often it woke up there."""
    process_idle: bool = False
    """Whether no thread of its process used CPU time there."""
    process_cores: float | None = None
    """Cores that all its threads used there."""
    moved: bool = False
    """Whether any earlier snapshot shows it at another place: proof that it moves."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of all ranks up to the newest snapshot."""

    at: float
    snapshots: int
    world_size: int | None
    missing: tuple[int, ...]
    loops: tuple[Loop, ...] = ()
    ranks: tuple[RankProgress, ...] = field(default_factory=tuple)
    apart: bool = False
    """Whether no rank is in a process group."""


def measure_progress(snapshots: Sequence[JobSnapshot]) -> JobProgress | None:
    """The progress of all ranks; None without ranks. `snapshots`: oldest first."""
    if not snapshots or not snapshots[-1].ranks:
        return None
    native = native_calls(snapshots)
    rounds = [
        (snapshot.at, {state.pid: state for state in list_thread_states(snapshot, native)})
        for snapshot in snapshots
    ]
    last = snapshots[-1]
    return JobProgress(
        at=last.at,
        snapshots=len(snapshots),
        world_size=last.world_size or _world(last),
        missing=tuple(sorted({*last.missing} - {rank.rank for rank in last.ranks})),
        apart=last.apart,
        loops=last.loops,
        ranks=tuple(
            replace(_measure_rank(state, rounds), moved=_was_elsewhere(state, rounds))
            for state in rounds[-1][1].values()
        ),
    )


def seconds_without_movement(snapshots: Sequence[JobSnapshot]) -> dict[int, float]:
    """Pid of each rank that the snapshots (oldest first) show at one place only -> for how long."""
    progress = measure_progress(snapshots)
    ranks = progress.ranks if progress is not None else ()
    return {
        rank.state.pid: snapshots[-1].at - rank.since
        for rank in ranks
        if not rank.moved and rank.since < snapshots[-1].at
    }


def _world(snapshot: JobSnapshot) -> int | None:
    return max((rank.world_size for rank in snapshot.ranks if rank.world_size), default=None)


def _measure_rank(
    newest: ThreadState, rounds: Sequence[tuple[float, Mapping[int, ThreadState]]]
) -> RankProgress:
    at = rounds[-1][0]
    since, first = _find_start(newest, rounds, _has_not_moved)
    if _is_looping(newest, newest):
        began, start = _find_start(newest, rounds, _is_looping)
        cores = _main_thread_cores(start.process, newest.process, at - began)
        if cores is not None and cores >= BUSY:
            return RankProgress(newest, began, cores, idle=False, looping=True)
    began, start = _find_start(newest, rounds, _is_in_same_call)
    cores = _main_thread_cores(start.process, newest.process, at - began)
    # On busy cores a computing rank runs only part of the time, but is always ready to run.
    least = STILL if _is_always_ready(newest.pid, rounds) else BUSY
    if len(rounds) > 1 and began == rounds[0][0] and cores is not None and cores > least:
        return RankProgress(newest, began, cores, idle=False, computing=True)
    began, start = _find_start(newest, rounds, _is_in_same_function)
    cores = _main_thread_cores(start.process, newest.process, at - began)
    sleeps_at_one_line = newest.doing is Doing.SLEEPING and (
        began == since or at - since >= LEAST_BLOCKED
    )
    always = len(rounds) > 1 and began == rounds[0][0] and not sleeps_at_one_line
    if always and cores is not None and cores <= NAPS and (cores > STILL or began < since):
        asleep = _last_sleep(newest, rounds)
        if asleep is not None:
            return RankProgress(asleep, began, cores, idle=False)
        return RankProgress(newest, began, cores, idle=False, napping=True)
    seconds = at - since
    rested = newest.point.process.rested or 0.0
    started = at - rested
    if rested < max(seconds, LEAST_REST):  # reading its native stack made it run in between
        earlier = first.point.process.rested or 0.0
        started = since - (earlier if earlier >= LEAST_REST else 0.0)
    return RankProgress(
        state=newest,
        since=started,
        cores=_main_thread_cores(first.process, newest.process, seconds),
        idle=(seconds > 0 and _is_main_thread_idle(first, newest, seconds)) or rested >= LEAST_REST,
        process_idle=seconds > 0 and _is_process_idle(first.process, newest.process, seconds),
        process_cores=_process_cores(first.process, newest.process, seconds),
    )


def _last_sleep(
    newest: ThreadState, rounds: Sequence[tuple[float, Mapping[int, ThreadState]]]
) -> ThreadState | None:
    """The newest state of a rank that every snapshot shows at one line, asleep there in two of them
    that are `LEAST_BLOCKED` apart; in the others it woke up, or waited for a core. None: another
    rank."""
    states = [(at, thread_states[newest.pid]) for at, thread_states in rounds]
    slept = [at for at, state in states if state.doing is Doing.SLEEPING]
    if {state.trail for _, state in states} != {newest.trail} or not slept:
        return None
    if slept[-1] - slept[0] < LEAST_BLOCKED:
        return None
    last = dict(states)[slept[-1]]
    return replace(newest, doing=last.doing, operation=last.operation, certain=last.certain)


def _was_elsewhere(
    newest: ThreadState, rounds: Sequence[tuple[float, Mapping[int, ThreadState]]]
) -> bool:
    states = (thread_states.get(newest.pid) for _, thread_states in rounds)
    return any(state is not None and not _has_not_moved(state, newest) for state in states)


def _is_always_ready(pid: int, rounds: Sequence[tuple[float, Mapping[int, ThreadState]]]) -> bool:
    """Whether the main thread runs, or waits for a core, in every snapshot."""
    states = [
        thread_states[pid].process.state for _, thread_states in rounds if pid in thread_states
    ]
    return len(states) == len(rounds) and set(states) == {RUNNABLE}


def _find_start(
    newest: ThreadState,
    rounds: Sequence[tuple[float, Mapping[int, ThreadState]]],
    same: Callable[[ThreadState, ThreadState], bool],
) -> tuple[float, ThreadState]:
    """When the rank first was in the same place, and its state then."""
    since, first = rounds[-1][0], newest
    for earlier, thread_states_by_rank in reversed(rounds[:-1]):
        sample = thread_states_by_rank.get(newest.pid)
        if sample is None or not same(sample, newest):
            break
        since, first = earlier, sample
    return since, first


def _has_not_moved(state: ThreadState, other: ThreadState) -> bool:
    """Whether the rank is at the same place, as far as stacks show."""
    if (state.doing, state.trail) != (other.doing, other.trail):
        return False
    if state.worker is None or other.worker is None:  # not every snapshot has the workers' stacks
        return True
    return _has_not_moved(state.worker, other.worker)


def _is_looping(state: ThreadState, other: ThreadState) -> bool:
    """Whether the innermost frame of both is the same call of one of the user's functions, on any
    of its lines."""
    if (
        state.doing is not Doing.OWN
        or other.doing is not Doing.OWN
        or not (state.gil and other.gil)
    ):
        return False
    if not state.trail or not other.trail or not is_user_code(state.trail[-1].file):
        return False
    inner, outer = state.trail[-1], other.trail[-1]
    return state.trail[:-1] == other.trail[:-1] and (
        (inner.file, inner.function) == (outer.file, outer.function)
    )


def _is_in_same_call(state: ThreadState, other: ThreadState) -> bool:
    """Whether both run below the same call of one of the user's functions, on any line of it."""
    if state.doing is not Doing.OWN or other.doing is not Doing.OWN:
        return False
    calls = [_find_user_calls(each) for each in (state, other)]
    return bool(calls[0]) and calls[0] == calls[1]


def _is_in_same_function(state: ThreadState, other: ThreadState) -> bool:
    """The same, also while it sleeps in between; not while it reads or waits for other ranks."""
    calls = [_find_user_calls(each) for each in (state, other)]
    return {state.doing, other.doing} <= _POLLS and bool(calls[0]) and calls[0] == calls[1]


def _find_user_calls(state: ThreadState) -> tuple[object, ...]:
    """The call chain to the innermost of the user's functions, and that function. Empty if that is
    the script's top level, in which a rank is at every step."""
    depth = max((at for at, frame in enumerate(state.trail) if is_user_code(frame.file)), default=0)
    if not depth:
        return ()
    inner = state.trail[depth]
    return (*state.trail[:depth], (inner.file, inner.function))


def _main_thread_cores(first: Process, last: Process, seconds: float) -> float | None:
    """Cores that the main thread used, or the whole process if that is unknown."""
    before, after = first.main_cpu_seconds, last.main_cpu_seconds
    if before is None or after is None or seconds <= 0:
        return _process_cores(first, last, seconds)
    return max(0.0, after - before) / seconds


def _process_cores(first: Process, last: Process, seconds: float) -> float | None:
    before, after = first.cpu_seconds, last.cpu_seconds
    if before is None or after is None or seconds <= 0:
        return None
    return max(0.0, after - before) / seconds


def _is_main_thread_idle(first: ThreadState, last: ThreadState, seconds: float) -> bool:
    """Whether the main thread, and the worker that it waits for, used no CPU time."""
    before, after = first.process.main_cpu_seconds, last.process.main_cpu_seconds
    if before is None or after is None:
        still = _is_process_idle(first.process, last.process, seconds)
    else:
        still = after - before <= STILL * max(seconds, 1.0)
    if last.doing is Doing.CHILD:
        still = still and last.started_cpu - first.started_cpu <= TICK * max(seconds, 1.0) + 1e-9
    if first.worker is None or last.worker is None:
        return still
    return still and _is_main_thread_idle(first.worker, last.worker, seconds)


def _is_process_idle(first: Process, last: Process, seconds: float) -> bool:
    before, after = first.cpu_seconds, last.cpu_seconds
    if before is None or after is None:
        return False
    return after - before <= max(TICK, TICK * seconds) + 1e-9
