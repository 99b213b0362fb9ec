"""Host and device samples of a recording as typed facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from mgpu_doctor.case.files import number, text, whole
from mgpu_doctor.case.model import Device, DeviceSample, HostSample, Json, ProcessEnd

MOST_DEVICES = 256
MOST_PROCESSES = 4096


def host_sample(line: Mapping[str, Json]) -> HostSample | None:
    """One line of host.jsonl; None where it has no time."""
    at = number(line.get("at"))
    if at is None:
        return None
    return HostSample(
        at=at,
        cpu_percent=number(line.get("cpu_percent")),
        cores=whole(line.get("cores")),
        load1=number(line.get("load1")),
        memory_used=whole(line.get("memory_used")),
        memory_total=whole(line.get("memory_total")),
        processes=_processes(line.get("processes")),
    )


def device_sample(line: Mapping[str, Json]) -> DeviceSample | None:
    """One line of devices.jsonl; None where it has no time."""
    at = number(line.get("at"))
    if at is None:
        return None
    devices = line.get("devices")
    found = [_device(entry) for entry in devices[:MOST_DEVICES]] if _is_list(devices) else []
    return DeviceSample(
        at=at,
        devices=tuple(device for device in found if device is not None),
        trouble=text(line.get("trouble")),
    )


def process_end(line: Mapping[str, Json]) -> tuple[ProcessEnd, int | None] | None:
    """One line of exits.jsonl and the process's start ticks; None where it tells of none."""
    pid, at = whole(line.get("pid"), 1), number(line.get("at"))
    if pid is None or at is None:
        return None
    code = whole(line.get("exit_code"), 0, 255)
    end = ProcessEnd(pid, code, whole(line.get("signal"), 1, 64), at)
    return end, whole(line.get("start_ticks"), 1)


def _device(entry: Json) -> Device | None:
    index = whole(entry.get("index")) if isinstance(entry, dict) else None
    if index is None:
        return None
    pids = entry.get("pids")
    return Device(
        index=index,
        name=text(entry.get("name"), 100),
        uuid=text(entry.get("uuid"), 100),
        utilization=number(entry.get("utilization")),
        memory_used=whole(entry.get("memory_used")),
        memory_total=whole(entry.get("memory_total")),
        power_watts=number(entry.get("power_watts")),
        power_limit_watts=number(entry.get("power_limit_watts")),
        temperature=number(entry.get("temperature")),
        sm_clock_mhz=number(entry.get("sm_clock_mhz")),
        pids=tuple(pid for pid in pids[:MOST_PROCESSES] if whole(pid) is not None)
        if _is_list(pids)
        else (),
        trouble=text(entry.get("trouble")),
    )


def _processes(entries: Json) -> dict[int, tuple[float, int]]:
    """`{"pid": [CPU seconds, resident bytes]}`: JSON has no whole numbers as keys."""
    found: dict[int, tuple[float, int]] = {}
    if not isinstance(entries, dict):
        return found
    for pid, values in list(entries.items())[:MOST_PROCESSES]:
        if not (pid.isdecimal() and len(pid) < 12 and _is_list(values) and len(values) == 2):
            continue
        seconds, resident = number(values[0]), whole(values[1])
        if seconds is not None and resident is not None:
            found[int(pid)] = (seconds, resident)
    return found


def _is_list(value: Json) -> TypeGuard[list[Json]]:
    return isinstance(value, list)
