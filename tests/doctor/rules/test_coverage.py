"""How much of the time the phases explain, and a few long steps that take much of it."""

from __future__ import annotations

import pytest

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from tests.support.synthetic import Fault, Synthetic, synthetic_case


def coverage_of(*faults: Fault) -> Finding:
    case = synthetic_case(Synthetic(ranks=2, steps=200, faults=faults))
    (finding,) = (each for each in diagnose(case).findings if each.code == "coverage-low")
    return finding


def outside(rank: int, milliseconds: float, every: int) -> Fault:
    return Fault(rank, "other", milliseconds=milliseconds, start=10, every=every)


def test_long_steps_of_every_rank_are_described() -> None:
    covered, time, steps = coverage_of(outside(0, 500, 20), outside(1, 500, 20)).evidence
    assert covered.value == pytest.approx(0.5, abs=0.05)
    assert time.value == pytest.approx(0.49, abs=0.05)
    assert steps.value == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("every", [1, 2])
def test_what_every_step_does_makes_no_long_steps(every: int) -> None:
    finding = coverage_of(outside(0, 30, every), outside(1, 30, every))
    assert len(finding.evidence) == 1
