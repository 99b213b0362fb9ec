"""Which ranks the others wait for in a blocked job. Pure.

A rank that waits (in a collective, a receive, the rendezvous) is never blamed for it. The others
wait for any rank that is blocked elsewhere, however many these are: in a pipeline, and between two
ranks, the minority is often the victim. If all ranks wait, the places show whether they wait for
each other; if the places show nothing, the positions of their devices may (`device_positions`), or
no rank is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.device_positions import are_equally_far, find_device_behind
from mgpu_doctor.analysis.stacks.progress import (
    BUSY,
    LEAST_BLOCKED,
    NAPS,
    JobProgress,
    RankProgress,
    measure_progress,
)
from mgpu_doctor.analysis.stacks.thread_states import ThreadState
from mgpu_doctor.analysis.stacks.wait_classifier import (
    BETWEEN_TWO,
    OPERATIONS,
    REMOTE_CALLS,
    WAITING,
    Doing,
)
from mgpu_doctor.case.job_snapshots import Frame, JobSnapshot, Loop
from mgpu_doctor.case.model import DevicePosition

LONG_WAIT = 10.0
"""Seconds for which ranks have not run, from which on the others wait for a rank that computes. A
choice: no healthy step of a job on CPUs is known that one rank works at for so long alone."""
LEAST_SNAPSHOTS = 3
"""Snapshots that must show a rank in one call."""
MOST_DOUBTFUL = 4
MAJORITY, MAJORITY_BY_PLACE = 2, 3
"""Ranks that must agree before a single other rank is blamed: if it is in another operation, and if
it calls the same one elsewhere, as a branch for rank 0 rightly may."""
_SEVERAL_GROUPS = (
    "torch/distributed/tensor/",
    "torch/distributed/fsdp/",
    "torch/distributed/_composable/",
    "torch/distributed/pipelining/",
    "torch/distributed/_functional_collectives.py",
    "deepspeed/",
    "megatron/",
    "colossalai/",
)
"""Libraries that put ranks in several groups, so that a few may rightly wait elsewhere."""

_MAY_WORK = frozenset({Doing.BACKWARD, Doing.DEVICE})


class Kind(str, Enum):
    """What the stacks of a blocked job show."""

    ABSENT = "absent"
    """Ranks have ended or never started, and others wait."""
    BEHIND = "behind"
    """Ranks are blocked elsewhere, and others wait."""
    JOINING = "joining"
    """Ranks wait for others to join."""
    APART = "apart"
    """All wait, but in different places."""
    TOGETHER = "together"
    """All wait in the same place: the stacks do not show for what."""
    DEVICE_BEHIND = "device-behind"
    """All hosts wait, and one rank's device has not reached what the others' devices wait for."""


@dataclass(frozen=True, slots=True)
class Hang:
    """A blocked job, and the ranks that the others wait for."""

    kind: Kind
    seconds: float
    """How long all ranks named here have been blocked."""
    snapshots: int
    culprits: tuple[RankProgress, ...]
    """The ranks that the others wait for; empty: unknown."""
    waiting: tuple[ThreadState, ...]
    missing: tuple[int, ...] = ()
    """Ranks without a process that are waited for."""
    sides: tuple[tuple[ThreadState, ...], ...] = ()
    """APART: the ranks by the place where they wait, the largest group first."""
    complete: bool = False
    """Every rank of the job was seen."""
    world_size: int | None = None
    left_loop: Loop | None = None
    """APART: the loop that the culprits have left, while the others are still in it."""
    positions: Mapping[int, DevicePosition] = field(default_factory=dict)
    """Pid -> how far its device got; empty if that is not known of all ranks of the job, or if
    the stacks show which ranks the others wait for."""


def analyse_hang(
    snapshots: Sequence[JobSnapshot], devices: Mapping[int, DevicePosition] | None = None
) -> Hang | None:
    """Which ranks the others wait for; None if the job moves, or may move. `snapshots`: snapshots,
    oldest first; `devices`: pid -> how far its device got, where that is known."""
    followed = measure_progress(snapshots)
    if followed is None or any(rank.state.doing is Doing.ENDING for rank in followed.ranks):
        return None
    waiting = [progress for progress in followed.ranks if waits(progress)]
    others = [rank for rank in followed.ranks if not waits(rank)]
    working = _find_working(followed)
    if working:
        return _make_hang(
            followed, Kind.BEHIND, working, [rank for rank in followed.ranks if rank not in working]
        )
    if not waiting and not followed.apart:
        waiting, others = _unseen_waits(others)
    halted = [other for other in others if _halted(other, followed.at)]
    dead = [other for other in others if other.state.doing is Doing.DEAD]
    if halted:
        return _make_hang(followed, Kind.BEHIND, halted, waiting)
    if dead and len(dead) == len(others):
        return _after_death(followed, dead, waiting)
    if dead and not waiting:  # nobody waits for those that have ended
        others = [other for other in others if other not in dead]
    left = [*waiting, *others]
    still = [rank for rank in left if _is_blocked(rank) or _is_polling(rank, waiting, followed.at)]
    if len(still) < len(left) or _span(followed, left) < LEAST_BLOCKED:
        return None
    hang = _classify_blocked(followed, waiting, others)
    return _with_devices(hang, followed, devices or {})


def _with_devices(hang: Hang, followed: JobProgress, devices: Mapping[int, DevicePosition]) -> Hang:
    """The same with the rank whose device is behind, unless the stacks show who is."""
    pids = {progress.state.pid for progress in followed.ranks}
    if not hang.complete or not pids <= devices.keys() or not _is_open(hang):
        return hang
    positions = {pid: devices[pid] for pid in pids}
    behind = find_device_behind(positions, followed.at)
    if behind is None:
        return replace(hang, positions=positions)
    culprits = [progress for progress in followed.ranks if progress.state.pid == behind]
    rest = [progress for progress in followed.ranks if progress.state.pid != behind]
    named = _make_hang(followed, Kind.DEVICE_BEHIND, culprits, rest)
    return replace(named, positions=positions)


def _is_open(hang: Hang) -> bool:
    """Whether the stacks do not show a culprit: they name none, or only ranks in C code that waits
    for something unknown, as `tensor.item()` does for the device."""
    if hang.kind is Kind.BEHIND:
        return all(_is_unknown_wait(progress.state) for progress in hang.culprits)
    return hang.kind in (Kind.TOGETHER, Kind.APART) and not hang.culprits


def _is_unknown_wait(state: ThreadState) -> bool:
    """Whether only a system call shows what the rank waits for."""
    by_call = (Doing.LOCK, Doing.IO, Doing.SLEEPING)
    is_unknown = state.doing is Doing.BLOCKED or (state.doing in by_call and not state.certain)
    return is_unknown and state.worker is None


def _classify_blocked(
    followed: JobProgress, waiting: Sequence[RankProgress], others: Sequence[RankProgress]
) -> Hang:
    if any(progress.state.doing is Doing.JOINING for progress in waiting):
        return _make_hang(followed, Kind.JOINING, others, waiting)
    if others:
        return _make_hang(followed, Kind.BEHIND, others, waiting)
    if followed.missing:
        return _make_hang(followed, Kind.ABSENT, (), waiting)
    return _among_waiting(followed, waiting)


def _find_working(followed: JobProgress) -> list[RankProgress]:
    """The ranks that compute in one call of the user's while all other ranks have not run for long,
    in collectives in which the host sleeps; empty if none."""
    working = [progress for progress in followed.ranks if progress.computing]
    rest = [progress for progress in followed.ranks if not progress.computing]
    if followed.snapshots < LEAST_SNAPSHOTS or not working or not rest:
        return []
    return working if all(_has_waited_long(followed, each) for each in rest) else []


def _has_waited_long(followed: JobProgress, progress: RankProgress, unseen: bool = False) -> bool:
    """Whether the rank has not run for long, in a collective, or (`unseen`) in what may be the wait
    for an asynchronous one."""
    waits = progress.state.doing in (Doing.COLLECTIVE, Doing.BACKWARD)
    waits = waits or (unseen and _is_unseen(progress.state))
    return waits and progress.idle and followed.at - progress.since >= LONG_WAIT


def _unseen_waits(others: list[RankProgress]) -> tuple[list[RankProgress], list[RankProgress]]:
    """The ranks that wait in `work.wait()` of an asynchronous collective, and the others.

    Such a wait leaves no frame of torch. It is assumed if several ranks wait on one line, for
    something unknown, while others do something else.
    """
    unseen = [other for other in others if _is_unseen(other.state)]
    if len({rank.state.trail for rank in unseen}) != 1 or len(unseen) == len(others):
        return [], others
    return unseen, [other for other in others if not _is_unseen(other.state)]


def _is_unseen(state: ThreadState) -> bool:
    return (
        not state.certain
        and state.doing in (Doing.LOCK, Doing.BLOCKED)
        and state.operation == "futex"
    )


def _halted(progress: RankProgress, at: float) -> bool:
    """Whether the process is stopped, for longer than a tracer such as py-spy stops it."""
    stopped = progress.state.doing is Doing.STOPPED
    return stopped and (progress.state.process.state == "T" or at - progress.since >= LEAST_BLOCKED)


def waits(progress: RankProgress) -> bool:
    """Whether the rank may wait for another one, or for a GPU: C code without Python's lock."""
    doing = progress.state.doing
    if doing in WAITING:
        return True
    spins = progress.cores is not None and progress.cores >= BUSY and not progress.looping
    return doing is Doing.OWN and spins and progress.state.gil is False


