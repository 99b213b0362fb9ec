"""Applies a filter to a frame: which ranks and GPUs are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from mgpu_doctor.case.device_samples import Device
from mgpu_doctor.formatting import format_count
from mgpu_doctor.live.frame import Frame, HostGpu
from mgpu_doctor.report.text import line
from mgpu_doctor.tui.view import Row

if TYPE_CHECKING:
    from mgpu_doctor.case.model import Case
    from mgpu_doctor.findings import RankSummary
    from mgpu_doctor.tui.filter.language import Filter


class Shown(NamedTuple):
    ranks: tuple[RankSummary, ...]
    gpus: tuple[HostGpu, ...]


P = ParamSpec("P")
T = TypeVar("T")


def kept_by(what: Callable[P, tuple[object, ...]]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: caches the last result. `what` returns the inputs; the cache holds while they are
    the same objects."""

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
"""Depends on its arguments only. Cached because several panels filter the same frame."""


@kept_by(lambda frame: (frame.devices, frame.elsewhere))
def gpus(frame: Frame) -> tuple[HostGpu, ...]:
    """Returns all GPUs of a frame, host by host."""
    samples = [sample for sample in (frame.devices, *frame.elsewhere) if sample is not None]
    samples.sort(key=lambda device_sample: device_sample.host or "")
    return tuple(HostGpu(sample.host, device) for sample in samples for device in sample.devices)


@kept
def shown(frame: Frame, only: Filter | None) -> Shown:
    """Returns the ranks and GPUs that match the filter, in the frame's order; all of them without
    one."""
    ranks = frame.diagnosis.ranks if frame.diagnosis else ()
    if only is None:
        return Shown(ranks, gpus(frame))
    matching = [pair for pair in _pairs(frame) if only.matches(pair.row)]
    left_ranks = {pair.rank for pair in matching}
    left_gpus = {pair.gpu for pair in matching}
    return Shown(
        tuple(rank for place, rank in enumerate(ranks) if place in left_ranks),
        tuple(gpu for place, gpu in enumerate(gpus(frame)) if place in left_gpus),
    )


def format_left(left: int, among: int, thing: str, only: Filter) -> str:
    """`3 of 8 ranks shown: own>30ms`"""
    return f"{left} of {format_count(among, thing)} shown: {line(str(only))}"


def _placed(frame: Frame) -> tuple[object, ...]:
    return (frame.diagnosis, frame.devices, frame.elsewhere, frame.host and frame.host.host)


@kept_by(_placed)
def used(frame: Frame) -> dict[int, tuple[int, ...]]:
    """Returns rank index in the diagnosis -> indices in `gpus(frame)` of its GPUs: those on its
    host that list its pid, else the one that the rank reports."""
    diagnosis, there = frame.diagnosis, gpus(frame)
    if diagnosis is None or not there:
        return {}
    here = frame.host.host if frame.host else None
    listed: dict[tuple[str | None, int | None], list[int]] = {}
    for place, gpu in enumerate(there):
        for pid in pids(gpu.device):
            listed.setdefault((gpu.host or here, pid), []).append(place)
    by_rank = {
        place: tuple(on)
        for place, rank in enumerate(diagnosis.ranks)
        if (on := listed.get((rank.host, rank.pid)) or listed.get((None, rank.pid)))
    }
    if len(by_rank) < len(diagnosis.ranks):
        named = _named(frame, diagnosis.case)
        for place, rank in enumerate(diagnosis.ranks):
            if rank.rank in named:
                by_rank.setdefault(place, (named[rank.rank],))
    return by_rank


def _named(frame: Frame, case: Case) -> dict[int | None, int]:
    """Returns rank -> index in `gpus(frame)` of the GPU it reports. Each host's ranks are matched
    with its own GPUs: GPU indices are not comparable across hosts."""
    from mgpu_doctor.analysis.machines.rank_devices import key_of, placements

    named: dict[int | None, int] = {}
    for sample in (frame.devices, *frame.elsewhere):
        if sample is None:
            continue
        own = replace(case, device_samples=(sample,))
        if frame.elsewhere:
            own = replace(own, ranks=tuple(rank for rank in case.ranks if rank.host == sample.host))
        keys = {
            key_of(gpu.device): place
            for place, gpu in enumerate(gpus(frame))
            if gpu.host == sample.host
        }
        placed = placements(own) if own.ranks else {}
        named |= {rank: keys[on.device] for rank, on in placed.items() if on.device in keys}
    return named


def pids(device: Device) -> tuple[int, ...]:
    """Returns the pids of all processes that the device lists, of any kind."""
    of_parts = (pid for part in device.instances for pid in part.pids)
    return tuple(
        dict.fromkeys((*device.pids, *(process.pid for process in device.processes), *of_parts))
    )


class _Pair(NamedTuple):
    """Indices in the frame, and the row that the filter is applied to."""

    rank: int | None
    gpu: int | None
    row: Row


def _pairs(frame: Frame) -> Iterator[_Pair]:
    ranks = frame.diagnosis.ranks if frame.diagnosis else ()
    there = gpus(frame)
    here = frame.host.host if frame.host else None
    on = used(frame)
    known = {(there[at].host, ranks[place].pid) for place, used_by in on.items() for at in used_by}
    foreign = [
        tuple(pid for pid in pids(gpu.device) if (gpu.host, pid) not in known) for gpu in there
    ]
    users = _users(frame)
    for place, rank in enumerate(ranks):
        own = () if rank.pid is None else (rank.pid,)
        user = users.get(rank.pid)
        for at in on.get(place, ()):
            device = there[at].device
            yield _Pair(place, at, Row(rank, device, own + foreign[at], rank.host, user))
        if place not in on:
            yield _Pair(place, None, Row(rank, None, own, rank.host, user))
    taken = {at for used_by in on.values() for at in used_by}
    for at, gpu in enumerate(there):
        if at not in taken:
            yield _Pair(None, at, Row(None, gpu.device, foreign[at], gpu.host or here))


def _users(frame: Frame) -> dict[int | None, str | None]:
    """Returns pid -> user from the last sample of processes."""
    snapshots = frame.diagnosis.case.job_snapshots if frame.diagnosis else ()
    from mgpu_doctor.case.job_snapshots import pid_on_host  # not needed on a machine without a job

    return (
        {pid_on_host(process.pid): process.user for process in snapshots[-1].processes}
        if snapshots
        else {}
    )
