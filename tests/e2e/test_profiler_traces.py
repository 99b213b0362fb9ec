"""Profiler traces of real jobs: the slow rank is named, and no rank of a healthy job."""

from __future__ import annotations

from pathlib import Path

import pytest

from mgpu_doctor.case.profiler_case import case_of_traces
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import forked, forked_in_turn, run
from tests.support.observed_jobs import list_warnings

pytestmark = pytest.mark.slow


def profiled(folder: Path, slow: int) -> list[str]:
    folder.mkdir()
    return forked("profiled_ddp.py", "--out", str(folder), "--slow", str(slow))


def named(folder: Path) -> list[tuple[str, list[int | None]]]:
    found = list_warnings(diagnose(case_of_traces([folder])))
    return [(one.code, [culprit.rank for culprit in one.culprits]) for one in found]


def test_a_slow_rank_and_a_healthy_job(tmp_path: Path) -> None:
    slow, healthy = tmp_path / "slow", tmp_path / "healthy"
    ended = run(forked_in_turn([profiled(slow, 1), profiled(healthy, -1)]))
    assert ended.code == 0, ended.err
    assert named(slow) == [("straggler-other", [1])]
    assert named(healthy) == []
