"""Processes on a rank's device: those of other ranks and of other jobs are reported, its own are
not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import Device, DeviceProcess
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.gpus import GIB, gpu, on_gpus
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Synthetic

CODES = ("oom-rank0-pileup", "oom-foreign-process")
STRANGER = 4242


def holding(index: int, *pids: int, used: int = 60) -> Device:
    """A device with 80 GiB and these processes, the first of which has most."""
    first, *others = pids
    processes = (DeviceProcess(first, 40 * GIB), *(DeviceProcess(pid, 5 * GIB) for pid in others))
    return gpu(index, pids=pids, processes=processes, memory_used=used * GIB)


def job(devices: Sequence[Device], **birth: object) -> Case:
    case = on_gpus(Synthetic(ranks=3), devices, **birth)
    return replace(case, job=replace(case.job, framework="torch"))


def findings_of(case: Case) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.code in CODES]


PILED = (holding(0, 1000, 1001, 1002), holding(1, 1001), holding(2, 1002))


def test_ranks_that_came_to_the_first_device_by_mistake() -> None:
    (finding,) = findings_of(job(PILED))
    assert finding.code == "oom-rank0-pileup"
    assert [culprit.rank for culprit in finding.culprits] == [1, 2]
    assert finding.victims == (0,)
    assert finding.cost.bytes == 10 << 30


def test_each_rank_on_its_own_device_is_well() -> None:
    assert findings_of(job([holding(place, 1000 + place) for place in range(3)])) == []


@pytest.mark.parametrize("strategy", ["dp", "ddp+mp"])
def test_a_process_that_is_meant_to_hold_several_devices(strategy: str) -> None:
    assert findings_of(job(PILED, strategy=strategy)) == []


def test_in_a_container_pids_say_nothing() -> None:
    seen = [holding(place, 70_000 + place, 70_001) for place in range(3)]
    assert findings_of(job(seen)) == []


def test_a_stranger_on_a_device() -> None:
    devices = [holding(0, 1000, STRANGER), holding(1, 1001), holding(2, 1002)]
    (finding,) = findings_of(job(devices))
    assert (finding.code, finding.severity, finding.victims) == (
        "oom-foreign-process",
        Severity.INFO,
        (0,),
    )
    assert str(STRANGER) in finding.fixes[0].how
    (full,) = findings_of(job([holding(0, 1000, STRANGER, used=79), *devices[1:]]))
    assert full.severity is Severity.WARNING


def test_a_stranger_that_only_comes_by() -> None:
    case = job([holding(place, 1000 + place) for place in range(3)])
    visited = (holding(0, 1000, STRANGER), *case.device_samples[0].devices[1:])
    samples = [structs.replace(case.device_samples[0], devices=visited), *case.device_samples[1:]]
    assert findings_of(replace(case, device_samples=tuple(samples))) == []


def test_what_equals_a_limit_of_strangers_counts() -> None:
    strange = job([holding(0, 1000, STRANGER), holding(1, 1001), holding(2, 1002)])
    assert equal_counts_as(strange, "oom-foreign-process", "share", 5 / 80) == "more"
    assert equal_counts_as(strange, "oom-foreign-process", "lasting", 1.0) == "more"
    assert equal_counts_as(job(PILED), "oom-rank0-pileup", "lasting", 1.0) == "more"


@pytest.mark.parametrize(("used", "severity"), [(72, Severity.WARNING), (71, Severity.INFO)])
def test_a_stranger_on_a_device_that_is_nine_tenths_full_is_a_warning(
    used: int, severity: Severity
) -> None:
    others = [holding(1, 1001), holding(2, 1002)]
    (finding,) = findings_of(job([holding(0, 1000, STRANGER, used=used), *others]))
    assert finding.severity is severity
