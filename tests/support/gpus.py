"""Synthetic jobs on pretend GPUs, with device samples throughout their training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_doctor.case.device_samples import Device, DeviceSample
from mgpu_doctor.case.model import Case
from mgpu_doctor.recording.records import DEVICE_DTYPE
from tests.support.metadata import with_metadata
from tests.support.synthetic import Fault, Synthetic, synthetic_case

GIB = 1 << 30
EVERY = 0.05
"""Seconds between samples."""


def gpu(index: int, **changes: Any) -> Device:
    """A busy, healthy device, used by the process of the rank with the same number."""
    facts: dict[str, Any] = {
        "name": "Pretend H100",
        "uuid": f"GPU-{index:04x}",
        "utilization": 0.97,
        "memory_used": 60 * GIB,
        "memory_total": 80 * GIB,
        "power_watts": 650.0,
        "power_limit_watts": 700.0,
        "temperature": 62.0,
        "sm_clock_mhz": 1900.0,
        "max_sm_clock_mhz": 1980.0,
        "clock_reasons": (),
        "pids": (1000 + index,),
    }
    return Device(index=index, **{**facts, **changes})


def gpus(
    count: int, of: Mapping[int, Mapping[str, Any]] | None = None, **all_: Any
) -> list[Device]:
    """`count` devices with the facts `all_`; `of`: facts of single devices, by index."""
    return [gpu(index, **{**all_, **(of or {}).get(index, {})}) for index in range(count)]


def on_gpus(job: Synthetic, devices: Sequence[Device], **birth: Any) -> Case:
    """The job with one GPU per rank and these devices in all samples. `birth`: process metadata, by
    default of ranks timed on the device; a value may be a function of the rank's number."""
    case = synthetic_case(job)
    metadata = {
        "clock": "device",
        "strategy": "ddp",
        "device_uuid": lambda number: f"GPU-{number:04x}",
        "device_capability": [9, 0],
        "device_name": "Pretend H100",
        "precision": "bfloat16",
        **birth,
    }
    ranks = []
    for rank in case.ranks:
        facts = {k: v(rank.rank) if callable(v) else v for k, v in metadata.items()}
        device = f"cuda:{rank.rank}"
        ranks.append(with_metadata(replace(rank, device=device), **facts))
    return sampled(replace(case, ranks=tuple(ranks)), devices)


def timed(case: Case, lead: float, at_most: float, only: Sequence[int] | None = None) -> Case:
    """The case with device times equal to the host's, and hosts that are between `lead` and
    `at_most` seconds ahead of their device. `only`: these ranks."""
    ranks = []
    for rank in case.ranks:
        times = np.zeros(len(rank.steps), DEVICE_DTYPE)
        times["step_seq"], times["wall_ns"] = rank.steps["seq"], rank.steps["wall_ns"]
        times["phases"] = np.nan_to_num(rank.steps["phases"])
        times["least_lead"], times["most_lead"], times["loss"] = lead, at_most, np.nan
        chosen = only is None or rank.rank in only
        ranks.append(replace(rank, device_times=times) if chosen else rank)
    return replace(case, ranks=tuple(ranks))


def busy_waiting(utilization: float = 1.0, **devices: Any) -> Case:
    """A job whose rank 2 works 40 ms of 69 ms longer and is host-bound. The GPUs of the other
    ranks, whose hosts are 300 ms ahead, wait in a collective."""
    job = Synthetic(faults=[Fault(2, "forward", milliseconds=40)])
    case = on_gpus(job, gpus(4, utilization=utilization, **devices))
    return timed(timed(case, 0.3, 0.31), 0.0, 0.001, only=[2])


def sampled(case: Case, devices: Sequence[Device], every: float = EVERY) -> Case:
    """The case with these devices in every sample, from its first step to its last."""
    ends = [rank.steps["end_ns"] * 1e-9 for rank in case.ranks]
    start, stop = min(float(end[0]) for end in ends), max(float(end[-1]) for end in ends)
    times = [start + every * place for place in range(int((stop - start) / every) + 1)]
    samples = tuple(DeviceSample(at, tuple(devices)) for at in times)
    return replace(case, device_samples=samples)
