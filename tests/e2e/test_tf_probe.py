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
from tests.support.jobs_in_turn import Job, cluster_job
from tests.support.observed_jobs import Observed, list_warnings, plan, printed_by

pytestmark = pytest.mark.slow

FIT = cluster_job(
    "keras_fit",
    *("--steps", "80", "--epochs", "2", "--validate", "--replicas", "2", "--batch", "128"),
)


def slow_worker(place: str, *options: str) -> Job:
    """The second worker of two is slow."""
    slow = ("--fault", place, "--rank", "1", "--ms", "80")
    return cluster_job("tf_loop", "--steps", "45", *slow, *options, ranks=2)


SLOW = slow_worker("forward")
SLOW_WITH_KERAS_2 = slow_worker("forward", "--legacy")
SLOW_AND_MARKED = slow_worker("between", "--marked")
PLAIN = ("tf_loop", "--steps", "60", "--plain")
BY_HAND = cluster_job(*PLAIN, "--by-hand")
SLOW_DATA = cluster_job(*PLAIN, "--fault", "input", "--rank", "0", "--ms", "30")
plan(FIT, SLOW, SLOW_WITH_KERAS_2, SLOW_AND_MARKED, BY_HAND, SLOW_DATA)


def count_turns(case: Case) -> int:
    """The steps that the script counted itself."""
    turns = re.search(r"turns (\d+)", printed_by(case))
    assert turns is not None
    return int(turns.group(1))


def test_a_healthy_fit_is_understood_and_left_alone(observed: Observed) -> None:
    case = observed.case_of(FIT)
    diagnosis = diagnose(case)
    (rank,) = case.ranks
    assert len(rank.steps) == count_turns(case)
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


def test_the_slow_worker_of_two_is_named(observed: Observed) -> None:
    case = observed.case_of(SLOW)
    assert [len(rank.steps) for rank in case.ranks] == [count_turns(case)] * 2
    diagnosis = diagnose(case)
    first = diagnosis.findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("straggler-compute", [1])
    assert "forward" in first.title
    assert first.victims == (0,)
    assert case.job.strategy == "multiworker"


def test_the_slow_worker_of_two_is_named_with_the_optimizers_of_keras_2(
    observed: Observed,
) -> None:
    case = observed.case_of(SLOW_WITH_KERAS_2)
    assert [len(rank.steps) for rank in case.ranks] == [count_turns(case)] * 2
    diagnosis = diagnose(case)
    first = diagnosis.findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("straggler-compute", [1])
    waits = [rank.phases["wait"] for rank in diagnosis.ranks]
    assert waits[0] is not None
    assert waits[0] >= 0.07
    assert not waits[1] or waits[1] < 0.04


def test_marks_around_what_the_hooks_see_change_no_verdict(observed: Observed) -> None:
    case = observed.case_of(SLOW_AND_MARKED)
    assert [len(rank.steps) for rank in case.ranks] == [45, 45]
    (found,) = list_warnings(diagnose(case))
    assert (found.code, [one.rank for one in found.culprits]) == ("straggler-other", [1])


def test_weights_that_a_program_changes_by_hand_are_its_update(observed: Observed) -> None:
    case = observed.case_of(BY_HAND)
    (rank,) = case.ranks
    assert len(rank.steps) == count_turns(case)
    assert diagnose(case).ranks[0].phases["optimizer"]


def test_a_slow_data_set_is_named_in_words_of_tensorflow(observed: Observed) -> None:
    case = observed.case_of(SLOW_DATA)
    assert len(case.ranks[0].steps) == count_turns(case)
    (found,) = list_warnings(diagnose(case))
    assert found.code == "input-bound"
    assert "tf.data.AUTOTUNE" in found.fixes[0].how
    assert "DataLoader" not in found.fixes[0].how
