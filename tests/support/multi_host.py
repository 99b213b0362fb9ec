"""A job over several hosts whose GPUs and processes have the same numbers on each host: as frames
of the live screen, and as a recording for a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from msgspec import to_builtins

from mgpu_doctor.case.device_samples import Device, DeviceSample
from mgpu_doctor.case.host_samples import HostSample, Traffic
from mgpu_doctor.case.model import Outcome, Rank
from mgpu_doctor.findings import Culprit, Diagnosis, RankSummary
from mgpu_doctor.live.frame import Frame, Position
from mgpu_doctor.live.host_statuses import HostStatus
from mgpu_doctor.live.rank_map import map_ranks
from mgpu_doctor.recording.device_lines import DeviceLines
from mgpu_doctor.recording.layout import DEVICE_SAMPLES, HOSTS
from tests.support import diagnoses
from tests.support.frames import AT, GIB, frame, gpu, heat, together

Item = TypeVar("Item", Culprit, Rank, RankSummary)


def spread_over_hosts(diagnosis: Diagnosis, hosts: Sequence[str], each: int) -> Diagnosis:
    """The diagnosis with `each` of its ranks on each host; ranks of different hosts share pids."""

    def moved(item: Item) -> Item:
        number = item.rank or 0
        return replace(item, host=hosts[number // each], pid=4000 + number % each)

    ranks = tuple(moved(rank) for rank in diagnosis.case.ranks)
    job = replace(diagnosis.case.job, hosts=tuple(hosts))
    return replace(
        diagnosis,
        ranks=tuple(moved(rank) for rank in diagnosis.ranks),
        case=replace(diagnosis.case, ranks=ranks, job=job),
        findings=tuple(
            replace(finding, culprits=tuple(moved(culprit) for culprit in finding.culprits))
            for finding in diagnosis.findings
        ),
    )


def samples(hosts: Sequence[str], each: int, at: float = AT) -> tuple[DeviceSample, ...]:
    """A sample per host, with `each` GPUs that differ in utilization; the very last GPU is lost."""

    def device(host: int, index: int) -> Device:
        if (host, index) == (len(hosts) - 1, each - 1):
            return Device(index, name="NVIDIA H100 80GB HBM3", trouble="GPU is lost")
        return gpu(index, utilization=(50 + host) / 100, uuid=f"GPU-{host}-{index}")

    return tuple(
        DeviceSample(at, tuple(device(number, index) for index in range(each)), host=name)
        for number, name in enumerate(hosts)
    )


def status(name: str, number: int = 0, **changes: Any) -> HostStatus:
    """A host that was heard a second ago and is as busy as its number says."""
    sample = HostSample(
        AT - 1, 30.0 + number, 64, 20.0, (200 + number) * GIB, 1024 * GIB, host=name
    )
    rates: dict[Traffic, float] = {"received": 3e9, "sent": 2.5e9, "read": 4e6}
    return replace(
        HostStatus(name, 1.0, sample=sample, rates=rates, ahead=0.0012, clock_error=0.0004),
        **changes,
    )


def replay_frame(hosts: Sequence[str], each: int, slow: int) -> Frame:
    """A frame of a replay in which the rank `slow` is a straggler."""
    many = len(hosts) * each
    *others, last = samples(hosts, each)
    running = diagnoses.straggler(many, slow, Outcome.RUNNING)
    diagnosis = together(spread_over_hosts(running, hosts, each), 0.564, 0.989)
    steps = heat(many, slow)
    return frame(
        diagnosis,
        source="20260917-101500-train-4711",
        heat=steps,
        map=map_ranks(diagnosis, steps),
        hosts=tuple(status(name, number) for number, name in enumerate(hosts)),
        devices=last,
        elsewhere=tuple(others),
        replay=Position(AT - 26.4, AT + 26.4, AT, 2.0, paused=False),
    )


def record(folder: Path, device_samples: Sequence[DeviceSample]) -> None:
    """Adds the samples to a recording, in one file per host."""
    for host in {item.host for item in device_samples}:
        assert host is not None
        place = folder / HOSTS / host
        place.mkdir(parents=True, exist_ok=True)
        lines = DeviceLines(place / DEVICE_SAMPLES)
        for sample in device_samples:
            if sample.host == host:
                lines.append({**to_builtins(sample), "host": None})


FOUR_HOSTS = replay_frame([f"trainer-gpu-{number:04}" for number in range(4)], 4, 9)
