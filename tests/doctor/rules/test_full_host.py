"""A host whose memory the job always fills is reported; page cache, other processes' memory and
growth are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.gpus import GIB
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Synthetic, synthetic_case

MIB = 1 << 20
TOTAL = 16 * GIB


def job(outcome: Outcome = Outcome.RUNNING, **changes: Any) -> Case:
    """Two ranks that hold 15.5 of 16 GiB together; `changes` of each sample, or of its moment."""
    case = synthetic_case(Synthetic(ranks=2, steps=1500))
    ends = case.ranks[0].steps["end_ns"] * 1e-9
    at, samples = float(ends[0]), []
    while at < ends[-1]:
        facts = {
            "memory_used": int(15.5 * GIB),
            "processes": {1000: (1.0, 7 * GIB), 1001: (1.0, 8 * GIB), 77: (1.0, 200 * MIB)},
            "memory_cache": 0,
            **{name: one(at) if callable(one) else one for name, one in changes.items()},
        }
        samples.append(HostSample(at, None, 2, None, memory_total=TOTAL, **facts))
        at += 1.0
    job = replace(case.job, outcome=outcome)
    return replace(case, job=job, host_samples=tuple(samples))


def memory_risks(case: Case) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.code == "oom-risk"]


@pytest.mark.parametrize("outcome", [Outcome.RUNNING, Outcome.COMPLETED])
def test_a_host_that_is_full_all_along(outcome: Outcome) -> None:
    (finding,) = memory_risks(job(outcome))
    assert all(text in finding.title for text in ("97 %", "512 MiB of 16 GiB"))
    assert (finding.severity, finding.culprits) == (Severity.INFO, ())
    measures = [item.measure for item in finding.evidence]
    assert measures[1:3] == ["resident memory of rank 1", "resident memory of rank 0"]
    assert [fix.id for fix in finding.fixes] == ["fewer-workers", "one-copy", "more-memory"]


def test_where_tasks_wait_for_memory_it_is_a_warning() -> None:
    (finding,) = memory_risks(job(pressure=lambda at: {"memory": 0.2 * at}))
    assert finding.severity is Severity.WARNING
    (pressure,) = [item for item in finding.evidence if item.unit == "fraction"]
    assert pressure.value == pytest.approx(0.2)
    (calm,) = memory_risks(job(pressure={"memory": 3.0}))
    assert calm.severity is Severity.INFO


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_used": 12 * GIB},
        {"memory_cache": 4 * GIB},
        {"memory_cache": None},
        {"memory_used": None},
        {"processes": {1000: (1.0, GIB), 1001: (1.0, GIB)}},
        {"memory_used": lambda at: int((15.5 if int(at) % 2 else 10) * GIB)},
    ],
    ids=["room", "cache", "unknown cache", "unknown", "others", "now and then"],
)
def test_what_is_no_risk_of_this_jobs_is_not_reported(changes: dict[str, Any]) -> None:
    assert memory_risks(job(**changes)) == []


def test_growth_and_death_have_findings_of_their_own() -> None:
    case = job()
    for rank in case.ranks:
        rank.steps["resident_bytes"] = 7 * GIB + rank.steps["step"].astype(int) * MIB
    assert all("grows by" in finding.title for finding in memory_risks(case))
    assert memory_risks(job(Outcome.KILLED)) == []


def test_what_equals_a_limit_of_a_full_host_counts() -> None:
    case = job(pressure=lambda at: {"memory": 0.25 * at})
    assert equal_counts_as(case, "oom-risk", "full", 15.5 / 16) == "more"
    (pressure,) = [item.value for item in memory_risks(case)[0].evidence if item.unit == "fraction"]
    assert equal_counts_as(case, "oom-risk", "pressed", pressure) == "more"


@pytest.mark.parametrize(("every", "often"), [(6, True), (5, False)])
def test_a_host_must_be_full_in_four_of_five_samples(every: int, often: bool) -> None:
    case = job()
    first = case.host_samples[0].at
    low = job(memory_used=lambda at: int((10 if round(at - first) % every == 2 else 15.5) * GIB))
    assert bool(memory_risks(low)) is often
    ended = job(memory_used=lambda at: int((10 if at > case.host_samples[-2].at else 15.5) * GIB))
    assert memory_risks(ended) == [], "it has room again"


@pytest.mark.parametrize(("count", "enough"), [(10, True), (9, False)])
def test_ten_samples_show_that_a_host_is_full(count: int, enough: bool) -> None:
    case = job()
    assert bool(memory_risks(replace(case, host_samples=case.host_samples[-count:]))) is enough


@pytest.mark.parametrize(("gibibytes", "job_s"), [(7.76, True), (7.74, False)])
def test_the_job_must_hold_half_of_what_is_used(gibibytes: float, job_s: bool) -> None:
    half = int(gibibytes * GIB / 2)
    assert bool(memory_risks(job(processes={1000: (1.0, half), 1001: (1.0, half)}))) is job_s