def _is_blocked(progress: RankProgress) -> bool:
    """Whether the rank is blocked. A waiting rank may spin; for any other, CPU time is progress."""
    if progress.state.doing in (Doing.UNKNOWN, Doing.DEAD):
        return False
    if progress.state.doing is Doing.JOINING:
        return progress.cores is not None  # it polls the store
    if (
        progress.idle
        and progress.state.doing in _MAY_WORK
        and (progress.process_cores or 0.0) >= BUSY
    ):
        return False  # its other threads compute
    spins = progress.cores is not None and progress.cores >= BUSY
    return progress.idle or progress.looping or (waits(progress) and spins)


def _is_polling(progress: RankProgress, waiting: Sequence[RankProgress], at: float) -> bool:
    """Whether the rank polls and sleeps, while the ranks that wait for it do not run: so no step
    has passed. Unless it sleeps at one line, they must have waited for long, because parts of a
    step may look the same."""
    if not waiting or not all(other.idle for other in waiting):
        return False
    if progress.napping:
        return all(at - other.since >= LONG_WAIT for other in waiting)
    asleep = progress.state.doing is Doing.SLEEPING and progress.cores is not None
    return asleep and (progress.cores or 0.0) <= NAPS


def _span(followed: JobProgress, those: Sequence[RankProgress] | None = None) -> float:
    """Seconds for which all these ranks (default: all) have been in their places."""
    counted = followed.ranks if those is None else those
    return followed.at - max(
        (rank_progress.since for rank_progress in counted), default=followed.at
    )


