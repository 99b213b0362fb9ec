"""Real jobs in which one rank fails: the right rank, cause and line.

The scripts of `tests/jobs` know nothing of the doctor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mgpu_doctor.case.model import Outcome, State
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from tests.support.failing_jobs import spawn_command
from tests.support.jobs import (
    JOBS,
    Launcher,
    alone,
    forked_light,
    kill_family,
    plain,
    run,
    started,
    torchrun,
    until,
)
from tests.support.observed_jobs import all_step, list_warnings, single_warning

pytestmark = pytest.mark.slow

SCRIPT = JOBS / "failing_allreduce.py"
LINES = SCRIPT.read_text(encoding="utf-8").splitlines()
RAISES_AT = 1 + next(i for i, line in enumerate(LINES) if "raise ValueError" in line)
EXPECTED = {
    "raise": (
        "failed-exception",
        f"ValueError at failing_allreduce.py:{RAISES_AT}: bad sample at step 30",
    ),
    "exit": ("failed-exception", "exit code 3"),
    "kill": ("failed-killed", "SIGKILL"),
    "term": ("failed-killed", "SIGTERM"),
    "segv": ("failed-signal", "SIGSEGV"),
    "leave": ("failed-exception", "ended normally while ranks 0 and 2"),
}


def doctor(recording: Path) -> list[str]:
    return [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]


@contextmanager
def started_apart(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The running command as the leader of a process group, as a shell starts it."""
    pipe = subprocess.PIPE
    with (
        alone(),
        subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            kill_family(process.pid)


@pytest.mark.untimed
@pytest.mark.parametrize("how", ["exit", "kill", "term", "segv", "leave"])
def test_the_rank_that_failed_first_is_named(how: str, tmp_path: Path) -> None:
    """torchrun ends the others by SIGTERM, which is not what failed first. The other launcher
    leaves them to see that their peer is gone. An exception: test_failure_causes.py."""
    recording = tmp_path / "recording"
    launcher: Launcher = torchrun if how in ("kill", "term") else forked_light
    ended = run([*doctor(recording), *launcher(SCRIPT.name, how, "--rank", "1", ranks=3)])
    assert ended.code == 1 or (launcher is forked_light and ended.code > 1)
    diagnosis = diagnose(load_recording(recording))
    finding = single_warning(diagnosis)
    code, told = EXPECTED[how]
    assert finding.code == code
    assert told in finding.title
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
    assert finding.since_step == 30
    assert diagnosis.case.job.outcome is Outcome.FAILED


@pytest.mark.untimed
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_under_mp_spawn_the_rank_that_fell_is_named(how: str, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    job = spawn_command(SCRIPT.name, how, "--spawn", "--ranks", "2", "--rank", "1")
    assert run([*doctor(recording), *job]).code == 1
    finding = single_warning(diagnose(load_recording(recording)))
    code, told = EXPECTED[how]
    assert finding.code == code
    assert told in finding.title
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.untimed
def test_the_rank_that_never_joins_is_named_not_the_one_that_gave_up(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    assert run([*doctor(recording), *torchrun("never_init.py", "--patience", "8")]).code == 1
    finding = single_warning(diagnose(load_recording(recording)))
    assert finding.code == "failed-rendezvous"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0,)


@pytest.mark.untimed
def test_a_script_without_a_probe_is_reported_from_the_console(tmp_path: Path) -> None:
    """`python -I` ignores PYTHONPATH, so that no rank opens a box."""
    recording = tmp_path / "recording"
    isolated = [sys.executable, "-I", "-m", "torch.distributed.run", "--standalone"]
    job = ["--nproc-per-node", "2", "--no-python", sys.executable, "-I", str(SCRIPT), "raise"]
    assert run([*doctor(recording), *isolated, *job, "--rank", "1"]).code == 1
    diagnosis = diagnose(load_recording(recording))
    finding = single_warning(diagnosis)
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert EXPECTED["raise"][1] in finding.title
    assert finding.confidence <= 0.8
    assert any(item.probe == "in-process probe" for item in diagnosis.unexamined)


@pytest.mark.untimed
def test_a_healthy_job_gets_no_finding(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    assert run([*doctor(recording), *forked_light(SCRIPT.name, "none")]).code == 0
    diagnosis = diagnose(load_recording(recording))
    assert list_warnings(diagnosis) == []
    assert diagnosis.case.job.outcome is Outcome.COMPLETED
    assert {rank.state for rank in diagnosis.case.ranks} == {State.EXITED}


@pytest.mark.untimed
@pytest.mark.parametrize("asking", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_was_asked_to_end_blames_nobody(asking: signal.Signals, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    job = [*torchrun(SCRIPT.name, "none", "--steps", "100000", ranks=2)]
    with started_apart([*doctor(recording), *job]) as process:
        assert process.stdout is not None
        assert "on its way" in process.stdout.readline()
        if asking == signal.SIGINT:  # as the terminal sends it: to the whole foreground group
            os.killpg(process.pid, asking)
        else:
            process.send_signal(asking)
        process.communicate(timeout=120)
    diagnosis = diagnose(load_recording(recording))
    assert diagnosis.case.job.outcome is Outcome.KILLED
    assert list_warnings(diagnosis) == []


@pytest.mark.untimed
def test_survivors_that_wait_for_a_dead_rank_are_a_hang_while_the_job_lives(
    tmp_path: Path,
) -> None:
    recording = tmp_path / "recording"
    job = forked_light(SCRIPT.name, "kill", "--stuck", ranks=4)
    with started([*doctor(recording), *job]):
        until(lambda: _findings(recording, "hang-rank-dead") != [])
        (finding,) = _findings(recording, "hang-rank-dead")
        diagnosis = diagnose(load_recording(recording))
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (1, 3)
    assert "failing_allreduce.py" in finding.cause
    assert "SIGKILL" in finding.cause
    assert single_warning(diagnosis).code == "hang-rank-dead"
    assert diagnosis.case.job.outcome is Outcome.HUNG


def _findings(recording: Path, code: str) -> list[Finding]:
    try:
        case = load_recording(recording)
    except ValueError:  # not there yet
        return []
    return [finding for finding in diagnose(case).findings if finding.code == code]


@pytest.mark.untimed
def test_after_a_sigkill_of_everything_the_recording_still_speaks(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    job = plain(SCRIPT.name, "none", "--steps", "100000")
    with started([*doctor(recording), *job]) as process:
        assert process.stdout is not None
        assert "on its way" in process.stdout.readline()
        until(lambda: all_step(recording, 2))
        alive = load_recording(recording)
        assert alive.job.outcome is Outcome.RUNNING
        assert [rank.rank for rank in alive.ranks] == [0, 1]
        family = psutil.Process(process.pid).children(recursive=True)
        for member in family:
            member.suspend()  # a rank that runs on would see the other's connection break
        process.kill()  # first the doctor: it must not see the others fall and write down an end
        for member in family:
            member.kill()
        process.communicate(timeout=120)
    diagnosis = diagnose(load_recording(recording))
    assert diagnosis.case.job.outcome is Outcome.KILLED
    assert all(len(rank.steps) for rank in diagnosis.case.ranks)
    assert list_warnings(diagnosis) == []
