"""Real jobs with a planted slow rank: the right rank, the right cause; silence where all is well.

The scripts of `tests/jobs` know nothing of the doctor.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.load import load_recording
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.findings import Diagnosis, Finding, Severity

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parent.parent / "jobs"
CODES = {
    "input": "straggler-input",
    "forward": "straggler-compute",
    "backward": "straggler-compute",
    "optimizer": "straggler-optimizer",
    "between": "straggler-other",
}
PLANTED = [
    *(("plain_ddp", place) for place in CODES),
    *(("no_loader", place) for place in ("forward", "backward", "optimizer", "between")),
    *(("manual_allreduce", place) for place in ("forward", "backward", "between")),
]
STEPS = 60


def examined(folder: Path, script: str, *options: str) -> Diagnosis:
    """Runs the job under observation, four ranks, and diagnoses its recording."""
    recording = folder / "recording"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job = [str(JOBS / f"{script}.py"), "--steps", str(STEPS), *options]
    command = [*launcher, "--nproc-per-node", "4", *job]
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "--dir", str(recording), "--"]
    ended = subprocess.run([*doctor, *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return diagnose(load_recording(recording))


def loud(diagnosis: Diagnosis) -> list[Finding]:
    return [one for one in diagnosis.findings if one.severity is not Severity.INFO]


@pytest.mark.parametrize("size", [("--ms", "20"), ("--percent", "30")], ids=["20ms", "30percent"])
@pytest.mark.parametrize(("script", "place"), PLANTED)
def test_the_slow_rank_and_its_cause_are_named(
    tmp_path: Path, script: str, place: str, size: tuple[str, str]
) -> None:
    diagnosis = examined(tmp_path, script, "--fault", place, "--rank", "2", *size)
    first = diagnosis.findings[0]
    # Without a module nothing tells the time between steps from forward.
    bare = script == "manual_allreduce" and place == "between"
    code = "straggler-compute" if bare else CODES[place]
    assert (first.code, [one.rank for one in first.culprits]) == (code, [2])
    assert not bare or "between steps" in first.title
    assert first.severity is Severity.WARNING
    assert first.victims == (0, 1, 3)
    assert [one for one in loud(diagnosis) if one.culprits and one is not first] == []


@pytest.mark.parametrize("script", ["plain_ddp", "no_loader", "manual_allreduce"])
def test_healthy_jobs_get_no_warning(tmp_path: Path, script: str) -> None:
    diagnosis = examined(tmp_path, script)
    assert loud(diagnosis) == []
    assert diagnosis.coverage is not None
    assert diagnosis.coverage >= 0.9
    assert diagnosis.ranks[0].phases["communication"] is not None


def test_every_rank_slow_in_its_loader_is_a_job_bound_by_input(tmp_path: Path) -> None:
    diagnosis = examined(tmp_path, "plain_ddp", "--fault", "input", "--rank", "-1", "--ms", "20")
    (found,) = loud(diagnosis)
    assert found.code == "input-bound"
    assert "num_workers=0" in found.cause
    assert "persistent_workers=True" in found.fixes[0].how