def _lasted(followed: JobProgress, those: Sequence[RankProgress]) -> float:
    """Seconds for which these ranks have been blocked. For idle ones the scheduler knows; for ranks
    that spin or poll, only the snapshots."""
    still = [progress for progress in those if progress.idle]
    return _span(followed, still or those)


def _after_death(
    followed: JobProgress, dead: Sequence[RankProgress], waiting: Sequence[RankProgress]
) -> Hang | None:
    """The hang of ranks that wait for dead ones; None if they may end by themselves.

    A collective needs all its ranks, so one snapshot is enough. Any other wait must last. Whether
    what may be an asynchronous collective is one is left open: it may be a lock of the user's.
    """
    together = all(
        progress.state.doing is Doing.COLLECTIVE
        and progress.state.operation not in {*BETWEEN_TWO, "destroy_process_group"}
        for progress in waiting
    )
    lasts = all(map(_is_blocked, waiting)) and _span(followed, waiting) >= LEAST_BLOCKED
    if not waiting or not (together or lasts):
        return None
    if all(_is_unseen(progress.state) for progress in waiting):
        return _make_hang(followed, Kind.TOGETHER, (), waiting)
    joins = any(rank_progress.state.doing is Doing.JOINING for rank_progress in waiting)
    return _make_hang(followed, Kind.JOINING if joins else Kind.ABSENT, dead, waiting)


