"""A timeline of all ranks for Perfetto and chrome://tracing: Trace Event Format, JSON objects.

A recording has the end and length of a step and the seconds of each phase, not when a phase
started: phases are drawn one after another in their usual order, and their names say so. If a
rank's device timed some steps, phases are drawn in these steps only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.device_times import clock_of
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.export.step_table import rows
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text

STEPS, SHARES, EVENTS = 1, 2, 3
"""Threads of a rank's process in the trace."""
TRACKS = {STEPS: "steps", SHARES: "phases (in their usual order)", EVENTS: "events"}
ON_DEVICE = "phases on the device's clock, of timed steps (in their usual order)"
ON_HOST = "phases on the host's clock: when work was queued (in their usual order)"
PHASE_TRACKS = {
    PhaseClock.DEVICE: ON_DEVICE,
    PhaseClock.HOST: ON_HOST,
    PhaseClock.CPU: TRACKS[SHARES],
}
MACHINE = 1 << 24
"""Process numbers from here on are hosts: no rank has so high a number."""
MICRO = 1e6


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the file in pieces. Times are microseconds since the epoch."""
    yield '{"displayTimeUnit": "ms", "otherData": '
    yield json.dumps(_about(diagnosis), allow_nan=False)
    yield ', "traceEvents": [\n'
    before = ""
    for event in _events(diagnosis):
        yield before + json.dumps(event, allow_nan=False, separators=(",", ":"))
        before = ",\n"
    yield "\n]}\n"


def _about(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "job": text.line(diagnosis.case.job.id),
        "findings": [
            text.line(f"{finding.code}: {finding.title}") for finding in diagnosis.findings
        ],
    }


def _events(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    case = diagnosis.case
    for process, rank in enumerate((*case.ranks, *case.earlier)):
        yield from _names(process, rank)
        yield from _steps(process, rank)
        yield from _happened(process, rank)
    yield from _machines(case)


def _names(process: int, rank: Rank) -> Iterator[dict[str, Any]]:
    who = f"rank {rank.rank}" if rank.rank is not None else f"process {rank.pid}"
    again = f", start {rank.attempt + 1}" if rank.attempt else ""
    name = {"name": f"{who} on {text.line(rank.host)}{again}"}
    yield {"ph": "M", "name": "process_name", "pid": process, "args": name}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    shares = PHASE_TRACKS[clock_of(rank)]
    for track, title in (TRACKS | {SHARES: shares}).items():
        arguments = {"name": title}
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": arguments}


def _steps(process: int, rank: Rank) -> Iterator[dict[str, Any]]:
    drawn, free = clock_of(rank), -math.inf
    for record in rows(rank):
        took = record["wall_ns"] / 1e3
        begun = record["end_ns"] / 1e3 + rank.clock_offset * MICRO - took
        arguments = {
            "loss": _number(record["loss"]),
            "samples": record["samples"] or None,
            "tokens": record["tokens"] or None,
            "collectives": record["collectives"],
            "main thread's CPU seconds": _number(record["cpu_s"]),
            "host ahead of the device by seconds": _number(record["run_ahead"] or math.nan),
        }
        yield _slice(f"step {record['step']}", process, STEPS, begun, took) | {
            "args": {name: value for name, value in arguments.items() if value is not None}
        }
        if record["clock"] != drawn:
            continue
        begun = max(begun, free)  # a step may take longer on the device than on the host
        for name, seconds in zip(PHASES, record["phases"], strict=True):
            if 0 < seconds < math.inf:
                yield _slice(name, process, SHARES, begun, seconds * MICRO)
                begun += seconds * MICRO
        free = begun if drawn is PhaseClock.DEVICE else free


def _happened(process: int, rank: Rank) -> Iterator[dict[str, Any]]:
    for event in rank.events:
        took = max(0.0, event.seconds) * MICRO
        if math.isfinite(event.at) and math.isfinite(took):
            arguments = {"args": {"step": event.step, "text": text.clean(event.text)}}
            kind = text.line(event.kind)
            yield _slice(kind, process, EVENTS, event.at * MICRO, took) | arguments


def _slice(name: str, process: int, track: int, at: float, took: float) -> dict[str, Any]:
    whole = {"ts": round(at, 3), "dur": round(took, 3)}
    return {"ph": "X", "name": name, "cat": "mgpu-doctor", "pid": process, "tid": track, **whole}


def _machines(case: Case) -> Iterator[dict[str, Any]]:
    """Yields the counters of each host and of its sampled GPUs."""
    texts = [host_sample.host for host_sample in case.host_samples] + [
        device_sample.host for device_sample in case.device_samples
    ]
    hosts = list(dict.fromkeys(host for host in texts if host)) or [""]
    places = {host: MACHINE + place for place, host in enumerate(hosts)}
    for host, process in places.items():
        name = {"name": text.line(f"host {host}")}
        yield {"ph": "M", "name": "process_name", "pid": process, "args": name}
    for host_sample in case.host_samples:
        process = places.get(host_sample.host or "", MACHINE)
        yield from _counter(process, host_sample.at, "CPU %", host_sample.cpu_percent)
        yield from _counter(process, host_sample.at, "memory used B", host_sample.memory_used)
    for sample in case.device_samples:
        if sample.host is None and len(hosts) > 1:
            continue  # devices of several hosts would be drawn as one
        process = places.get(sample.host or "", MACHINE)
        for device in sample.devices:
            busy = None if device.utilization is None else device.utilization * 100
            title = f"GPU {device.index}"
            yield from _counter(process, sample.at, f"{title} busy %", busy)
            yield from _counter(process, sample.at, f"{title} memory used B", device.memory_used)
            yield from _counter(process, sample.at, f"{title} SM clock MHz", device.sm_clock_mhz)


def _counter(process: int, at: float, name: str, value: float | None) -> Iterator[dict[str, Any]]:
    if value is not None and math.isfinite(value) and math.isfinite(at):
        arguments = {"value": value}
        yield {
            "ph": "C",
            "name": name,
            "pid": process,
            "ts": round(at * MICRO, 3),
            "args": arguments,
        }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
