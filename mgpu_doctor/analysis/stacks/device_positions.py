"""Which rank's device keeps the others waiting, by how far each device got. Pure.

In a hang on GPUs every host waits for its own device, often at the same line. A device that waits
for other ranks has passed the mark before a collective and not the one after it; the device that
they wait for is still in work of its own, before that collective. If it has no more marks in its
queue, its host is behind, and the stacks show where.

A device may also wait for others where no hook sees it, inside compiled or native code: that looks
like work. So a rank is named only if it is the only one whose device does not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mgpu_doctor.case.model import DevicePosition, Rank
from mgpu_doctor.recording.device_position import NoPosition

MOST_AGE = 15.0
"""Seconds before the newest snapshot from which on a position counts. A choice: the probe looks
once a second, and stops only if code in C holds Python's lock."""
WORK = frozenset(("input", "transfer", "forward", "backward", "optimizer", "other"))
"""Phases in which a rank keeps others waiting. Evaluation and checkpoints on one rank rightly take
long."""


def list_positions(ranks: Iterable[Rank]) -> dict[int, DevicePosition]:
    """Pid in snapshots -> how far the device got, of the ranks for which that is known."""
    return {
        rank.stack_pid: rank.device_position
        for rank in ranks
        if rank.stack_pid is not None and isinstance(rank.device_position, DevicePosition)
    }


def explain_unknown(ranks: Iterable[Rank]) -> str | None:
    """Why it is unknown how far some of the devices got; None if it is known, or if the job
    computes on no device that is timed."""
    unknown = (NoPosition.HOST_MOVES, NoPosition.NOT_TIMED, NoPosition.TORN)
    reasons = {rank.device_position: None for rank in ranks if rank.device_position in unknown}
    if not reasons:
        return None
    listed = " and ".join(reason.value for reason in reasons if isinstance(reason, NoPosition))
    return f"how far all devices got is unknown ({listed})"


def find_device_behind(positions: Mapping[int, DevicePosition], at: float) -> int | None:
    """The pid of the rank whose device has not reached the collective in which all the others'
    devices wait; None: there is no such rank. `positions`: of all ranks of the job, by pid; `at`:
    when the newest snapshot was taken, in seconds since the epoch."""
    if any(position.seen < at - MOST_AGE for position in positions.values()):
        return None
    working = [pid for pid, position in positions.items() if position.phase != "wait"]
    if len(working) != 1 or len(positions) < 2:
        return None
    behind = positions[working[0]]
    others = [position for pid, position in positions.items() if pid != working[0]]
    reached = min((position.turn, position.marks) for position in others)
    is_behind = behind.has_more and (behind.turn, behind.marks) < reached
    return working[0] if is_behind and behind.phase in WORK else None


def seconds_unchanged(positions: Iterable[DevicePosition]) -> float:
    """For how long all these devices have passed no mark, in seconds."""
    return min((position.seen - position.since for position in positions), default=0.0)


def are_equally_far(positions: Iterable[DevicePosition]) -> bool:
    """Whether all these devices have passed the same marks of the same turn."""
    return len({(position.turn, position.marks) for position in positions}) == 1
