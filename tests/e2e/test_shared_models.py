"""Real processes that train one model in shared memory, without a process group."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.case.model import Case, Outcome, State
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis
from tests.support.jobs import JOBS, run, started
from tests.support.launching import eventually
from tests.support.observed_jobs import list_warnings, read_ranks

pytestmark = [pytest.mark.slow, pytest.mark.untimed]

STEPS = 60


def command(recording: Path, *options: str) -> list[str]:
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    return [*doctor, sys.executable, str(JOBS / "shared_model.py"), *options]


def record(folder: Path, *options: str) -> tuple[Case, list[int]]:
    """The case of a job, and the pids of its processes as it printed them, by their own number."""
    ended = run(command(folder / "recording", "--steps", str(STEPS), *options))
    assert ended.code == 0, ended.err
    printed = re.findall(r"^process (\d) is (\d+)$", ended.out, re.MULTILINE)
    return load_recording(folder / "recording"), [int(pid) for _, pid in sorted(printed)]


def accused(diagnosis: Diagnosis) -> list[tuple[str, list[int | None]]]:
    return [
        (finding.code, [culprit.pid for culprit in finding.culprits])
        for finding in list_warnings(diagnosis)
    ]


@pytest.mark.parametrize("fault", ["none", "slow"])
def test_each_process_is_counted_and_none_is_compared(tmp_path: Path, fault: str) -> None:
    case, pids = record(tmp_path, "--processes", "3", "--fault", fault)
    assert [rank.rank for rank in case.ranks] == [0, 1, 2]
    assert {rank.pid for rank in case.ranks} == {*pids}
    assert [len(rank.steps) for rank in case.ranks] == [STEPS] * 3
    assert case.earlier == ()
    assert case.job.outcome is Outcome.COMPLETED
    assert accused(diagnose(case)) == []


def test_a_process_that_raises_is_named_although_its_program_succeeds(tmp_path: Path) -> None:
    case, pids = record(tmp_path, "--fault", "exception")
    (finding,) = list_warnings(diagnose(case))
    assert finding.code == "failed-exception"
    assert [culprit.pid for culprit in finding.culprits] == [pids[1]]
    assert finding.victims == ()
    assert "no such label" in finding.title


def test_a_process_that_is_killed_is_named_although_its_program_succeeds(tmp_path: Path) -> None:
    case, pids = record(tmp_path, "--fault", "killed")
    assert accused(diagnose(case)) == [("failed-killed", [pids[1]])]
    ends = {rank.pid: (rank.state, rank.signal) for rank in case.ranks}
    assert ends == {pids[0]: (State.EXITED, None), pids[1]: (State.DEAD, signal.SIGKILL)}


def test_a_process_that_hangs_is_named_from_outside_while_another_one_trains() -> None:
    job_command = [sys.executable, str(JOBS / "shared_model.py"), "--steps", "100000"]

    def examine(pid: int) -> dict[str, Any]:
        words = ["diagnose", str(pid), "--json"]
        answer: dict[str, Any] = json.loads(run([sys.executable, "-m", "mgpu_doctor", *words]).out)
        return answer

    with started([*job_command, "--ms", "0", "--fault", "asleep", "--at", "20"]) as job:
        assert job.stdout is not None
        pids = dict(job.stdout.readline().split()[1::2] for _ in range(2))
        hung = int(pids["1"])
        # Without step records, it must have lasted for 30 s.
        eventually("the process that hangs is named", lambda: examine(job.pid)["findings"])
        examined = [examine(pid) for pid in (job.pid, hung)]
    for diagnosis in examined:
        assert [rank["rank"] for rank in diagnosis["ranks"]] == [0, 1]
        (finding,) = diagnosis["findings"]
        assert (finding["code"], finding["severity"]) == ("hang-rank-behind", "info")
        assert [culprit["pid"] for culprit in finding["culprits"]] == [hung]
        assert finding["victims"] == []
        assert "shared_model.py:" in finding["title"]


def test_a_stopped_process_is_named_after_the_other_has_ended(tmp_path: Path) -> None:
    recording = tmp_path / "recording"

    def states() -> list[State]:
        return [rank.state for rank in read_ranks(recording)]

    with started(command(recording, "--steps", str(STEPS), "--fault", "stopped")) as job:
        eventually("one process has ended", lambda: State.EXITED in states())
        examined = run([sys.executable, "-m", "mgpu_doctor", "diagnose", str(job.pid), "--json"])
        living = [rank for rank in read_ranks(recording) if rank.state is not State.EXITED]
    assert [rank.rank for rank in read_ranks(recording)] == [0, 1]
    findings = json.loads(examined.out)["findings"]
    named = [
        (finding["code"], [culprit["pid"] for culprit in finding["culprits"]], finding["victims"])
        for finding in findings
        if finding["severity"] != "info"
    ]
    assert named == [("hang-rank-behind", [rank.pid for rank in living], [])]
