"""One frame as JSON: the contract with scripts (docs/top.schema.json)."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from mgpu_doctor.case.gpu import Device, DeviceSample
from mgpu_doctor.case.host import HostSample
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.live.frame import Frame, Going
from mgpu_doctor.report import json as diagnosis_json
from mgpu_doctor.tui.filter.shown import shown
from mgpu_doctor.tui.view import View

SCHEMA = "mgpu-doctor/top/1"


def document(frame: Frame, view: View) -> dict[str, Any]:
    """The frame as plain JSON types. Seconds, bytes, fractions 0..1; unknown is None. What the
    view's filter leaves out is counted in `left_out`."""
    left = shown(frame, view.filter)
    here = frame.devices.host if frame.devices else None
    devices = tuple(one.device for one in left.gpus if one.host == here)
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
            "devices": None if frame.devices is None else _devices(frame.devices, devices),
            "host": None if frame.host is None else _host(frame.host),
        }
    )
    return plain


def _going(going: Going, diagnosis: Diagnosis | None) -> dict[str, Any]:
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
    """`ranks`, `devices`: how many are told."""
    there = frame.devices.devices if frame.devices else ()
    job = frame.diagnosis.ranks if frame.diagnosis else ()
    return {"devices": len(there) - devices, "ranks": len(job) - ranks}


def _devices(sample: DeviceSample, left: tuple[Device, ...]) -> dict[str, Any]:
    return {**asdict(sample), "devices": [_device(device) for device in left]}


def _device(device: Device) -> dict[str, Any]:
    links = [{**asdict(link), "errors": dict(link.errors)} for link in device.nvlinks]
    return {**asdict(device), "nvlinks": links}


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
