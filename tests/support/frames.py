"""Hand-made frames for the live screen, with a fixed clock: healthy, failed, hostile, …"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from mgpu_doctor.case.device_samples import Device, DeviceSample
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Diagnosis, Followed
from mgpu_doctor.live.frame import Frame, Position, Progress
from mgpu_doctor.live.step_heatmap import Heatmap
from tests.support import diagnoses

AT = diagnoses.STARTED + 26.4
GIB = 1 << 30
NO_GPU = DeviceSample(AT, (), "no NVIDIA driver on this machine")
GOING = Progress(step_seconds=1 / 15.1, samples=483.4, tokens=123_754.2, loss=2.345, probe=1.8e-4)
HOST = HostSample(AT, 63.0, 16, 9.4, 48 * GIB, 128 * GIB)


def gpu(index: int, **changes: Any) -> Device:
    facts: dict[str, Any] = {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index}",
        "utilization": 0.9 + index / 100,
        "memory_used": (60 + index) * GIB,
        "memory_total": 80 * GIB,
        "power_watts": 600.0 + index,
        "power_limit_watts": 700.0,
        "temperature": 60.0 + index,
        "sm_clock_mhz": 1755.0,
        "pids": (4000 + index,),
    }
    return Device(**{**facts, **changes})


def eight_gpus() -> DeviceSample:
    """Eight GPUs: one lost, one in MIG mode, one without readings, one above a kilowatt, one used
    by other processes."""
    odd = {
        1: gpu(1, power_watts=1003.0, power_limit_watts=1200.0),
        3: Device(3, name="NVIDIA H100 80GB HBM3", trouble="GPU is lost"),
        4: gpu(4, utilization=None, trouble="MIG mode; not supported: utilization"),
        5: Device(5, name="NVIDIA Thing", trouble="not supported: memory, utilization, power"),
        6: gpu(6, memory_used=None, memory_total=None, trouble="not supported: memory"),
        7: gpu(7, pids=(91, 92, 93)),
    }
    return DeviceSample(AT, tuple(odd.get(index, gpu(index)) for index in range(8)))


def heat(ranks: int, slow: int | None, steps: int = 240) -> Heatmap:
    """A heatmap in which the rank `slow` gets slower from the middle on; one step is unmeasured."""
    chance = np.random.default_rng(1)
    excess = np.abs(chance.normal(0, 0.015, (ranks, steps)))
    if slow is not None:
        excess[slow, steps // 2 :] += np.linspace(0, 1.1, steps - steps // 2)
    excess[:, -5] = np.nan
    return Heatmap(tuple(range(ranks)), np.arange(1000, 1000 + steps), excess)


def frame(diagnosis: Diagnosis | None, **changes: Any) -> Frame:
    facts: dict[str, Any] = {
        "at": AT,
        "source": "live  20260917-101500-train-4711",
        "diagnosis": diagnosis,
        "going": GOING if diagnosis else Progress(),
        "devices": NO_GPU,
        "host": HOST,
    }
    return Frame(**{**facts, **changes})


def together(found: Diagnosis, load_balance: float, communication: float) -> Diagnosis:
    """The diagnosis with these values of its efficiency."""
    return replace(found, load_balance=load_balance, communication_efficiency=communication)


HEALTHY = frame(together(diagnoses.healthy(Outcome.RUNNING), 0.998, 0.97), heat=heat(4, None))
STRAGGLER = frame(
    together(diagnoses.straggler(outcome=Outcome.RUNNING), 0.668, 0.989), heat=heat(4, 2), age=4.0
)
DEAD = frame(
    replace(diagnoses.hang(), efficiency_reason="the wait for other ranks was not measured"),
    heat=heat(4, None),
    late=0.6,
    going=GOING._replace(samples=None, tokens=None, idle=42.0),
)
NOTHING = frame(
    None,
    source="live",
    hint="No job is under observation here. To start one: mgpu-doctor run -- COMMAND\n"
    "To see the last one again: mgpu-doctor top --replay 20260917-101500-train-4711",
)
EIGHT_GPUS = structs.replace(STRAGGLER, devices=eight_gpus(), others=2)
MANY_RANKS = frame(
    together(diagnoses.straggler(64, 37, Outcome.RUNNING), 0.564, 0.989),
    heat=heat(64, 37),
    devices=eight_gpus(),
)
BUSY = structs.replace(MANY_RANKS, interval=1.0, age=21.6, ranks_age=15.4, gpus_age=3.1)
"""A large job, which is sampled rarely."""
HOSTILE = frame(
    diagnoses.failed(),
    source=diagnoses.HOSTILE,
    heat=diagnoses.HOSTILE,
    devices=DeviceSample(AT, (gpu(0, name=diagnoses.HOSTILE, trouble=diagnoses.HOSTILE),)),
)
REPLAYED = structs.replace(
    STRAGGLER,
    source="20260917-101500-train-4711",
    age=0.0,
    replay=Position(AT - 26.4, AT + 26.4, AT, 2.0, paused=False),
)
UNKNOWN = frame(
    diagnoses.unknown(),
    going=Progress(),
    devices=None,
    host=HostSample(AT, None, None, None, None, None),
)

RESOLVED = structs.replace(
    HEALTHY,
    followed=tuple(
        Followed(finding, AT - 20, AT - 8)
        for finding in (diagnoses.slow_input(), diagnoses.LOW_COVERAGE)
    ),
)

ALL = {
    "healthy": HEALTHY,
    "straggler": STRAGGLER,
    "dead-rank": DEAD,
    "nothing": NOTHING,
    "eight-gpus": EIGHT_GPUS,
    "64-ranks": MANY_RANKS,
    "hostile": HOSTILE,
    "replay": REPLAYED,
    "unknown": UNKNOWN,
    "resolved": RESOLVED,
}
