"""Real jobs with unusual training loops: what is reported of them is true."""

from __future__ import annotations

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs_in_turn import job
from tests.support.observed_jobs import Observed, list_warnings, median_phases, plan

pytestmark = pytest.mark.slow

STEPS = 60
TWO_LOADERS = job(
    "two_loaders", "--steps", str(STEPS), "--fault", "input", "--rank", "1", "--ms", "40"
)
WITHOUT_GRADIENTS = job(
    "evolution", "--steps", "80", "--fault", "forward", "--rank", "0", "--ms", "15"
)
EXPERTS = job("expert_parallel", "--steps", str(STEPS))
plan(TWO_LOADERS, WITHOUT_GRADIENTS, EXPERTS)


def named(case: Case) -> list[tuple[str, list[int | None]]]:
    found = list_warnings(diagnose(case))
    return [(finding.code, [one.rank for one in finding.culprits]) for finding in found]


def test_the_slower_of_two_loaders_that_feed_a_step_is_input(observed: Observed) -> None:
    case = observed.case_of(TWO_LOADERS)
    for rank in case.ranks:
        steps = rank.steps[5:]
        assert len(rank.steps) == STEPS
        assert np.median(steps["samples"]) == 128
        assert np.nansum(steps["phases"][:, PHASES.index("evaluation")]) == 0
    assert named(case) == [("straggler-input", [1])]


def test_a_loop_of_torch_without_gradients_has_its_marked_phases(observed: Observed) -> None:
    case = observed.case_of(WITHOUT_GRADIENTS)
    assert [len(rank.steps) for rank in case.ranks] == [80, 80]
    assert named(case) == [("straggler-compute", [0])]
    phases = median_phases(case.ranks[0])
    assert phases["forward"] >= 0.015
    assert min(phases[name] for name in ("input", "wait", "optimizer")) > 0


def test_experts_are_no_replicas(observed: Observed) -> None:
    case = observed.case_of(EXPERTS)
    assert [len(rank.steps) for rank in case.ranks] == [STEPS] * 2
    assert "replicas-diverged" not in {one.code for one in diagnose(case).findings}
