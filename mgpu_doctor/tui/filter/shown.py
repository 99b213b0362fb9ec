"""A filter applied to a frame: which ranks and which GPUs it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from mgpu_doctor.case.gpu import Device
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report.text import count, line
from mgpu_doctor.tui.filter.row import Row

if TYPE_CHECKING:
    from mgpu_doctor.findings import RankSummary
    from mgpu_doctor.tui.filter.syntax import Filter


class Shown(NamedTuple):
    ranks: tuple[RankSummary, ...]
    devices: tuple[Device, ...]


P = ParamSpec("P")
T = TypeVar("T")


def kept_by(what: Callable[P, tuple[object, ...]]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remembers the newest answer, which `what` tells the things it was made of: while these are
    the same, so is the answer."""

    def keep(ask: Callable[P, T]) -> Callable[P, T]:
        newest: tuple[tuple[object, ...], T] | None = None

        @wraps(ask)
        def answer(*asked: P.args, **more: P.kwargs) -> T:
            nonlocal newest
            known, of = newest, what(*asked, **more)
            if known is None or not all(map(_is_still, known[0], of)):
                known = newest = (of, ask(*asked, **more))
            return known[1]

        return answer

    return keep


def _is_still(before: object, now: object) -> bool:
    return before is now or (isinstance(now, (int, str)) and before == now)


kept = kept_by(lambda *asked, **more: (*asked, *more.values()))
"""Of the arguments alone: several panels ask the same of one frame."""


@kept
def shown(frame: Frame, only: Filter | None) -> Shown:
    """What is left of the frame's ranks and devices, in their order; all of them without one."""
    ranks = frame.diagnosis.ranks if frame.diagnosis else ()
    devices = frame.devices.devices if frame.devices else ()
    if only is None:
        return Shown(ranks, devices)
    matching = [pair for pair in _pairs(frame) if only.matches(pair.row)]
    left_ranks = {pair.rank for pair in matching}
    left_devices = {pair.device for pair in matching}
    return Shown(
        tuple(rank for place, rank in enumerate(ranks) if place in left_ranks),
        tuple(device for place, device in enumerate(devices) if place in left_devices),
    )


def told(left: int, among: int, thing: str, only: Filter) -> str:
    """`3 of 8 ranks shown: own>30ms`"""
    return f"{left} of {count(among, thing)} shown: {line(str(only))}"


def _placed(frame: Frame) -> tuple[object, ...]:
    return (frame.diagnosis, frame.devices, frame.host and frame.host.host)


@kept_by(_placed)
def used(frame: Frame) -> dict[int, tuple[int, ...]]:
    """Place of a rank in the diagnosis -> places of the devices that it computes on, in this
    frame's sample: those that list its pid, else the one that the rank names itself."""
    diagnosis, sample = frame.diagnosis, frame.devices
    if diagnosis is None or sample is None or not sample.devices:
        return {}
    listed: dict[int | None, list[int]] = {}
    for place, device in enumerate(sample.devices):
        for pid in pids(device):
            listed.setdefault(pid, []).append(place)
    here = frame.host.host if frame.host else None
    found = {
        place: tuple(listed[rank.pid])
        for place, rank in enumerate(diagnosis.ranks)
        if rank.pid in listed and here in (None, rank.host)
    }
    if len(found) < len(diagnosis.ranks):
        from mgpu_doctor.analysis.placement import key_of, placements

        keys = {key_of(device): place for place, device in enumerate(sample.devices)}
        named = placements(replace(diagnosis.case, device_samples=(sample,)))
        for place, rank in enumerate(diagnosis.ranks):
            own = named.get(rank.rank) if rank.rank is not None else None
            if own is not None and own.device in keys:
                found.setdefault(place, (keys[own.device],))
    return found


def pids(device: Device) -> tuple[int, ...]:
    """Every process that the device lists, however it lists it."""
    of_parts = (pid for part in device.instances for pid in part.pids)
    return tuple(dict.fromkeys((*device.pids, *(one.pid for one in device.processes), *of_parts)))


class _Pair(NamedTuple):
    """Places in the frame, and what the filter is asked of."""

    rank: int | None
    device: int | None
    row: Row


def _pairs(frame: Frame) -> Iterator[_Pair]:
    ranks = frame.diagnosis.ranks if frame.diagnosis else ()
    devices = frame.devices.devices if frame.devices else ()
    here = frame.host.host if frame.host else None
    on = used(frame)
    known = {ranks[place].pid for place in on}
    foreign = [tuple(pid for pid in pids(device) if pid not in known) for device in devices]
    users = _users(frame)
    for place, rank in enumerate(ranks):
        own = () if rank.pid is None else (rank.pid,)
        user = users.get(rank.pid)
        for at in on.get(place, ()):
            yield _Pair(place, at, Row(rank, devices[at], own + foreign[at], rank.host, user))
        if place not in on:
            yield _Pair(place, None, Row(rank, None, own, rank.host, user))
    taken = {at for used_by in on.values() for at in used_by}
    for at, device in enumerate(devices):
        if at not in taken:
            yield _Pair(None, at, Row(None, device, foreign[at], here))


def _users(frame: Frame) -> dict[int | None, str | None]:
    """Pid -> user, of the processes at the last look."""
    looks = frame.diagnosis.case.looks if frame.diagnosis else ()
    return {one.pid: one.user for one in looks[-1].processes} if looks else {}
