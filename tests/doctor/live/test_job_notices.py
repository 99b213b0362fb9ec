"""`run --notify`: what the command gets, and that the job never waits for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.live.job_notices import MOST_WAITING, JobNotices
from tests.support.diagnoses import hang, straggler

PATIENCE = 60.0
"""Seconds that a condition may take on a busy machine."""


def read_notices(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_finding_is_sent_once_then_a_stall_and_the_end(tmp_path: Path) -> None:
    file, calls = tmp_path / "notices", 0

    def diagnose(_: Path) -> Diagnosis:
        nonlocal calls
        calls += 1
        return straggler(outcome=Outcome.RUNNING)

    notices = JobNotices(f"cat >> {file}", diagnose, every=0.01, patience=PATIENCE)
    notices.watch(tmp_path)
    until = time.monotonic() + PATIENCE
    while (calls < 3 or not read_notices(file)) and time.monotonic() < until:
        time.sleep(0.01)
    notices.report_stall(40.0)
    notices.report_end(137, hang())
    sent = read_notices(file)
    assert [notice["event"] for notice in sent] == ["finding", "stall", "end"]
    assert [notice["stalled_seconds"] for notice in sent] == [None, 40.0, None]
    assert [notice["exit_code"] for notice in sent] == [None, None, 137]
    assert sent[0]["findings"][0]["code"] == "straggler-input"
    assert sent[0]["findings"][0]["culprits"][0]["rank"] == 2
    assert sent[2]["findings"][0]["code"].startswith("hang-")
    assert notices.failures == 0


def test_a_command_that_never_ends_is_killed_and_the_queue_is_bounded(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"echo $$ >> {pids}; sleep 1000 & wait"
    notices = JobNotices(command, lambda _: hang(), every=1000, patience=0.2)
    notices.watch(tmp_path)
    for seconds in range(2 * MOST_WAITING):
        notices.report_stall(float(seconds))
    notices.report_end(0, None)
    assert notices.failures >= MOST_WAITING, "dropped or killed; at most 15 still wait"
    assert not [pid for pid in map(int, pids.read_text().split()) if psutil.pid_exists(pid)]


def test_the_job_keeps_its_exit_code_and_output(tmp_path: Path) -> None:
    file = tmp_path / "notices"
    command = [
        sys.executable,
        "-m",
        "mgpu_doctor",
        "run",
        "--quiet",
        "--dir",
        str(tmp_path / "run"),
    ]
    job = [sys.executable, "-c", "import sys; print('hello'); sys.exit(3)"]
    notify = f"cat >> {file}; exit 9"
    done = subprocess.run(
        [*command, "--notify", notify, "--", *job], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "hello\n")
    assert done.stderr == "mgpu-doctor: --notify: 1 call failed or took too long.\n"
    ended = read_notices(file)[-1]
    assert (ended["event"], ended["exit_code"]) == ("end", 3)
    assert ended["job"]["outcome"] == "failed"
