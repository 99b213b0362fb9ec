"""Ray Train, whose workers are no children of the script: a user's own script, and our trainer.

It needs Ray, which takes as much room as torch; without it (`pip install 'ray[train]'`) the trainer
says what to install, and these tests warn that they saw no more than that.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.support.impatient_doctor import IMPATIENT_DOCTOR
from tests.support.jobs import JOBS, run, started
from tests.support.ray_jobs import doctor, env, of, refused, settings
from tests.zoo.catalogue import SCRIPTS
from tests.zoo.ways import find_hanging_line

pytestmark = pytest.mark.slow


@pytest.mark.untimed  # its rank is far slower than a busy machine makes one
def test_a_slow_rank_of_a_script_that_knows_no_doctor_is_named(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    if refused(recording):
        return
    slow = ("--fault", "forward", "--rank", "1", "--ms", "150")
    script = [sys.executable, str(JOBS / "ray_train.py"), "--storage", str(tmp_path / "kept")]
    command = doctor("run", recording, "--", *script, "--steps", "30", *slow)
    with settings(tmp_path) as given:
        ended = run(env(given, command))  # Ray's processes would count as others', so not calmly
    assert ended.code == 0, ended.err
    case = load_recording(recording)
    assert (case.job.launcher, case.job.strategy) == ("ray", "ddp")
    assert case.job.outcome is Outcome.COMPLETED
    assert [(rank.rank, len(rank.steps), rank.exit_code) for rank in case.ranks] == [
        (0, 30, 0),
        (1, 30, 0),
    ]
    first = diagnose(case).findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("straggler-compute", [1])
    assert first.victims == (0,)


@pytest.mark.untimed
def test_a_worker_that_hangs_is_named_with_its_line(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    if refused(recording):
        return
    mark = tmp_path / "mark"
    hang = ("--fault", "hang", "--rank", "1", "--at", "30", "--mark", str(mark))
    script = [sys.executable, str(SCRIPTS / "ray_workers.py"), "--steps", "100000", *hang]
    watched = [*IMPATIENT_DOCTOR, "run", "--dir", str(recording), "--on-hang", "stop", "--"]
    with settings(tmp_path) as given:
        ended = run(env(given, [*watched, *script]), seconds=400)
    assert mark.exists(), ended.err
    case = load_recording(recording)
    assert [(rank.rank, len(rank.steps)) for rank in case.ranks] == [(0, 29), (1, 29)]
    first = diagnose(case).findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("hang-rank-behind", [1])
    assert first.victims == (0,)
    assert find_hanging_line() in first.title


@pytest.mark.untimed
def test_the_trainer_learns_and_leaves_nothing_behind_when_it_is_asked_to_end(
    tmp_path: Path,
) -> None:
    recording = tmp_path / "recording"
    if refused(recording):
        return
    options = ("--model", "cnn-nano", "--steps", "100000", "--device", "cpu")
    with started(doctor("train", recording, "ray-torch", *options)) as job:
        assert job.stdout is not None
        assert any("step 50 loss" in line for line in job.stdout)
        assert {"raylet", "gcs_server"} <= set(of(tmp_path))
        os.kill(job.pid, signal.SIGTERM)
        job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGTERM
    assert of(tmp_path) == []
    case = load_recording(recording)
    assert case.job.outcome is Outcome.KILLED
    assert [rank.rank for rank in case.ranks] == [0, 1]
    assert min(len(rank.steps) for rank in case.ranks) > 45  # it may be asked within the 50th
