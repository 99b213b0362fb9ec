"""Host samples of many hosts, read in a fraction of the time: a line of the usual shape at once.

`samples.host_sample` decides what a line means; what is not of the usual shape is left to it.
Loading msgspec takes longer than reading the samples of a few hosts.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mgpu_doctor.case import samples
from mgpu_doctor.case.files import LAST_MOMENT, text
from mgpu_doctor.case.host import Group, HostSample, Task

Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=LAST_MOMENT)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=10**11)]


class _Task(msgspec.Struct, gc=False):
    parent: Whole | None = None
    state: str | None = None
    threads: Whole | None = None
    age: float | None = None
    ran: float | None = None
    queued: float | None = None
    all_queued: float | None = None
    cores: str | None = None
    limits: tuple[str, ...] | None = None
    faults: Whole | None = None
    kernel: float | None = None
    room: Whole | None = None


class _Group(msgspec.Struct, gc=False):
    quota: float | None = None
    throttled: float | None = None


class _Pressure(msgspec.Struct, gc=False, frozen=True):
    cpu: float | None = None
    io: float | None = None
    memory: float | None = None


class _Line(msgspec.Struct):
    at: Moment
    cpu_percent: float | None = None
    cores: Whole | None = None
    load1: float | None = None
    memory_used: Whole | None = None
    memory_total: Whole | None = None
    processes: dict[Pid, tuple[float, Whole]] = {}
    host: str | None = None
    tasks: dict[Pid, _Task] = {}
    groups: dict[str, _Group] = {}
    busy: float | None = None
    iowait: float | None = None
    steal: float | None = None
    pressure: _Pressure = _Pressure()
    memory_cache: Whole | None = None


_DECODER = msgspec.json.Decoder(_Line)


def host_sample(raw: bytes) -> HostSample | None:
    """One line of host.jsonl; None where it is not of the usual shape."""
    try:
        line = _DECODER.decode(raw)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return None
    if max(len(line.processes), len(line.tasks)) > samples.MOST_PROCESSES:
        return None
    if len(line.groups) > samples.MOST_GROUPS:
        return None
    return HostSample(
        at=line.at,
        cpu_percent=line.cpu_percent,
        cores=line.cores,
        load1=line.load1,
        memory_used=line.memory_used,
        memory_total=line.memory_total,
        processes=line.processes,
        host=text(line.host, 64),
        tasks={pid: _task(one) for pid, one in line.tasks.items()},
        groups={
            known: Group(one.quota, one.throttled)
            for name, one in line.groups.items()
            if (known := text(name)) is not None
        },
        busy=line.busy,
        iowait=line.iowait,
        steal=line.steal,
        pressure={
            name: seconds
            for name in ("cpu", "io", "memory")
            if (seconds := getattr(line.pressure, name)) is not None
        },
        memory_cache=line.memory_cache,
    )


def _task(one: _Task) -> Task:
    return Task(
        one.parent,
        one.state if one.state in samples.STATES else None,
        one.threads,
        one.age,
        one.ran,
        one.queued,
        one.all_queued,
        None if one.cores is None else samples.cores(one.cores),
        None if one.limits is None else samples.names(list(one.limits)),
        one.faults,
        one.kernel,
        one.room,
    )
