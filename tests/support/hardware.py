"""Jobs on machines of the pretend NVML library, sampled by the real probe, with one rank per
GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from mgpu_doctor.case.device_samples import (
    Device,
    DeviceReader,
    DeviceSample,
    NvLink,
    Pcie,
    Topology,
    XidEvent,
)
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.recording.device_lines import DeviceLines
from mgpu_doctor.rules.catalogue import OWN
from tests.fakenvml.fakenvml import machine
from tests.fakenvml.scenarios import Box
from tests.support.gpus import gpus, on_gpus
from tests.support.nvml import PretendNvml
from tests.support.synthetic import Synthetic

CODES = frozenset(rule.code for rule in OWN if rule.family == "hardware")
SAMPLES = 24
READINGS = 12
"""Samples that the real probe takes: it makes hundreds of calls of the library for each."""
FIRST_PID = 1000
"""The pid of rank 0; the other ranks have the following ones."""
WIDE = Pcie(generation=5, width=16, generation_most=5, width_most=16, replays=0)
NARROW = structs.replace(WIDE, generation=3, width=4)
IDLE = {"utilization": 0.0, "clock_reasons": ("idle",), "pids": ()}
"""A GPU on which nobody computes."""


def job(
    ranks: int = 4,
    *,
    devices: Sequence[Device] | None = None,
    of: Mapping[int, Mapping[str, Any]] | None = None,
    topology: Topology | None = None,
    events: Sequence[tuple[float, int | None, int]] = (),
    every: float = 1.0,
    steps: int = 120,
    **birth: Any,
) -> Case:
    """A healthy job with one GPU per rank, sampled SAMPLES times up to its last step. `of`: facts
    of single GPUs. `events`: XIDs as seconds before the last sample, GPU index, number."""
    case = on_gpus(Synthetic(ranks=ranks, steps=steps), gpus(ranks), **birth)
    shown = tuple(devices if devices is not None else gpus(ranks, of=of))
    samples = [DeviceSample(at, shown, topology=topology) for at in times(case, every)]
    heard = tuple(XidEvent(samples[-1].at - ago, index, xid) for ago, index, xid in events)
    samples[-1] = structs.replace(samples[-1], events=heard)
    return replace(case, device_samples=tuple(samples), observed=samples[-1].at)


def times(case: Case, every: float = 1.0, count: int = SAMPLES) -> list[float]:
    """The times of `count` samples, the last one at the end of the job's last step."""
    end = max(float(rank.steps["end_ns"][-1]) * 1e-9 for rank in case.ranks)
    return [end - every * (count - 1 - place) for place in range(count)]


def changed(case: Case, index: int, at: Mapping[int, Mapping[str, Any]]) -> Case:
    """The case with changed facts of one GPU in some samples. `at`: index of the sample ->
    facts."""
    samples = list(case.device_samples)
    for place, changes in at.items():
        devices = [
            structs.replace(device, **changes) if device.index == index else device
            for device in samples[place].devices
        ]
        samples[place] = structs.replace(samples[place], devices=tuple(devices))
    return replace(case, device_samples=tuple(samples))


def hardware(case: Case) -> list[Finding]:
    """The findings of this family."""
    return [finding for finding in diagnose(case).findings if finding.code in CODES]


def only(case: Case) -> Finding:
    """The only finding of this family."""
    (finding,) = hardware(case)
    return finding


def links(up: int, of: int = 4, remote: Literal["gpu", "switch"] = "gpu") -> tuple[NvLink, ...]:
    """`of` NVLinks, the first `up` of which are up."""
    return tuple(NvLink(link, up=link < up, remote=remote) for link in range(of))


def accused(case: Case) -> set[tuple[str, int | None]]:
    """(code, rank) of every culprit of this family's findings of at least warning severity."""
    return {
        (finding.code, culprit.rank)
        for finding in hardware(case)
        if finding.severity is not Severity.INFO
        for culprit in finding.culprits
    }


def scenario(nvml: PretendNvml, folder: Path, *names: str, ranks: int = 8, **options: Any) -> Case:
    """A job whose rank N is the process on GPU N, on a machine that is in each of these scenarios
    for an equal part of the time. The samples are written to a recording's file and read back."""
    pids = range(FIRST_PID, FIRST_PID + ranks)
    boxes = [machine(name, pids=pids, **options) for name in names]
    return sampled(nvml, folder, boxes, ranks)


def sampled(nvml: PretendNvml, folder: Path, boxes: Sequence[Box], ranks: int = 8) -> Case:
    """The same for given machines."""
    case = on_gpus(Synthetic(ranks=ranks), [], device_uuid=None, device_order="PCI_BUS_ID")
    turns = [boxes[place * len(boxes) // READINGS] for place in range(READINGS)]
    read = nvml.samples(folder / "state", *turns)
    lines = DeviceLines(folder / "devices.jsonl")
    for at, sample in zip(times(case, 2.0, READINGS), read, strict=True):
        lines.append({**sample, "at": at, "events": [{**e, "at": at} for e in sample["events"]]})
    reader = DeviceReader()
    text = (folder / "devices.jsonl").read_text(encoding="utf-8")
    samples = [reader.read(json.loads(line)) for line in text.splitlines()]
    known = tuple(sample for sample in samples if sample is not None)
    return replace(case, device_samples=known, observed=known[-1].at)
