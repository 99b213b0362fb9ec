"""Real jobs that use the framework in costly ways, and their healthy counterparts.

The scripts of `tests/jobs` know nothing of the doctor.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Severity
from tests.support.jobs import JOBS, run
from tests.support.jobs_in_turn import job
from tests.support.observed_jobs import Observed, find_finding, list_warnings, plan

pytestmark = pytest.mark.slow

GROWING = job("recompiles", "--steps", "60", "--every", "6")
FIXED = job("recompiles", "--steps", "60")
plan(GROWING, FIXED)


def test_a_batch_that_grows_makes_torch_compile_again(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(GROWING))
    found = find_finding(diagnosis, "recompiling")
    assert found is not None
    assert found.severity is Severity.WARNING
    assert [culprit.rank for culprit in found.culprits] in ([0, 1], [1, 0])
    # The batch grows in each sixth of steps 11 to 60, counted from 1.
    assert "in 9 of 50 steps" in found.title
    assert "size mismatch at index 0" in found.cause
    assert "recompiles.py" in (found.evidence[0].where or "")
    assert found.cost.step_fraction is not None
    assert found.cost.step_fraction > 0.3
    assert list_warnings(diagnosis) == [found]
    for rank in diagnosis.case.ranks:
        events = [one for one in rank.events if one.kind == "recompile" and "inner" in one.text]
        first = [(one.step, one.value) for one in events[:3]]
        assert first == [(0, 1.0), (5, 2.0), (11, 3.0)]
        assert all(one.seconds > 0.01 for one in events)
        assert "size mismatch" in events[1].text


def test_fixed_shapes_are_compiled_once(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(FIXED))
    assert find_finding(diagnosis, "recompiling") is None
    assert list_warnings(diagnosis) == []


def alone(folder: Path, *options: str) -> Diagnosis:
    """Runs the job of one process under observation."""
    recording = folder / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    ended = run([*doctor, sys.executable, str(JOBS / "data_parallel.py"), *options])
    assert ended.code == 0, ended.err
    return diagnose(load_recording(recording))


@pytest.mark.untimed
def test_data_parallel_without_gpus_is_worth_knowing(tmp_path: Path) -> None:
    diagnosis = alone(tmp_path)
    found = find_finding(diagnosis, "strategy-outdated")
    assert found is not None
    assert diagnosis.case.job.strategy == "dp"
    devices = found.evidence[0].value
    assert isinstance(devices, int)
    assert (found.severity is Severity.WARNING) == (devices >= 2)


@pytest.mark.untimed
def test_a_bare_model_is_no_strategy(tmp_path: Path) -> None:
    diagnosis = alone(tmp_path, "--bare")
    assert diagnosis.case.job.strategy == "single"
    assert find_finding(diagnosis, "strategy-outdated") is None
