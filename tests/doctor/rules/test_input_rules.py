"""Waiting for data: one rank, all ranks, and what to type for the loader at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.model import HostSample
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.synthetic import BASE, Fault, Synthetic, synthetic_case


def job_with_input(seconds: float, *, ranks: int = 4, **loader: Any) -> Synthetic:
    birth = {"loaders": [loader]} if loader else {}
    return Synthetic(ranks=ranks, base={**BASE, "input": seconds}, birth=birth)


def only(job: Synthetic, cpu: float | None = None) -> Finding:
    samples = (HostSample(1500.0, cpu, 2, None, None, None),) if cpu is not None else ()
    (found,) = diagnose(replace(synthetic_case(job), host_samples=samples)).findings
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_ranks_wait_for_data(ranks: int) -> None:
    found = only(job_with_input(0.010, ranks=ranks))
    assert found.code == "input-bound"
    assert found.severity is Severity.WARNING
    assert found.culprits == ()
    assert found.victims == tuple(range(ranks))
    assert found.cost.step_fraction == pytest.approx(0.27, abs=0.03)


@pytest.mark.parametrize(
    ("loader", "cause", "how"),
    [
        ({"workers": 0}, "num_workers=0", "num_workers=4, persistent_workers=True"),
        ({"workers": 4, "prefetch_factor": 2}, "cannot keep up", "num_workers=8"),
        ({}, "not measured", "in the background"),
    ],
)
def test_cause_and_fix_know_the_settings(loader: dict[str, int], cause: str, how: str) -> None:
    found = only(job_with_input(0.010, **loader))
    assert cause in found.cause
    assert how in found.fixes[0].how


def test_busy_cores_make_more_workers_useless() -> None:
    found = only(job_with_input(0.010, workers=4), cpu=97.0)
    assert "97 % busy" in found.cause
    assert "more workers would not help" in found.fixes[0].how
    assert "keep up" in only(job_with_input(0.010, workers=4), cpu=50.0).cause


def test_no_workers_is_the_cause_even_on_busy_cores() -> None:
    found = only(job_with_input(0.010, workers=0), cpu=97.0)
    assert "num_workers=0" in found.cause
    assert "97 % busy" in found.fixes[0].how
    assert "busy" not in only(job_with_input(0.010, workers=0), cpu=50.0).fixes[0].how


def test_little_input_is_silent() -> None:
    assert diagnose(synthetic_case(job_with_input(0.0025))).findings == ()


def test_one_slow_loader_is_a_straggler_not_a_bound_job() -> None:
    slow = Synthetic(
        birth={"loaders": [{"workers": 2, "persistent_workers": True}]},
        faults=[Fault(3, "input", milliseconds=20)],
    )
    found = only(slow)
    assert found.code == "straggler-input"
    assert [culprit.rank for culprit in found.culprits] == [3]
    assert "100 %" in found.cause
    assert "num_workers=2 now" in found.fixes[0].how
    assert "persistent_workers=True" not in found.fixes[0].how


def test_input_that_explains_little_of_the_gap_is_not_the_cause() -> None:
    faults = [Fault(1, "input", milliseconds=4), Fault(1, "forward", milliseconds=16)]
    assert only(Synthetic(faults=faults)).code == "straggler-compute"
