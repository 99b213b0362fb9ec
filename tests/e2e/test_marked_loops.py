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
from tests.support.jobs import JOBS, forked
from tests.support.observed_jobs import list_warnings, median_phases, record_job, run_undisturbed

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


def test_a_loop_of_torch_without_gradients_has_its_marked_phases(tmp_path: Path) -> None:
    slow = ("--fault", "forward", "--rank", "0", "--ms", "15")
    case = record_job(tmp_path, "evolution", "--steps", str(STEPS), *slow, launcher=forked)
    assert [len(rank.steps) for rank in case.ranks] == [STEPS, STEPS]
    assert culprits(case) == [("straggler-compute", [0])]
    phases = median_phases(case.ranks[0])
    assert phases["forward"] >= 0.015
    assert min(phases[name] for name in ("input", "wait", "optimizer")) > 0


def test_marks_around_what_tensorflow_hooks_see_change_no_verdict(tmp_path: Path) -> None:
    launcher = [sys.executable, str(JOBS / "tf_workers.py"), "--workers", "2", "tf_loop.py"]
    slow = ("--marked", "--steps", "45", "--fault", "between", "--rank", "1", "--ms", "80")
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(tmp_path / "r"), "--"]
    ended = run_undisturbed([*doctor, *launcher, *slow], tmp_path / "r")
    assert ended.code == 0, ended.err
    case = load_recording(tmp_path / "r")
    assert [len(rank.steps) for rank in case.ranks] == [45, 45]
    assert culprits(case) == [("straggler-other", [1])]
