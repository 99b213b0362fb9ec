"""One frame as plain text or JSON (docs/top.schema.json), without the live screen."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from rich.text import Text

from mgpu_doctor.live.frame import HOST, Frame
from mgpu_doctor.tui import panels
from mgpu_doctor.tui.filter.matching import shown
from mgpu_doctor.tui.panels import gpu_table, header
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import Device, DeviceSample
    from mgpu_doctor.case.host_samples import HostSample
    from mgpu_doctor.findings import Diagnosis
    from mgpu_doctor.live.frame import Progress

ALL = View()
OF_SAMPLE = ("cpu_percent", "cores", "load1", "memory_used", "memory_total")
PARTS = (
    (None, header.header_lines),
    (None, header.host_lines),
    ("GPUs", gpu_table.gpu_lines),
    ("Ranks by host", panels.draw_map),
    ("Ranks", panels.draw_ranks),
    ("Steps", panels.draw_heatmap),
    ("Findings", panels.draw_findings),
)


def render(frame: Frame, *, width: int, colour: bool, view: View = ALL) -> str:
    """Returns the frame as lines of at most `width` cells, ending in a newline."""
    shown: list[Text] = []
    for title, lines in PARTS:
        made = lines(frame, width, view)
        if title and made:
            shown.append(Text(f"{title} ".ljust(width, "─"), style="dim"))
        shown += made
    for line in shown:
        line.rstrip()
        line.truncate(width)
    return _coloured(shown, width) if colour else "".join(f"{line.plain}\n" for line in shown)


def _coloured(lines: Sequence[Text], width: int) -> str:
    from mgpu_doctor.report.console import collecting  # a quarter of the time, only for colours

    console, out = collecting(width, colour=True)
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    return out.getvalue()


def render_json(frame: Frame, view: View = ALL) -> str:
    """Returns `document(frame, view)` as indented ASCII JSON, ending in a newline."""
    return json.dumps(document(frame, view), indent=2, allow_nan=False) + "\n"


SCHEMA = "mgpu-doctor/top/1"


def document(frame: Frame, view: View) -> dict[str, Any]:
    """Returns the frame as plain JSON types. Seconds, bytes, fractions 0..1; unknown is None.
    `left_out` counts the ranks and GPUs that the filter hides."""
    from mgpu_doctor.report import (
        diagnosis_json,  # not needed for a frame without a job
    )

    left = shown(frame, view.filter)
    here = frame.devices.host if frame.devices else None
    devices = tuple(gpu.device for gpu in left.gpus if gpu.host == here)
    diagnosis = frame.diagnosis
    plain: dict[str, Any] = diagnosis_json.plain(
        {
            "schema": SCHEMA,
            "at": frame.at,
            "source": frame.source,
            "hint": frame.hint,
            "only": None if view.filter is None else str(view.filter),
            "left_out": _left_out(frame, len(left.ranks), len(devices)),
            "steps_per_second": frame.going.rate,
            "going": _going(frame.going, diagnosis),
            "diagnosis": None
            if diagnosis is None
            else diagnosis_json.document(replace(diagnosis, ranks=left.ranks)),
            "hardware": [diagnosis_json.finding_object(finding) for finding in frame.hardware],
            "devices": None if frame.devices is None else _devices(frame.devices, devices),
            "host": None if frame.host is None else _host(frame.host),
            "hosts": _hosts(frame, view),
        }
    )
    return plain


def _hosts(frame: Frame, view: View) -> list[dict[str, Any]]:
    """Returns the hosts of the job that the filter leaves."""
    if frame.map is None:
        return []
    from mgpu_doctor.case.host_samples import Traffic
    from mgpu_doctor.tui.panels.host_map import listed_groups

    by_host = view._replace(by=HOST, worst_first=False)
    return [
        {
            "host": row.group.name,
            "heard_seconds": row.host.heard,
            "silent": row.host.silent,
            "trouble": row.host.trouble,
            "clock_ahead_seconds": row.host.ahead,
            "clock_error_seconds": row.host.clock_error,
            "lost_records": row.host.lost,
            **{name: getattr(row.host.sample, name, None) for name in OF_SAMPLE},
            "bytes_per_second": {way: row.host.rates.get(way) for way in get_args(Traffic)},
            "ranks": len(row.group.places),
            "failed_ranks": row.group.stopped,
            "own_seconds": row.group.own,
            "wait_seconds": row.group.wait,
            "excess_fraction": row.group.excess,
            "last_fraction": row.group.last,
        }
        for row in listed_groups(frame, by_host)
        if row.host is not None
    ]


def _going(going: Progress, diagnosis: Diagnosis | None) -> dict[str, Any]:
    return {
        "step_seconds": going.step_seconds,
        "samples_per_second": going.samples,
        "tokens_per_second": going.tokens,
        "loss": going.loss,
        "loss_is_number": None if going.loss is None else math.isfinite(going.loss),
        "idle_seconds": going.idle,
        "probe_fraction": going.probe,
        "parallel_efficiency": diagnosis.parallel_efficiency if diagnosis else None,
        "load_balance": diagnosis.load_balance if diagnosis else None,
        "communication_efficiency": diagnosis.communication_efficiency if diagnosis else None,
        "efficiency_reason": diagnosis.efficiency_reason if diagnosis else None,
    }


def _left_out(frame: Frame, ranks: int, devices: int) -> dict[str, int]:
    """Returns how many ranks and GPUs are left out. `ranks`, `devices`: how many are listed."""
    there = frame.devices.devices if frame.devices else ()
    job = frame.diagnosis.ranks if frame.diagnosis else ()
    return {"devices": len(there) - devices, "ranks": len(job) - ranks}


def _devices(sample: DeviceSample, left: tuple[Device, ...]) -> dict[str, Any]:
    return {**msgspec.to_builtins(sample), "devices": [_device(device) for device in left]}


def _device(device: Device) -> dict[str, Any]:
    links = [{**msgspec.to_builtins(link), "errors": dict(link.errors)} for link in device.nvlinks]
    return {**msgspec.to_builtins(device), "nvlinks": links}


def _host(sample: HostSample) -> dict[str, Any]:
    return {
        "at": sample.at,
        "host": sample.host,
        "cpu_percent": sample.cpu_percent,
        "cores": sample.cores,
        "load1": sample.load1,
        "memory_used": sample.memory_used,
        "memory_total": sample.memory_total,
        "processes": [
            {"pid": pid, "cpu_seconds": cpu, "resident_bytes": resident}
            for pid, (cpu, resident) in sample.processes.items()
        ],
    }