def _among_waiting(followed: JobProgress, waiting: Sequence[RankProgress]) -> Hang:
    sides: dict[object, list[RankProgress]] = {}
    for progress in waiting:
        sides.setdefault(_where(progress.state), []).append(progress)
    ordered = sorted(sides.values(), key=len, reverse=True)
    if len(ordered) < 2 and not (_complete(followed) and _one_way(waiting)):
        return _make_hang(followed, Kind.TOGETHER, (), waiting)
    left = None if _decides(ordered) else _find_left_loop(ordered, followed.loops)
    wrong = ordered[1] if _decides(ordered) else left[0] if left is not None else []
    kept = [state for state in waiting if state not in wrong]
    hang = _make_hang(
        followed,
        Kind.APART,
        wrong,
        kept,
        tuple(tuple(rank_progress.state for rank_progress in side) for side in ordered),
    )
    return replace(hang, left_loop=left[1]) if left is not None else hang


def _find_left_loop(
    sides: Sequence[list[RankProgress]], loops: Sequence[Loop]
) -> tuple[list[RankProgress], Loop] | None:
    """The side that has left the loop in which the other one still is, and the loop; None if that
    is not seen, or if most ranks have left it."""
    everyone = [progress.state for side in sides for progress in side]
    if len(sides) != 2 or not _share_a_group(everyone, (Doing.COLLECTIVE, Doing.BACKWARD)):
        return None
    for side, other in (sides, sides[::-1]):
        loop = _left_loop(side[0].state.trail, other[0].state.trail, loops)
        if loop is not None and (len(side) < len(other) or len(side) == len(other) == 1):
            return side, loop
    return None


def _left_loop(
    trail: Sequence[Frame], other: Sequence[Frame], loops: Sequence[Loop]
) -> Loop | None:
    """The outermost loop around the line of `other`, in the function in which they part, if `trail`
    is behind its end. None if it is not, or if a loop around both may begin it anew."""
    for mine, theirs in zip(trail, other, strict=False):
        if mine == theirs:
            if _around(mine, loops):
                return None
            continue
        if (mine.file, mine.function) != (theirs.file, theirs.function) or mine.line is None:
            return None
        outermost = min(_around(theirs, loops), default=None)
        is_behind = outermost is not None and mine.line > outermost.last
        return outermost if is_behind and not _around(mine, loops) else None
    return None


def _around(frame: Frame, loops: Sequence[Loop]) -> list[Loop]:
    line = frame.line or 0
    return [loop for loop in loops if loop.file == frame.file and loop.first <= line <= loop.last]


def _share_a_group(states: Iterable[ThreadState], kinds: Sequence[Doing]) -> bool:
    """Whether all are in waits of these kinds, as far as known of the one group that there is."""
    return all(
        state.doing in kinds
        and state.operation not in BETWEEN_TWO
        and not frames.is_any_in(state.trail, *_SEVERAL_GROUPS)
        for state in states
    )


def _one_way(waiting: Sequence[RankProgress]) -> bool:
    """Whether all ranks receive, or all send, so that no rank answers."""
    kinds = {progress.state.operation for progress in waiting}
    return len(waiting) > 1 and (
        kinds <= {"recv", "recv_object_list"} or kinds <= {"send", "send_object_list"}
    )


def _where(state: ThreadState) -> object:
    """The key of a wait: two ranks with the same operation and trail wait for the same thing."""
    return state.operation, state.trail


def _decides(sides: Sequence[Sequence[RankProgress]]) -> bool:
    """Whether the odd one out is wrong: one rank against at least three that agree, all of them in
    collectives of the one group that there is."""
    most, rest = sides[0], sides[1:]
    if len(rest) != 1 or len(rest[0]) != 1:
        return False
    is_other_operation = most[0].state.operation != rest[0][0].state.operation
    if len(most) < (MAJORITY if is_other_operation else MAJORITY_BY_PLACE):
        return False
    everyone = [state.state for side in sides for state in side]
    return _share_a_group(everyone, (Doing.COLLECTIVE,)) and all(
        state.operation in OPERATIONS for state in everyone
    )


