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
from tests.support.jobs import JOBS, forked
from tests.support.observed_jobs import list_warnings, run_undisturbed

pytestmark = pytest.mark.slow

EXPLAINED = 0.8
"""By hand 0.9 and more; a loaded machine makes Python between the phases slower."""


def recorded(folder: Path, command: list[str], *environment: str) -> tuple[Case, int]:
    """The case of a job, and the steps that its framework counted."""
    recording = folder / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    ended = run_undisturbed(["env", *environment, *doctor, *command], recording)
    assert ended.code == 0, ended.err
    turns = re.search(r"turns (\d+)", ended.out)
    assert turns is not None
    return load_recording(recording), int(turns.group(1))


def test_lightning_with_validation_and_a_slow_rank(tmp_path: Path) -> None:
    slow = ("--fault", "forward", "--rank", "1", "--ms", "60")
    script = forked("lightning_fit.py", "--steps", "30", "--validate", *slow)
    case, turns = recorded(tmp_path, script)
    assert [len(rank.steps) for rank in case.ranks] == [turns, turns] == [30, 30]
    assert case.job.strategy == "ddp"
    diagnosis = diagnose(case)
    first = diagnosis.findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("straggler-compute", [1])
    assert first.victims == (0,)
    assert all(diagnosis.ranks[0].phases[name] for name in ("input", "forward", "backward", "wait"))


def test_accelerate_with_accumulation_and_validation_is_left_alone(tmp_path: Path) -> None:
    options = ("--steps", "30", "--accumulate", "2", "--validate")
    case, turns = recorded(tmp_path, forked("accelerate_loop.py", *options))
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
    case, turns = recorded(tmp_path, command, f"KERAS_BACKEND={backend}", "OMP_NUM_THREADS=1")
    (rank,) = case.ranks
    assert case.job.framework == backend
    assert len(rank.steps) == turns == 3 * 14
    assert set(rank.steps["samples"].tolist()) == {64}
    assert rank.metadata.step_sign == "optimizer"
    (optimizer,) = rank.metadata.optimizers
    assert "Adam" in (optimizer.kind or "")
    phases = diagnose(case).ranks[0].phases
    assert all(phases[name] for name in ("forward", "backward", "optimizer"))
