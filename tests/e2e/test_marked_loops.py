"""Real jobs that mark their own phases and steps: the slow rank is named, or nobody is compared."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import WAIT

from mgpu_doctor.case.model import Case
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import JOBS
from tests.support.observed_jobs import list_warnings, run_undisturbed

pytestmark = pytest.mark.slow

STEPS = 80


def numpy_case(folder: Path, slow_rank: int, *options: str) -> Case:
    job = [sys.executable, str(JOBS / "marked_loop.py"), "2", str(slow_rank), str(STEPS), *options]
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(folder / "recording")]
    ended = run_undisturbed([*doctor, "--", *job], folder / "recording")
    assert ended.code == 0, ended.err
    assert sorted(re.findall(r"rank (\d): (\d+) steps", ended.out)) == [("0", "80"), ("1", "80")]
    return load_recording(folder / "recording")


def culprits(case: Case) -> list[tuple[str, list[int | None]]]:
    found = list_warnings(diagnose(case))
    return [(finding.code, [one.rank for one in finding.culprits]) for finding in found]


def test_without_a_framework_the_slow_rank_is_named_by_marked_waits(tmp_path: Path) -> None:
    case = numpy_case(tmp_path, 1)
    assert [len(rank.steps) for rank in case.ranks] == [STEPS, STEPS]
    assert culprits(case) == [("straggler-input", [1])]


@pytest.mark.untimed
def test_without_a_framework_and_a_marked_wait_nobody_is_compared(tmp_path: Path) -> None:
    case = numpy_case(tmp_path, 1, "unmarked")
    assert [len(rank.steps) for rank in case.ranks] == [STEPS, STEPS]
    assert all(np.isnan(rank.steps["phases"][:, WAIT]).all() for rank in case.ranks)
    diagnosis = diagnose(case)
    assert not any(finding.culprits for finding in diagnosis.findings)
    (gap,) = (gap for gap in diagnosis.unexamined if gap.probe == "comparison of ranks")
    assert "no step of the loop holds a collective or a marked wait" in gap.reason
    assert 'mgpu_doctor.phase("wait")' in gap.remedy
