"""A history of one hour: eight GPUs, one of them lost for a while, a host, and four ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from mgpu_doctor.case.device_samples import Device, DeviceSample, Pcie
from mgpu_doctor.case.host_samples import HostSample, Resource
from mgpu_doctor.case.model import Rank
from mgpu_doctor.live.history_collector import Collector, History
from tests.support.frames import GIB, gpu
from tests.support.synthetic import Fault, Synthetic, make_rank, records

BEGAN = 1_790_000_000.0
SECONDS = 3600
ENDED = BEGAN + SECONDS
ASLEEP = range(3000, 3100)
"""Seconds in which nothing was sampled."""
LOST = range(2800, 2900)
"""Seconds in which GPU 2 was lost."""
SLOW_FROM = 1000
"""Step from which rank 2 waits for its data."""


def devices(second: int) -> DeviceSample:
    return DeviceSample(BEGAN + second, tuple(_device(index, second) for index in range(8)))


def host(second: int) -> HostSample:
    cpu = 50 + 40 * math.sin(second / 50)
    pressure: dict[Resource, float] = {"cpu": 0.1 * second, "io": 0.0}
    at = BEGAN + second
    return HostSample(at, cpu, 16, 9.4, 48 * GIB, 128 * GIB, pressure=pressure)


def sampled() -> Iterator[int]:
    """The seconds in which something was sampled."""
    return (second for second in range(SECONDS) if second not in ASLEEP)


def ranks() -> tuple[Rank, ...]:
    """Four ranks whose last step ended with the hour."""
    fault = Fault(2, "input", milliseconds=10, start=SLOW_FROM)
    steps = records(Synthetic(ranks=4, steps=1500, faults=[fault]))
    offset = ENDED - float(steps[0]["end_ns"][-1]) * 1e-9
    for rank_records in steps:
        rank_records["samples"] = 32
        rank_records["loss"] = 3.0 / (1 + rank_records["step"] / 500)
    return tuple(
        make_rank(number, records, clock_offset=offset, started=BEGAN)
        for number, records in enumerate(steps)
    )


@cache
def history() -> History:
    collector = Collector()
    for second in sampled():
        collector.add_devices(devices(second))
        collector.add_host(host(second))
    return collector.history(ENDED, ranks())


def _device(index: int, second: int) -> Device:
    if index == 2 and second in LOST:
        return Device(2, name="NVIDIA H100 80GB HBM3", trouble="GPU is lost")
    wave = math.sin(second / 60 + index)
    return gpu(
        index,
        utilization=max(0.0, min(1.0, 0.6 + 0.5 * wave)),
        power_watts=600 + 50 * math.sin(second / 100),
        memory_busy=0.4,
        pcie=Pcie(sent=1e9 * (1 + math.sin(second / 30)), received=3e9),
    )
