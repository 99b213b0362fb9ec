"""Devices whose memory is hardly used, unevenly used, or allocated at once; and well used ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.gpus import GIB, gpus, on_gpus
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Synthetic

CODES = ("memory-headroom", "imbalance-memory", "memory-preallocated")


def findings_of(case: Case) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.code in CODES]


def peaks(*gibibytes: int, used: int = 70) -> Case:
    memory = lambda number: {"allocated_peak": gibibytes[number] * GIB}  # noqa: E731
    count = len(gibibytes)
    return on_gpus(
        Synthetic(ranks=count), gpus(count, memory_used=used * GIB), device_memory=memory
    )


def test_a_job_that_uses_its_devices_well() -> None:
    assert findings_of(peaks(50, 52, 49)) == []


def test_less_than_half_is_used() -> None:
    (finding,) = findings_of(on_gpus(Synthetic(ranks=2), gpus(2, memory_used=20 * GIB)))
    assert (finding.code, finding.severity) == ("memory-headroom", Severity.INFO)
    assert "--ranks 2 --gpu 80GiB" in finding.fixes[1].how
    one_is_full = gpus(2, of={1: {"memory_used": 70 * GIB}}, memory_used=20 * GIB)
    assert findings_of(on_gpus(Synthetic(ranks=2), one_is_full)) == []


def test_a_rank_that_holds_more_than_the_others() -> None:
    (finding,) = findings_of(peaks(60, 30, 31))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (
        "imbalance-memory",
        [0],
    )
    assert finding.severity is Severity.INFO
    (full,) = findings_of(peaks(78, 30, 31))
    assert full.severity is Severity.WARNING


def test_a_rank_that_has_more_to_do_may_hold_more() -> None:
    case = peaks(60, 30, 31)
    for rank in case.ranks:
        rank.steps["samples"] = 64 if rank.rank == 0 else 32
    assert findings_of(case) == []


@pytest.mark.parametrize(("framework", "expected"), [("keras", True), ("torch", False)])
def test_tensorflow_takes_a_device_whole(framework: str, expected: bool) -> None:
    case = on_gpus(Synthetic(ranks=1), gpus(1, memory_used=77 * GIB))
    case = replace(case, job=replace(case.job, framework=framework))
    assert [finding.code for finding in findings_of(case)] == ["memory-preallocated"] * expected


def test_what_equals_a_limit_of_memory_counts() -> None:
    unused = on_gpus(Synthetic(ranks=2), gpus(2, memory_used=20 * GIB))
    assert equal_counts_as(unused, "memory-headroom", "used", 0.25) == "more"
    uneven = peaks(60, 30, 30)
    assert equal_counts_as(uneven, "imbalance-memory", "beyond", 1.0) == "more"
    assert equal_counts_as(uneven, "imbalance-memory", "least", 30.0 * GIB) == "more"
    whole = on_gpus(Synthetic(ranks=1), gpus(1, memory_used=75 * GIB))
    whole = replace(whole, job=replace(whole.job, framework="keras"))
    assert equal_counts_as(whole, "memory-preallocated", "whole", 75 / 80) == "more"


@pytest.mark.parametrize(("most", "severity"), [(72, Severity.WARNING), (71, Severity.INFO)])
def test_nine_tenths_of_a_device_are_full(most: int, severity: Severity) -> None:
    (finding,) = findings_of(peaks(most, 30, 31))
    assert finding.severity is severity


@pytest.mark.parametrize(("samples", "expected"), [(48, []), (47, ["imbalance-memory"])])
def test_samples_that_explain_half_of_the_memory_explain_it(
    samples: int, expected: list[str]
) -> None:
    """It holds twice as much as the others, whose batches have 32 samples."""
    case = peaks(60, 30, 30)
    for rank in case.ranks:
        rank.steps["samples"] = samples if rank.rank == 0 else 32
    assert [found.code for found in findings_of(case)] == expected


@pytest.mark.parametrize(("varies", "expected"), [(0.9, True), (1.1, False)])
def test_memory_that_is_taken_whole_varies_by_a_hundredth(varies: float, expected: bool) -> None:
    case = on_gpus(Synthetic(ranks=1), gpus(1, memory_used=77 * GIB))
    *before, last = case.device_samples
    less = int(77 * GIB - varies / 100 * 80 * GIB)
    devices = tuple(structs.replace(device, memory_used=less) for device in last.devices)
    case = replace(
        case,
        job=replace(case.job, framework="keras"),
        device_samples=(*before, structs.replace(last, devices=devices)),
    )
    assert [found.code for found in findings_of(case)] == ["memory-preallocated"] * expected
