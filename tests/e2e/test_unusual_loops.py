"""Real jobs with unusual training loops: what is reported of them is true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import forked
from tests.support.observed_jobs import list_warnings, record_job

pytestmark = pytest.mark.slow

STEPS = 60


def test_the_slower_of_two_loaders_that_feed_a_step_is_input(tmp_path: Path) -> None:
    slow = ("--fault", "input", "--rank", "1", "--ms", "40")
    job = ("two_loaders", "--steps", str(STEPS))
    case = record_job(tmp_path, *job, *slow, launcher=forked)
    for rank in case.ranks:
        steps = rank.steps[5:]
        assert len(rank.steps) == STEPS
        assert np.median(steps["samples"]) == 128
        assert np.nansum(steps["phases"][:, PHASES.index("evaluation")]) == 0
    (found,) = list_warnings(diagnose(case))
    assert (found.code, [one.rank for one in found.culprits]) == ("straggler-input", [1])


@pytest.mark.untimed
def test_experts_are_no_replicas(tmp_path: Path) -> None:
    case = record_job(tmp_path, "expert_parallel", "--steps", str(STEPS), launcher=forked)
    assert [len(rank.steps) for rank in case.ranks] == [STEPS] * 2
    assert "replicas-diverged" not in {one.code for one in diagnose(case).findings}
