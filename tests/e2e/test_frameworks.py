"""Scripts as users of other people's training loops write them, with no change: the steps are
those that the framework counts, the phases are told, and a slow rank is named.

The scripts of `tests/jobs` know nothing of the doctor. `docs/frameworks-seen.md` has what was seen
by hand of frameworks that are not installed for the tests.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.model import Case
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import JOBS
from tests.support.jobs_in_turn import job
from tests.support.observed_jobs import Observed, list_warnings, plan, printed_by, run_undisturbed

pytestmark = pytest.mark.slow

EXPLAINED = 0.8
"""By hand 0.9 and more; a loaded machine makes Python between the phases slower."""


SLOW = ("--fault", "forward", "--rank", "1", "--ms", "60")
LIGHTNING = job("lightning_fit", "--steps", "30", "--validate", *SLOW)
ACCELERATE = job("accelerate_loop", "--steps", "30", "--accumulate", "2", "--validate")
plan(LIGHTNING, ACCELERATE)


def count_turns(case: Case) -> int:
    """The steps that the framework of the job counted."""
    turns = re.search(r"turns (\d+)", printed_by(case))
    assert turns is not None
    return int(turns.group(1))


def recorded(folder: Path, command: list[str], *environment: str) -> Case:
    """The case of a job."""
    recording = folder / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    ended = run_undisturbed(["env", *environment, *doctor, *command], recording)
    assert ended.code == 0, ended.err
    return load_recording(recording)


def test_lightning_with_validation_and_a_slow_rank(observed: Observed) -> None:
    case = observed.case_of(LIGHTNING)
    turns = count_turns(case)
    assert [len(rank.steps) for rank in case.ranks] == [turns, turns] == [30, 30]
    assert case.job.strategy == "ddp"
    diagnosis = diagnose(case)
    first = diagnosis.findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("straggler-compute", [1])
    assert first.victims == (0,)
    assert all(diagnosis.ranks[0].phases[name] for name in ("input", "forward", "backward", "wait"))


def test_accelerate_with_accumulation_and_validation_is_left_alone(observed: Observed) -> None:
    case = observed.case_of(ACCELERATE)
    turns = count_turns(case)
    assert [len(rank.steps) for rank in case.ranks] == [turns, turns] == [30, 30]
    # It fetches one batch ahead: the first turn has one more, the last one fewer.
    assert set(case.ranks[0].steps["samples"][1:-1].tolist()) == {128}
    diagnosis = diagnose(case)
    assert list_warnings(diagnosis) == []
    assert diagnosis.coverage is not None
    assert diagnosis.coverage >= EXPLAINED


@pytest.mark.untimed
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_one_keras_script_is_understood_on_either_backend(tmp_path: Path, backend: str) -> None:
    command = [sys.executable, str(JOBS / "keras_either.py"), "--epochs", "3"]
    case = recorded(tmp_path, command, f"KERAS_BACKEND={backend}", "OMP_NUM_THREADS=1")
    (rank,) = case.ranks
    assert case.job.framework == backend
    assert len(rank.steps) == count_turns(case) == 3 * 14
    assert set(rank.steps["samples"].tolist()) == {64}
    assert rank.metadata.step_sign == "optimizer"
    (optimizer,) = rank.metadata.optimizers
    assert "Adam" in (optimizer.kind or "")
    phases = diagnose(case).ranks[0].phases
    assert all(phases[name] for name in ("forward", "backward", "optimizer"))
