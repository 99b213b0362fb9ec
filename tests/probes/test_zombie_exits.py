"""How a process ended that is still a zombie."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mgpu_probes.outside import processes

from tests.support.machine_files import write


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "import sys; input(); sys.exit(3)"]
    with subprocess.Popen(command, stdin=-1, text=True) as started:
        yield started


def ended(pid: int) -> None:
    """Waits for the end without asking how."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_process_that_runs_has_not_ended(child: subprocess.Popen[str]) -> None:
    assert processes.read_wait_status(child.pid) is None
    child.communicate("\n")


def test_an_exit_code(child: subprocess.Popen[str]) -> None:
    ticks = processes.find_start_ticks(child.pid)
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.close()
    ended(child.pid)
    status = processes.read_wait_status(child.pid, ticks)
    assert status is not None
    assert os.waitstatus_to_exitcode(status) == 3
    assert processes.read_wait_status(child.pid, (ticks or 0) + 1) is None
    child.wait()
    assert processes.read_wait_status(child.pid, ticks) is None


def test_a_signal(child: subprocess.Popen[str]) -> None:
    child.kill()
    ended(child.pid)
    status = processes.read_wait_status(child.pid)
    assert status is not None
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_of_somebody_elses_process_the_kernel_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = ["Z", "1", *["0"] * 17, "77", *["0"] * 29, str(9)]
    write(tmp_path, "5/stat", f"5 (python) {' '.join(fields)}\n")
    assert processes.read_wait_status(5, proc=tmp_path) == 9
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert processes.read_wait_status(5, proc=tmp_path) is None
    write(tmp_path, "6/stat", "6 (python) Z 1 0\n")
    assert processes.read_wait_status(6, proc=tmp_path) is None
