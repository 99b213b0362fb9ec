"""`mgpu-doctor top` in a real terminal: keys, and what the terminal shows then."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from mgpu_doctor.recording.home import runs
from tests.support.jobs import until
from tests.support.launching import doctor, python
from tests.support.recordings import SLOW_INPUT, WAITING, recording
from tests.support.terminals import KINDS, Emulated, Tmux, awaited, console

pytestmark = [
    pytest.mark.slow,
    pytest.mark.untimed,
    pytest.mark.parametrize("kind", KINDS),
]

Kind = type[Emulated | Tmux]
FOUND = "straggler-input"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))


def shell(*top: str, before: str = "true") -> Sequence[str]:
    """A shell that runs `top` as one would by hand, notes its pid, and waits."""
    command = shlex.join([sys.executable, "-m", "mgpu_doctor", "top", *top])
    command = f"(sh -c 'echo $PPID' >$MGPU_DOCTOR_HOME/pid; exec {command})"
    size = "unset COLUMNS LINES"  # the readline of pytest's own process puts them there
    words = f"{size}; {before}; echo my prompt; {command}; echo left with $?; read line"
    return ["sh", "-c", words]


def test_keys_sizes_and_the_way_back(kind: Kind) -> None:
    folder = recording(runs() / "job", (WAITING, WAITING, SLOW_INPUT, WAITING))
    with console(kind, shell(str(folder)), rows=30, columns=100) as there:
        assert "my prompt" not in awaited(there, FOUND)
        until(lambda: _line_of_keys(there.text()) == 30)
        assert not there.restored()
        there.type("?")
        awaited(there, "the job is never touched")
        there.type("\x1b")
        awaited(there, "the job is never touched", gone=True)
        there.type("g")
        awaited(there, "cpu pressure")
        there.type("\x1b")
        awaited(there, FOUND)
        there.type("/")
        awaited(there, "enter: apply")
        there.type("rank:2")
        awaited(there, "\nrank:2")
        there.type("\r")
        awaited(there, "1 of 4 ranks shown")
        there.resize(24, 80)
        until(lambda: _line_of_keys(there.text()) == 24)
        awaited(there, FOUND)
        there.type("q")
        assert "my prompt" in awaited(there, "left with 0")
        assert FOUND not in there.text()
        assert there.restored()


def test_y_copies_the_fix(kind: Kind) -> None:
    folder = recording(runs() / "job", (WAITING, WAITING, SLOW_INPUT, WAITING))
    with console(kind, shell(str(folder))) as there:
        awaited(there, FOUND)
        there.type("y")
        awaited(there, "Copied")
        assert "num_workers" in there.copied()


def _line_of_keys(screen: str) -> int | None:
    """Counted from 1; the screen's last."""
    lines = enumerate(screen.split("\n"), 1)
    return next((number for number, line in lines if "q quit ? help" in line), None)


def test_ctrl_c_leaves_the_terminal_whole_and_the_job_alive(kind: Kind, tmp_path: Path) -> None:
    folder = tmp_path / "runs/job"
    job = doctor(folder, *python("print('at work', flush=True); input()"))
    with subprocess.Popen(job, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"at work\n"
        with console(kind, shell(str(folder))) as there:
            awaited(there, "ranks")
            there.type("\x03")
            assert "my prompt" in awaited(there, "left with 0")
            assert there.restored()
        assert running.poll() is None
        running.communicate(b"\n", timeout=60)
        assert running.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_leaves_the_terminal_whole(
    kind: Kind, tmp_path: Path, number: signal.Signals
) -> None:
    with console(kind, shell()) as there:
        awaited(there, "No job is under observation")
        os.kill(int((tmp_path / "pid").read_text()), number)
        assert "my prompt" in awaited(there, "left with 0")
        assert there.restored()


def test_all_is_drawn_again_after_a_suspension(kind: Kind, tmp_path: Path) -> None:
    folder = recording(runs() / "job", (WAITING, WAITING, SLOW_INPUT, WAITING))
    with console(kind, shell("--replay", str(folder))) as there:
        awaited(there, "space pause")
        there.type("\x1b[F")
        before = awaited(there, FOUND).split()
        there.type("\x1a")
        awaited(there, FOUND, gone=True)
        top = psutil.Process(int((tmp_path / "pid").read_text()))
        until(lambda: top.status() == psutil.STATUS_STOPPED)
        assert there.restored()
        top.resume()
        until(lambda: len(there.text().split()) > 0.9 * len(before), seconds=120)
        there.type("q")
        awaited(there, "left with 0")


def test_it_ends_with_its_terminal(kind: Kind) -> None:
    with console(kind, [sys.executable, "-m", "mgpu_doctor", "top"]) as there:
        awaited(there, "No job is under observation")
        ended = there.vanish()
        until(ended)


def test_a_dumb_terminal_is_refused_with_what_works_there(kind: Kind) -> None:
    with console(kind, shell(before="export TERM=dumb")) as there:
        assert "--once" in awaited(there, "left with 2")
        assert there.restored()
