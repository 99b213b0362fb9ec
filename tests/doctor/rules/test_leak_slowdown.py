"""A leak that slows down its rank is one finding, not two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.diagnosis import diagnose
from tests.support.gpus import GIB
from tests.support.hosts import ProcessLoad, on_host, sampled
from tests.support.synthetic import Fault, Synthetic, synthetic_case

MIB = 1 << 20
SECONDS = 0.049
"""Of a step, with the 20 ms more of the rank that leaks."""


def leaking(mebibytes: float, faults: float | None = None, outcome: Outcome | None = None) -> Case:
    """Rank 1 of four keeps so much a step, and takes 20 ms a step more for pages that are new, as
    many as it keeps or `faults` a second. It runs on a host of 64 GiB, or is over."""
    fault = Fault(1, "forward", milliseconds=20)
    case = on_host(synthetic_case(Synthetic(ranks=4, steps=200, faults=[fault])))
    steps = case.ranks[1].steps
    steps["resident_bytes"] = GIB + mebibytes * MIB * steps["step"].astype(float)
    taken = mebibytes * MIB / 4096 / SECONDS if faults is None else faults
    case = sampled(case, {1: ProcessLoad(faults=taken, kernel=0.05 + 0.02 / SECONDS)})
    samples = [
        structs.replace(sample, memory_used=20 * GIB, memory_total=64 * GIB)
        for sample in case.host_samples
    ]
    job = replace(case.job, outcome=outcome or Outcome.RUNNING)
    return replace(case, job=job, host_samples=tuple(samples))


@pytest.mark.parametrize(
    ("outcome", "code"), [(Outcome.RUNNING, "oom-risk"), (Outcome.COMPLETED, "leak-host")]
)
def test_the_leak_stands_for_the_slowness_that_it_causes(outcome: Outcome, code: str) -> None:
    (finding,) = diagnose(leaking(64, outcome=outcome)).findings
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (code, [1])
    assert finding.victims == (0, 2, 3)
    assert finding.cost.step_fraction == pytest.approx(0.4, abs=0.1)
    assert "makes rank 1 " in finding.cause


def test_pages_that_come_and_go_beside_a_small_leak_are_a_cause_of_their_own() -> None:
    case = leaking(1, faults=50_000, outcome=Outcome.COMPLETED)
    codes = [finding.code for finding in diagnose(case).findings]
    assert sorted(codes) == ["leak-host", "straggler-host"]


def test_a_leak_of_a_rank_that_is_slow_for_another_reason_is_no_cause() -> None:
    case = leaking(64, faults=10, outcome=Outcome.COMPLETED)
    codes = [finding.code for finding in diagnose(case).findings]
    assert "leak-host" in codes
    assert any(code.startswith("straggler-") for code in codes)


def unsampled(case: Case) -> Case:
    samples = (structs.replace(sample, tasks={}) for sample in case.host_samples)
    return replace(case, host_samples=tuple(samples))


def test_one_cause_is_reported_once_where_page_faults_were_not_sampled() -> None:
    (finding,) = diagnose(unsampled(leaking(64, outcome=Outcome.COMPLETED))).findings
    assert (finding.code, finding.victims) == ("leak-host", (0, 2, 3))
    assert "19.9 ms" in finding.cause
    assert "24.6 ms at 1.5 µs" in finding.cause


def test_a_leak_too_small_for_the_slowness_is_reported_beside_it() -> None:
    codes = [
        finding.code
        for finding in diagnose(unsampled(leaking(8, outcome=Outcome.COMPLETED))).findings
    ]
    assert sorted(codes) == ["leak-host", "straggler-compute"]
    many = leaking(64, outcome=Outcome.COMPLETED)
    many.ranks[1].steps["gc_s"] = 0.018
    codes = [finding.code for finding in diagnose(unsampled(many)).findings]
    assert "leak-host" in codes
    assert len(codes) > 1, "the garbage collector explains its slowness"


@pytest.mark.parametrize(("kept", "one_cause"), [(0.52, True), (0.48, False)])
def test_half_of_the_new_pages_must_be_kept(kept: float, one_cause: bool) -> None:
    new = 64 * MIB / 4096 / kept / SECONDS
    findings = diagnose(leaking(64, faults=new, outcome=Outcome.COMPLETED)).findings
    assert (len(findings) == 1) is one_cause


@pytest.mark.parametrize(("mebibytes", "one_cause"), [(28, True), (24, False)])
def test_unsampled_pages_must_explain_half_of_the_slowness(
    mebibytes: float, one_cause: bool
) -> None:
    """At 1.5 microseconds each, of 20 ms: 26 MiB are half of it."""
    findings = diagnose(unsampled(leaking(mebibytes, outcome=Outcome.COMPLETED))).findings
    assert (len(findings) == 1) is one_cause
