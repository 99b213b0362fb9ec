"""Real TensorFlow jobs: their steps, and the slow rank with its cause."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.model import Case
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import JOBS
from tests.support.observed_jobs import list_warnings, run_undisturbed

pytestmark = pytest.mark.slow


def recorded(folder: Path, script: str, *options: str, workers: int = 1) -> tuple[Case, int]:
    """The case that a script of `tests/jobs` leaves, and the steps that it counted itself."""
    command = [sys.executable, str(JOBS / script), *options]
    if workers > 1:
        launcher = [sys.executable, str(JOBS / "tf_workers.py"), "--workers", str(workers)]
        command = [*launcher, script, *options]
    recording = folder / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    ended = run_undisturbed([*doctor, *command], recording)
    assert ended.code == 0, ended.err
    turns = re.search(r"turns (\d+)", ended.out)
    assert turns is not None
    return load_recording(recording), int(turns.group(1))


def test_a_healthy_fit_is_understood_and_left_alone(tmp_path: Path) -> None:
    fit = ("--steps", "80", "--epochs", "2", "--validate", "--replicas", "2", "--batch", "128")
    case, turns = recorded(tmp_path, "keras_fit.py", *fit)
    diagnosis = diagnose(case)
    (rank,) = case.ranks
    assert len(rank.steps) == turns
    assert set(rank.steps["samples"][5:].tolist()) == {128}
    assert (case.job.framework, case.job.strategy) == ("tensorflow", "mirrored")
    assert len(rank.metadata.replica_seconds) == 2
    phases = diagnosis.ranks[0].phases
    assert all(phases[name] for name in ("input", "forward", "backward", "wait", "optimizer"))
    assert list_warnings(diagnosis) == []


@pytest.mark.untimed
def test_graphs_give_what_they_give_unobserved(tmp_path: Path) -> None:
    """What graphs send is returned by them; nothing of it reaches the program, its gradients, its
    data sets, or what it saves. An accumulation by hand is one step a call."""
    script = [sys.executable, str(JOBS / "tf_graphs.py")]
    bare = subprocess.run(script, capture_output=True, text=True, check=True)
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "--dir", str(tmp_path / "recording")]
    seen = subprocess.run([*doctor, "--", *script], capture_output=True, text=True, check=True)
    assert seen.stdout == bare.stdout
    (rank,) = load_recording(tmp_path / "recording").ranks
    turns = int(bare.stdout.split()[1])
    assert set(rank.steps["micro_batches"][1 : turns - 1].tolist()) == {4}
    assert turns <= len(rank.steps) <= turns + 7  # the other ways train a few times


def test_the_slow_worker_of_two_is_named(tmp_path: Path) -> None:
    slow = ("--fault", "forward", "--rank", "1", "--ms", "80")
    case, turns = recorded(tmp_path, "tf_loop.py", "--steps", "45", *slow, workers=2)
    assert [len(rank.steps) for rank in case.ranks] == [turns, turns]
    diagnosis = diagnose(case)
    first = diagnosis.findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("straggler-compute", [1])
    assert "forward" in first.title
    assert first.victims == (0,)
    assert case.job.strategy == "multiworker"


def test_the_slow_worker_of_two_is_named_with_the_optimizers_of_keras_2(tmp_path: Path) -> None:
    slow = ("--fault", "forward", "--rank", "1", "--ms", "80")
    case, turns = recorded(tmp_path, "tf_loop.py", "--legacy", "--steps", "45", *slow, workers=2)
    assert [len(rank.steps) for rank in case.ranks] == [turns, turns]
    diagnosis = diagnose(case)
    first = diagnosis.findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("straggler-compute", [1])
    waits = [rank.phases["wait"] for rank in diagnosis.ranks]
    assert waits[0] is not None
    assert waits[0] >= 0.07
    assert not waits[1] or waits[1] < 0.04


@pytest.mark.untimed
def test_weights_that_a_program_changes_by_hand_are_its_update(tmp_path: Path) -> None:
    case, turns = recorded(tmp_path, "tf_loop.py", "--steps", "60", "--plain", "--by-hand")
    (rank,) = case.ranks
    assert len(rank.steps) == turns
    assert diagnose(case).ranks[0].phases["optimizer"]


def test_a_slow_data_set_is_named_in_words_of_tensorflow(tmp_path: Path) -> None:
    slow = ("--fault", "input", "--rank", "0", "--ms", "30")
    case, turns = recorded(tmp_path, "tf_loop.py", "--steps", "60", "--plain", *slow)
    assert len(case.ranks[0].steps) == turns
    (found,) = list_warnings(diagnose(case))
    assert found.code == "input-bound"
    assert "tf.data.AUTOTUNE" in found.fixes[0].how
    assert "DataLoader" not in found.fixes[0].how
