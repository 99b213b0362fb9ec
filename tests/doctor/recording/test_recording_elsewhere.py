"""Jobs recorded outside the doctor's home are found like any other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mgpu_doctor.live.live_jobs import LiveJobs
from mgpu_doctor.recording.home import ELSEWHERE, all_remembered, home, remembered, runs
from mgpu_doctor.recording.live_recordings import living
from tests.support.launching import doctor
from tests.support.recordings import HEALTHY, recording

JOB = "20260102-000000-job"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))


def test_it_is_found_while_its_job_runs(tmp_path: Path) -> None:
    own = recording(runs() / "20260101-000000-job", (HEALTHY,), live=True)
    other = recording(tmp_path / "there", (HEALTHY,), live=True)
    with remembered(other, JOB):
        assert living() == [other, own]
        assert LiveJobs().frame(0).source == "live  there"
    assert living() == [own]


def test_a_home_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    home().write_text("a file, no folder")
    with remembered(tmp_path, JOB):
        assert all_remembered() == {}


def test_links_that_a_killed_run_left_are_forgotten_once_they_point_nowhere(tmp_path: Path) -> None:
    lost = home() / ELSEWHERE / "20260101-000000-lost"
    lost.parent.mkdir(parents=True)
    lost.symlink_to(tmp_path / "nowhere")
    with remembered(tmp_path, JOB):
        assert all_remembered() == {JOB: tmp_path}


def test_run_remembers_it(tmp_path: Path) -> None:
    list_them = 'readlink "$MGPU_DOCTOR_HOME"/elsewhere/*'
    command = doctor(tmp_path / "r", "sh", "-c", list_them)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "r")]
    assert all_remembered() == {}
