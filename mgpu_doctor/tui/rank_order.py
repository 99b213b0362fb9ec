"""How ranks are sorted on the screen. Unknown values come last, also in reverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.findings import RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.rank_map import own_work
from mgpu_doctor.report.rank_rows import state
from mgpu_doctor.tui.filter.matching import gpus, used
from mgpu_doctor.tui.view import Order, View

URGENT = ("hung", "dead", "missing", "exited", "waiting", "running")
"""States, most urgent first."""
Memory = Callable[[RankSummary], float | None]


def ordered(
    ranks: Sequence[RankSummary], view: View, memory: Memory | None = None
) -> list[RankSummary]:
    """Returns the ranks in the view's order: most own work, wait and memory first, fewest steps
    first."""
    key: dict[Order, Callable[[RankSummary], Any]] = {
        Order.RANK: lambda rank: rank.rank,
        Order.OWN: lambda rank: _negative(own_work(rank)),
        Order.WAIT: lambda rank: _negative(rank.phases.get("wait")),
        Order.STEP: lambda rank: rank.last_step,
        Order.MEMORY: lambda rank: _negative(memory(rank)) if memory else None,
        Order.STATE: _urgency,
        Order.HOST: lambda rank: rank.host or None,
    }
    by = key[view.order]
    known = [rank for rank in ranks if by(rank) is not None]
    unknown = [rank for rank in ranks if by(rank) is None]
    return sorted(known, key=by, reverse=view.reversed) + unknown


def memory_of(frame: Frame) -> Memory:
    """Returns the bytes that a rank uses: GPU memory if any rank has a GPU, else host memory."""
    diagnosis, there = frame.diagnosis, gpus(frame)
    placed = used(frame)
    if diagnosis is None or not placed:
        return lambda rank: _resident(frame.host, rank)
    held: dict[int, float] = {}
    for place, on in placed.items():
        pid = diagnosis.ranks[place].pid
        devices = [there[at].device for at in on]
        own = [
            process.memory
            for device in devices
            for process in device.processes
            if process.pid == pid
        ]
        parts = own or [device.memory_used for device in devices]
        if all(part is not None for part in parts):
            held[id(diagnosis.ranks[place])] = sum(part for part in parts if part is not None)
    return lambda rank: held.get(id(rank))


def _resident(host: HostSample | None, rank: RankSummary) -> float | None:
    if host is None or rank.pid is None or host.host not in (None, rank.host):
        return None
    _, resident = host.processes.get(rank.pid, (None, None))
    return resident


def _urgency(rank: RankSummary) -> tuple[int, str]:
    shown = str(getattr(rank.state, "value", rank.state))
    place = URGENT.index(shown) if shown in URGENT else len(URGENT)
    return place, state(rank)


def _negative(value: float | None) -> float | None:
    return None if value is None else -value