def _make_hang(
    followed: JobProgress,
    kind: Kind,
    culprits: Sequence[RankProgress],
    waiting: Sequence[RankProgress],
    sides: tuple[tuple[ThreadState, ...], ...] = (),
) -> Hang:
    return Hang(
        kind=kind,
        seconds=_lasted(followed, [*culprits, *waiting]),
        snapshots=followed.snapshots,
        culprits=tuple(culprits),
        waiting=tuple(progress.state for progress in waiting),
        missing=followed.missing,
        sides=sides,
        complete=_complete(followed),
        world_size=followed.world_size,
    )


def _complete(followed: JobProgress) -> bool:
    seen = {progress.state.rank for progress in followed.ranks if progress.state.rank is not None}
    return followed.world_size is not None and len(seen) >= followed.world_size


def explain_inconclusive(hang: Hang | None) -> str | None:
    """Why no rank can be blamed although the job is blocked; None if the stacks show one."""
    if hang is None:
        return None
    everyone = hang.waiting
    places = {state.doing for state in everyone}
    where = frames.format_location(everyone[0].place) if everyone else None
    if hang.kind is Kind.TOGETHER and hang.world_size != 1:
        operation = everyone[0].operation or "the same wait"
        unknown = "their stacks do not show why"
        if hang.positions and are_equally_far(hang.positions.values()):
            unknown += ", and their devices are all equally far"
        return (
            f"all observed ranks were blocked in {operation}{f' at {where}' if where else ''} for "
            f"{hang.seconds:.1f} s; {unknown}"
        )
    if hang.kind is Kind.APART and REMOTE_CALLS & {state.operation for state in everyone}:
        return (
            f"all observed ranks were blocked for {hang.seconds:.1f} s, some of them in remote "
            "calls, which threads answer whose stacks are not compared"
        )
    if hang.kind is Kind.APART and not places <= {Doing.COLLECTIVE, Doing.BACKWARD}:
        return (
            f"all observed ranks were blocked for {hang.seconds:.1f} s, some of them "
            "waiting for their GPU, which may or may not wait for another rank"
        )
    return None


def list_unclear_processes(snapshots: Sequence[JobSnapshot]) -> tuple[int, ...]:
    """Pids of ranks whose wait is known only by its system call, one per place: culprits, and ranks
    that may wait for another one that computes or has ended.

    Their C functions would show what they wait for. Reading these pauses a process, after which
    the scheduler no longer knows how long it had not run.
    """
    hang = analyse_hang(snapshots)
    if hang is None:
        unclear = _beside_working(snapshots)
    elif hang.kind in (Kind.BEHIND, Kind.JOINING):
        unclear = [culprit.state for culprit in hang.culprits]
    elif hang.kind is Kind.TOGETHER:
        unclear = [state for state in hang.waiting if _is_unseen(state)]
    else:
        return ()
    counts: dict[object, int] = {}
    for state in unclear:
        point = state.point
        waits_for_something = point.doing in (Doing.LOCK, Doing.IO, Doing.BLOCKED)
        unsure = waits_for_something and not point.certain and " " not in (point.operation or "")
        if unsure or point.doing is Doing.NATIVE:
            counts.setdefault(point.trail, point.pid)
    return tuple(counts.values())[:MOST_DOUBTFUL]


def _beside_working(snapshots: Sequence[JobSnapshot]) -> list[ThreadState]:
    """Ranks that have long been in what may be an asynchronous collective, while another rank
    computes and all others are in collectives, too."""
    followed = measure_progress(snapshots)
    if followed is None or not any(progress.computing for progress in followed.ranks):
        return []
    rest = [progress for progress in followed.ranks if not progress.computing]
    if not all(_has_waited_long(followed, each, unseen=True) for each in rest):
        return []
    return [progress.state for progress in rest if _is_unseen(progress.state)]
