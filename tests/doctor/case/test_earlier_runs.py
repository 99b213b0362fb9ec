"""A job that is requeued or started again: its runs are one history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.case import earlier_runs
from mgpu_doctor.case.earlier_runs import load_with_earlier_runs
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.recording import run_series
from mgpu_doctor.recording.layout import END, INFO
from mgpu_doctor.recording.run_series import describe_series, find_earlier_runs
from tests.support.recordings import HEALTHY, STARTED, recording

SERIES = {"series": "name nightly"}


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of recordings whose jobs still run. The test itself wrote all boxes, and runs."""
    running: set[str] = set()
    monkeypatch.setattr(run_series, "is_written", lambda path: path.name in running)
    return running


def run(folder: Path, at: int, *, exit_code: int | None = 1, **info: Any) -> Path:
    """A recording of two ranks, started `at` seconds after the first run. `exit_code` None: the
    doctor was killed with the job."""
    recording(folder, [HEALTHY] * 2, steps=30)
    known = json.loads((folder / INFO).read_text())
    (folder / INFO).write_text(json.dumps({**known, "started": STARTED + at, **SERIES, **info}))
    end = {"exit_code": exit_code, "signal": None, "ended": STARTED + at + 50, "asked": None}
    (folder / END).write_text(json.dumps(end))
    if exit_code is None:
        (folder / END).unlink()
    return folder


def names(folder: Path) -> list[str]:
    return [path.name for path in find_earlier_runs(folder)]


def test_the_runs_since_the_last_success_are_one_history(tmp_path: Path) -> None:
    run(tmp_path / "a", 0)
    run(tmp_path / "b", 100, exit_code=0)
    run(tmp_path / "c", 200)
    run(tmp_path / "d", 300, exit_code=None)
    newest = run(tmp_path / "e", 400, exit_code=0)
    run(tmp_path / "f", 500)
    assert names(newest) == ["c", "d"]
    case = load_with_earlier_runs(newest)
    assert [rank.attempt for rank in case.ranks] == [2, 2]
    assert sorted(rank.attempt for rank in case.earlier) == [0, 0, 1, 1]
    assert "restart-cost" in {finding.code for finding in diagnose(case).findings}
    assert load_recording(newest).earlier == ()


@pytest.mark.parametrize(
    "other", [{"command": ["torchrun", "other.py"]}, {"cwd": "/else"}, {"series": "name weekly"}]
)
def test_other_work_is_no_earlier_run(tmp_path: Path, other: dict[str, Any]) -> None:
    run(tmp_path / "a", 0, **other)
    assert names(run(tmp_path / "b", 100)) == []


def test_a_second_run_in_a_slurm_job_continues_only_an_earlier_requeue(tmp_path: Path) -> None:
    """Somebody who tries a script again and again in one allocation does not restart a job."""
    slurm: dict[str, Any] = {"series": "slurm west 77 "}
    run(tmp_path / "a", 0, requeue=0, **slurm)
    again = run(tmp_path / "b", 100, requeue=0, **slurm)
    requeued = run(tmp_path / "c", 200, requeue=1, **slurm)
    assert names(again) == []
    assert names(requeued) == ["b"]


def test_a_run_that_still_runs_was_not_restarted(tmp_path: Path, written: set[str]) -> None:
    run(tmp_path / "a", 0)
    run(tmp_path / "b", 100, exit_code=None)
    written.add("b")
    assert names(run(tmp_path / "c", 200)) == []


def test_a_run_without_a_name_continues_nothing(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, series=None)
    assert names(run(tmp_path / "b", 100, series=None)) == []


def test_runs_that_are_not_read_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in enumerate("abc"):
        run(tmp_path / name, 100 * place)
    newest = run(tmp_path / "d", 400)
    monkeypatch.setattr(earlier_runs, "MOST_RANKS", 4)
    case = load_with_earlier_runs(newest)
    assert len(case.earlier) == 4
    assert [gap.probe for gap in case.unexamined if "earlier" in gap.probe] == [
        "earlier runs of this job"
    ]


@pytest.mark.parametrize(
    ("environment", "described"),
    [
        ({}, {}),
        ({"MGPU_DOCTOR_JOB": "nightly", "SLURM_JOB_ID": "7"}, {"series": "name nightly"}),
        ({"SLURM_JOB_ID": "7"}, {"series": "slurm  7 ", "requeue": 0}),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_PROCID": "3",
                "SLURM_CLUSTER_NAME": "west",
                "SLURM_RESTART_COUNT": "2",
            },
            {"series": "slurm west 7 3", "requeue": 2},
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "?"}, {}),
    ],
)
def test_the_series_comes_from_the_environment(
    environment: dict[str, str], described: dict[str, Any]
) -> None:
    assert describe_series(environment) == described
