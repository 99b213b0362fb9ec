"""A healthy job that is examined from outside again and again: it loses nothing, and no rank is
blamed."""

from __future__ import annotations

import pytest
from mgpu_probes.outside import jobs

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.examine.live_targets import SAMPLES, examine_target, target_of_pid
from tests.support.jobs import plain, started, until
from tests.support.observed_jobs import list_warnings

pytestmark = pytest.mark.slow

STEPS = 750
PACE = ("--fault", "forward", "--rank", "-1", "--ms", "12")
"""So that it lasts nine seconds on a fast machine, too: an examination takes three."""
TIMES = 2


def test_a_job_that_is_sampled_forty_times() -> None:
    command = plain("plain_ddp.py", "--steps", str(STEPS), *PACE)
    with started(command) as process:
        until(lambda: _ranks(process.pid) == 2)
        assert process.stdout is not None
        first = process.stdout.readline()  # the first steps are taken
        for _ in range(TIMES):
            target = target_of_pid(process.pid)
            assert not isinstance(target, str), target
            case = examine_target(target, lambda _: None)
            assert len(case.job_snapshots) == SAMPLES
            assert list_warnings(diagnose(case)) == []
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert f"turns {STEPS}" in (first + out)


def _ranks(pid: int) -> int:
    found = jobs.find(pid)
    return 0 if found is None else len(found.ranks)
