"""Profiler traces of real jobs: the slow rank is named, and no rank of a healthy job."""

from __future__ import annotations

from pathlib import Path

import pytest

from mgpu_doctor.case.profiler_case import case_of_traces
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import forked, run
from tests.support.observed_jobs import list_warnings

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("slow", [1, -1])
def test_a_profiled_job(tmp_path: Path, slow: int) -> None:
    ended = run(forked("profiled_ddp.py", "--out", str(tmp_path), "--slow", str(slow)))
    assert ended.code == 0, ended.err
    found = list_warnings(diagnose(case_of_traces([tmp_path])))
    named = [(one.code, [culprit.rank for culprit in one.culprits]) for one in found]
    assert named == ([("straggler-other", [slow])] if slow >= 0 else [])
