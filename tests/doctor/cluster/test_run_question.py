"""Whether somebody reports on a host, by what the job's recording there shows."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from mgpu_doctor.cluster.engine import Trouble
from mgpu_doctor.cluster.run_question import ask_hosts, make_question
from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.joint_recordings import JOINT, claim_recording, join_recording, name_host
from mgpu_doctor.recording.layout import END, INFO
from tests.support.node_ranks import ShellEngine

KEY = 'torchrun node-a 29500 "a"\'s'
PATIENCE = 5.0
DEAD = 1 << 30
"""No process has this number."""
KILLED = "the mgpu-doctor there was killed"


def ask(folder: Path, key: str = KEY) -> str | None:
    """Why nobody reports, as this machine answers itself."""
    question = make_question(folder, key, PATIENCE)
    trouble = ask_hosts(ShellEngine(), ["here"], question, 60.0)["here"]
    return None if trouble is None else trouble.reason


def begin(folder: Path | None, pid: int = DEAD) -> Path:
    """The part of a process with this number, which was touched long ago. `folder`: of the
    recording; None: in the doctor's home."""
    if folder is None:
        folder = claim_recording(KEY, "train", time.time(), name_host())
    info = {JOINT: KEY, "doctor_pid": pid, "doctor_start_ticks": 1}
    part, _ = join_recording(folder, info, KEY, name_host())
    os.utime(part / INFO, (1000.0, 1000.0))
    return part


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "a home"))


def test_a_process_that_was_killed_reports_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "r s"
    part = begin(folder)
    assert ask(folder) == KILLED
    assert ask(folder, "another job") is None
    (part / END).write_text("{}")
    assert ask(folder) is None


def test_a_process_that_lives_reports(tmp_path: Path) -> None:
    with subprocess.Popen(["mgpu-doctor", "60"], executable="/bin/sleep") as process:
        begin(tmp_path / "r", process.pid)
        assert ask(tmp_path / "r") is None
        process.kill()
        process.wait()
        assert ask(tmp_path / "r") == KILLED


def test_the_newest_recording_at_home_counts() -> None:
    elsewhere = runs() / "the one of this node"
    assert ask(elsewhere) is None
    begin(None)
    assert ask(elsewhere) == KILLED
    end = begin(None) / END
    assert ask(elsewhere) == KILLED
    end.write_text("{}")
    assert ask(elsewhere) is None


def test_a_host_that_does_not_answer_in_time_is_not_waited_for() -> None:
    engine = ShellEngine({"mute": ("sleep", "60"), "slow": ("sleep", "60")})
    late = "it did not answer within 1 s"
    assert ask_hosts(engine, ["mute", "slow"], "true", 1.0) == {
        host: Trouble(late, f"`shell {host} true` must work") for host in ("mute", "slow")
    }


def test_the_question_is_one_line(tmp_path: Path) -> None:
    """A csh takes no more in quotes."""
    assert "\n" not in make_question(tmp_path, json.dumps(KEY), PATIENCE)
