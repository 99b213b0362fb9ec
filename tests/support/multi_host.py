"""A job spread over several hosts, each with GPUs and processes of the same numbers: as frames, and
as a recording to replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from mgpu_doctor.case.device_samples import Device, DeviceSample
from mgpu_doctor.case.model import Outcome, Rank
from mgpu_doctor.findings import Culprit, Diagnosis, RankSummary
from mgpu_doctor.live.frame import Frame, Position
from mgpu_doctor.recording.device_lines import DeviceLines
from mgpu_doctor.recording.layout import DEVICE_SAMPLES, HOSTS
from tests.support import diagnoses
from tests.support.frames import AT, frame, gpu, heat, together

One = TypeVar("One", Culprit, Rank, RankSummary)


def spread(found: Diagnosis, hosts: Sequence[str], each: int) -> Diagnosis:
    """So many of its ranks on each host; what is the same there is told by the host alone."""

    def moved(one: One) -> One:
        number = one.rank or 0
        return replace(one, host=hosts[number // each], pid=4000 + number % each)

    ranks = tuple(moved(rank) for rank in found.case.ranks)
    job = replace(found.case.job, hosts=tuple(hosts))
    return replace(
        found,
        ranks=tuple(moved(rank) for rank in found.ranks),
        case=replace(found.case, ranks=ranks, job=job),
        findings=tuple(
            replace(finding, culprits=tuple(moved(culprit) for culprit in finding.culprits))
            for finding in found.findings
        ),
    )


def samples(hosts: Sequence[str], each: int, at: float = AT) -> tuple[DeviceSample, ...]:
    """The same GPUs everywhere but for their utilization; the last of all is lost."""

    def device(host: int, index: int) -> Device:
        if (host, index) == (len(hosts) - 1, each - 1):
            return Device(index, name="NVIDIA H100 80GB HBM3", trouble="GPU is lost")
        return gpu(index, utilization=(50 + host) / 100, uuid=f"GPU-{host}-{index}")

    return tuple(
        DeviceSample(at, tuple(device(number, index) for index in range(each)), host=name)
        for number, name in enumerate(hosts)
    )


def replayed(hosts: Sequence[str], each: int, slow: int) -> Frame:
    """Of a straggler among them."""
    many = len(hosts) * each
    *others, last = samples(hosts, each)
    found = diagnoses.straggler(many, slow, Outcome.RUNNING)
    return frame(
        together(spread(found, hosts, each), 0.564, 0.989),
        source="20260917-101500-train-4711",
        heat=heat(many, slow),
        devices=last,
        elsewhere=tuple(others),
        replay=Position(AT - 26.4, AT + 26.4, AT, 2.0, paused=False),
    )


def record(folder: Path, told: Sequence[DeviceSample]) -> None:
    """Adds the samples to a recording, those of each host to a file of its own."""
    for host in {one.host for one in told}:
        assert host is not None
        place = folder / HOSTS / host
        place.mkdir(parents=True, exist_ok=True)
        lines = DeviceLines(place / DEVICE_SAMPLES)
        for sample in told:
            if sample.host == host:
                lines.append({**asdict(sample), "host": None})


FOUR = replayed([f"trainer-gpu-{number:04}" for number in range(4)], 4, 9)
