"""Which ranks the others wait for in a blocked job. Pure.

A rank that waits (in a collective, a receive, the rendezvous) is never blamed for it. The others
wait for any rank that is blocked elsewhere, however many these are: in a pipeline, and between two
ranks, the minority is often the victim. If all ranks wait, the places show whether they wait for
each other; if the places show nothing, no rank is blamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.progress import BUSY, Followed, Motion, follow
from mgpu_doctor.analysis.stacks.thread_states import Posture
from mgpu_doctor.analysis.stacks.wait_classifier import BETWEEN_TWO, OPERATIONS, WAITING, Doing
from mgpu_doctor.case.job_snapshots import Look

LEAST_SECONDS = 0.8
"""Looks must span this, in which nobody used any processor time: a step in which every rank of a
job rests for so long between two lines is one that waits."""
MOST_DOUBTFUL = 4
MAJORITY = 3
"""Ranks that must agree on a collective before a single other one is said to be wrong."""
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
"""Where these are, ranks are in several groups, and a few of them may rightly wait elsewhere."""

NAPS = 0.05
"""Cores that a rank may use which sleeps again and again in one line, while those who wait for it
do not run at all: measured 0.005 where it sleeps 10 ms at a time, 0.02 with 1 ms."""
_MAY_WORK = frozenset({Doing.BACKWARD, Doing.DEVICE})


class Kind(str, Enum):
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


@dataclass(frozen=True, slots=True)
class Standing:
    kind: Kind
    seconds: float
    """How long all ranks named here have been blocked."""
    looks: int
    culprits: tuple[Motion, ...]
    """The ranks that the others wait for; empty: unknown."""
    waiting: tuple[Posture, ...]
    missing: tuple[int, ...] = ()
    """Ranks without a process that are waited for."""
    sides: tuple[tuple[Posture, ...], ...] = ()
    """APART: the ranks by the place where they wait, the largest group first."""
    complete: bool = False
    """Every rank of the job was seen."""
    world_size: int | None = None


def stand(looks: Sequence[Look]) -> Standing | None:
    """Which ranks the others wait for; None if the job moves, or may move. `looks`: snapshots,
    oldest first."""
    followed = follow(looks)
    if followed is None or any(one.posture.doing is Doing.ENDING for one in followed.motions):
        return None
    waiting = [motion for motion in followed.motions if waits(motion)]
    others = [one for one in followed.motions if not waits(one)]
    if not waiting:
        waiting, others = _unseen_waits(others)
    halted = [other for other in others if _halted(other, followed.at)]
    dead = [one for one in others if one.posture.doing is Doing.DEAD]
    if halted:
        return _made(followed, Kind.BEHIND, halted, waiting)
    if dead and len(dead) == len(others):
        return _after_death(followed, dead, waiting)
    still = [one for one in followed.motions if _stands(one) or _naps(one, waiting)]
    if len(still) < len(followed.motions) or _span(followed) < LEAST_SECONDS:
        return None
    return _at_rest(followed, waiting, others)


def _at_rest(followed: Followed, waiting: Sequence[Motion], others: Sequence[Motion]) -> Standing:
    if any(motion.posture.doing is Doing.JOINING for motion in waiting):
        return _made(followed, Kind.JOINING, others, waiting)
    if others:
        return _made(followed, Kind.BEHIND, others, waiting)
    if followed.missing:
        return _made(followed, Kind.ABSENT, (), waiting)
    return _among_waiting(followed, waiting)


def _unseen_waits(others: list[Motion]) -> tuple[list[Motion], list[Motion]]:
    """`work.wait()` of an asynchronous collective leaves no frame of torch's. Where several ranks
    wait in one line, for what nobody sees, and others are seen to do something else, those wait."""
    unseen = [other for other in others if _is_unseen(other.posture)]
    if len({one.posture.trail for one in unseen}) != 1 or len(unseen) == len(others):
        return [], others
    return unseen, [one for one in others if not _is_unseen(one.posture)]


def _is_unseen(posture: Posture) -> bool:
    return (
        not posture.certain
        and posture.doing in (Doing.LOCK, Doing.BLOCKED)
        and posture.operation == "futex"
    )


def _halted(motion: Motion, at: float) -> bool:
    """Stopped. A tracer, such as another py-spy, stops a process for a moment only."""
    stopped = motion.posture.doing is Doing.STOPPED
    return stopped and (motion.posture.process.state == "T" or at - motion.since >= LEAST_SECONDS)


def waits(motion: Motion) -> bool:
    """Whether it may wait for another rank: also one that runs C code without Python's lock on one
    line, as a wait for a GPU does."""
    doing = motion.posture.doing
    if doing in WAITING:
        return True
    spins = motion.cores is not None and motion.cores >= BUSY and not motion.turning
    return doing is Doing.OWN and spins and motion.posture.gil is False


def _stands(motion: Motion) -> bool:
    """One that waits may spin meanwhile; from any other, processor time is a sign of life."""
    if motion.posture.doing in (Doing.UNKNOWN, Doing.DEAD):
        return False
    if motion.posture.doing is Doing.JOINING:
        return motion.cores is not None  # it asks the store now and then
    if motion.flat and motion.posture.doing in _MAY_WORK and (motion.all_cores or 0.0) >= BUSY:
        return False  # its other threads compute
    spins = motion.cores is not None and motion.cores >= BUSY
    return motion.flat or motion.turning or (waits(motion) and spins)


def _naps(motion: Motion, waiting: Sequence[Motion]) -> bool:
    """Whether it asks again and again for something that does not come, and sleeps between. That no
    step is over meanwhile is known from those who wait: they did not run."""
    rests = bool(waiting) and all(other.flat for other in waiting)
    asleep = motion.posture.doing is Doing.SLEEPING and motion.cores is not None
    return rests and asleep and (motion.cores or 0.0) <= NAPS


def _span(followed: Followed, those: Sequence[Motion] | None = None) -> float:
    """For so long all of them have stood."""
    counted = followed.motions if those is None else those
    return followed.at - max((one.since for one in counted), default=followed.at)


def _lasted(followed: Followed, those: Sequence[Motion]) -> float:
    """For so long they have stood. Of those that spin or ask again and again only the looks tell
    it, of the others the scheduler does, too."""
    still = [motion for motion in those if motion.flat]
    return _span(followed, still or those)


def _after_death(
    followed: Followed, dead: Sequence[Motion], waiting: Sequence[Motion]
) -> Standing | None:
    """A collective needs all of its ranks: one look tells that it will not come to pass. Any other
    wait must be seen to last, also that of ranks which are about to end."""
    together = all(
        motion.posture.doing is Doing.COLLECTIVE
        and motion.posture.operation not in {*BETWEEN_TWO, "destroy_process_group"}
        for motion in waiting
    )
    lasts = all(map(_stands, waiting)) and _span(followed, waiting) >= LEAST_SECONDS
    if not waiting or not (together or lasts):
        return None
    joins = any(one.posture.doing is Doing.JOINING for one in waiting)
    return _made(followed, Kind.JOINING if joins else Kind.ABSENT, dead, waiting)


def _among_waiting(followed: Followed, waiting: Sequence[Motion]) -> Standing:
    sides: dict[object, list[Motion]] = {}
    for motion in waiting:
        sides.setdefault(_where(motion.posture), []).append(motion)
    ordered = sorted(sides.values(), key=len, reverse=True)
    if len(ordered) < 2 and not (_complete(followed) and _one_way(waiting)):
        return _made(followed, Kind.TOGETHER, (), waiting)
    wrong = ordered[1] if _decides(ordered) else []
    kept = [one for one in waiting if one not in wrong]
    return _made(
        followed,
        Kind.APART,
        wrong,
        kept,
        tuple(tuple(one.posture for one in side) for side in ordered),
    )


def _one_way(waiting: Sequence[Motion]) -> bool:
    """All receive, or all send: nobody is there to be served."""
    kinds = {motion.posture.operation for motion in waiting}
    return len(waiting) > 1 and (
        kinds <= {"recv", "recv_object_list"} or kinds <= {"send", "send_object_list"}
    )


def _where(posture: Posture) -> object:
    """Two ranks wait for the same if they came there in the same way."""
    return posture.operation, posture.trail


def _decides(sides: Sequence[Sequence[Motion]]) -> bool:
    """Whether the odd one out is wrong: one rank against at least three that agree, all of them in
    collectives of the one group that there is."""
    most, rest = sides[0], sides[1:]
    if len(rest) != 1 or len(rest[0]) != 1 or len(most) < MAJORITY:
        return False
    everyone = [one.posture for side in sides for one in side]
    return all(
        one.doing is Doing.COLLECTIVE
        and one.operation in OPERATIONS - BETWEEN_TWO
        and not frames.anywhere(one.trail, *_SEVERAL_GROUPS)
        for one in everyone
    )


def _made(
    followed: Followed,
    kind: Kind,
    culprits: Sequence[Motion],
    waiting: Sequence[Motion],
    sides: tuple[tuple[Posture, ...], ...] = (),
) -> Standing:
    return Standing(
        kind=kind,
        seconds=_lasted(followed, [*culprits, *waiting]),
        looks=followed.looks,
        culprits=tuple(culprits),
        waiting=tuple(motion.posture for motion in waiting),
        missing=followed.missing,
        sides=sides,
        complete=_complete(followed),
        world_size=followed.world_size,
    )


def _complete(followed: Followed) -> bool:
    seen = {motion.posture.rank for motion in followed.motions if motion.posture.rank is not None}
    return followed.world_size is not None and len(seen) >= followed.world_size


def undecided(standing: Standing | None) -> str | None:
    """Why no rank can be blamed although the job is blocked; None if the stacks show one."""
    if standing is None:
        return None
    everyone = standing.waiting
    places = {one.doing for one in everyone}
    where = frames.told(everyone[0].place) if everyone else None
    if standing.kind is Kind.TOGETHER and standing.world_size != 1:
        operation = everyone[0].operation or "the same wait"
        return (
            f"all observed ranks were blocked in {operation}{f' at {where}' if where else ''} for "
            f"{standing.seconds:.1f} s; their stacks do not show why"
        )
    if standing.kind is Kind.APART and not places <= {Doing.COLLECTIVE, Doing.BACKWARD}:
        return (
            f"all observed ranks were blocked for {standing.seconds:.1f} s, some of them "
            "waiting for their GPU, which may or may not wait for another rank"
        )
    return None


def doubtful(looks: Sequence[Look]) -> tuple[int, ...]:
    """Processes of which the C functions would tell what Python's do not: a culprit's wait of
    which a system call alone is known, and not what it is about; one for each place. Reading them
    pauses a process, after which the scheduler no longer tells how long it had not run."""
    standing = stand(looks)
    if standing is None or standing.kind not in (Kind.BEHIND, Kind.JOINING):
        return ()
    found: dict[object, int] = {}
    for one in standing.culprits:
        point = one.posture.point
        waits_for_something = point.doing in (Doing.LOCK, Doing.IO, Doing.BLOCKED)
        if waits_for_something and not point.certain and " " not in (point.operation or ""):
            found.setdefault(point.trail, point.pid)
    return tuple(found.values())[:MOST_DOUBTFUL]
