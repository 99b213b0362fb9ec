"""Signals reach the job as they would without the doctor, and its end is reported correctly."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.launching import (
    doctor,
    eventually,
    python,
    read_json,
    read_lines,
    state,
    terminal,
)

COUNTING = python(
    "import os, signal, sys, time\n"
    "def count(number, frame): os.write(1, b'got %d\\n' % number)\n"
    "for number in (1, 2, 3, 10, 12, 15): signal.signal(number, count)\n"
    "print('ready', flush=True)\n"
    "sys.stdin.readline()\n"
    "sys.exit(9)\n"
)
SLEEPING = python("import time; print('ready', flush=True); time.sleep(1000)")


def started(command: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=os.setpgrp,  # noqa: PLW1509 - process_group= came with Python 3.11
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


def job_pid(recording: Path) -> int:
    pid = eventually(
        "the job's pid", lambda: read_json(recording / "recording.json").get("job_pid")
    )
    assert isinstance(pid, int)
    return pid


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_to_the_doctor_reaches_the_job(tmp_path: Path, name: str) -> None:
    number = signal.Signals[name]
    process = started(doctor(tmp_path / "r", *COUNTING))
    assert process.stdout
    process.send_signal(number)
    assert process.stdout.readline() == b"got %d\n" % number
    output, _ = process.communicate(b"end\n")
    assert (process.returncode, output) == (9, b"")
    asked = read_json(tmp_path / "r/end.json")["asked"]
    assert asked == (None if name.startswith("SIGUSR") else name)


def test_a_signal_to_the_group_is_not_sent_twice(tmp_path: Path) -> None:
    """As `timeout` and batch systems do."""
    process = started(doctor(tmp_path / "r", *COUNTING))
    assert process.stdout
    for _ in range(2):
        os.killpg(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == b"got 15\n"
    process.send_signal(signal.SIGUSR1)  # and one to the doctor alone still arrives
    assert process.stdout.readline() == b"got 10\n"
    assert process.communicate(b"end\n")[0] == b""
    assert read_json(tmp_path / "r/end.json")["asked"] == "SIGTERM"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL", "SIGSEGV"])
def test_the_exit_code_of_a_job_that_a_signal_ended(tmp_path: Path, name: str) -> None:
    number = signal.Signals[name]
    process = started(doctor(tmp_path / "r", "sh", "-c", "echo ready; exec sleep 1000"))
    job = job_pid(tmp_path / "r")
    command = Path(f"/proc/{job}/comm")  # a shell may lose what it hears while it begins another
    eventually("the sleep", lambda: command.read_text() == "sleep\n")
    os.kill(job, number)
    process.communicate()
    assert process.returncode == 128 + number
    end = read_json(tmp_path / "r/end.json")
    assert (end["exit_code"], end["signal"], end["asked"]) == (None, number, None)
    last = read_lines(next((tmp_path / "r/hosts").glob("*/exits.jsonl")))[-1]
    assert (last["pid"], last["signal"]) == (job, number)
    assert last["how"] == "wait"


def test_control_c_reaches_the_job_once_and_the_doctor_waits(tmp_path: Path) -> None:
    with terminal(doctor(tmp_path / "r", *COUNTING)) as screen:
        screen.read_until(b"ready")
        screen.type(b"\x03")
        screen.read_until(b"got 2")
        screen.type(b"end\n")
        code, output = screen.end()
    assert code == 9
    assert output.count(b"got 2") == 1
    assert read_json(tmp_path / "r/end.json")["asked"] == "SIGINT"


def test_control_c_ends_a_job_that_does_not_mind(tmp_path: Path) -> None:
    with terminal(doctor(tmp_path / "r", *SLEEPING, options=[])) as screen:
        screen.read_until(b"ready")
        screen.type(b"\x03")
        code, output = screen.end()
    assert code == 128 + signal.SIGINT
    assert b"KeyboardInterrupt" in output
    assert output.count(b"Traceback") == 1, "the doctor was interrupted, too"


def test_control_z_stops_and_fg_continues(tmp_path: Path) -> None:
    shell = ["env", "PS1=$ ", "HISTFILE=", "bash", "--norc", "--noprofile", "-i"]
    with terminal(shell) as screen:
        screen.read_until(b"$ ")
        command = " ".join(f"'{part}'" for part in doctor(tmp_path / "r", "cat"))
        screen.type(command.encode() + b"\n")
        pid = job_pid(eventually("the recording", lambda: _recording(tmp_path / "r")))
        doctor_pid = read_json(tmp_path / "r/recording.json")["doctor_pid"]
        screen.type(b"one\n")
        screen.read_until(b"one\r\none\r\n")
        screen.type(b"\x1a")
        screen.read_until(b"Stopped")
        eventually("both to stop", lambda: state(pid) == state(doctor_pid) == "T")
        screen.type(b"fg\n")
        eventually("the job to go on", lambda: state(pid) == state(doctor_pid) == "S")
        screen.type(b"two\n")
        screen.read_until(b"two\r\ntwo\r\n")
        screen.type(b"\x04")
        screen.read_until(b"$ ")
        screen.type(b"echo code $?; exit\n")
        screen.read_until(b"code 0")


def test_stopping_and_continuing_the_doctor_alone(tmp_path: Path) -> None:
    process = started(doctor(tmp_path / "r", *SLEEPING))
    pid = job_pid(tmp_path / "r")
    process.send_signal(signal.SIGTSTP)
    eventually("both to stop", lambda: state(pid) == state(process.pid) == "T")
    process.send_signal(signal.SIGCONT)
    eventually("both to go on", lambda: state(pid) != "T" != state(process.pid))
    process.terminate()
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM


def test_the_job_has_the_signal_settings_it_would_have_had(tmp_path: Path) -> None:
    program = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    for prefix in ([], nohup):
        bare = [*prefix, *program]
        seen = [*prefix, *doctor(tmp_path / f"r{len(prefix)}", *program)]
        assert _settings(seen) == _settings(bare)
    assert _settings(bare)["SigIgn"] & 1


def _settings(command: list[str]) -> dict[str, int]:
    """Signal masks, but for 32 and 33: they are the C library's own, whose posix_spawn ignores
    them for every child until that sets them up itself."""
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    masks = dict(line.split(":") for line in output.splitlines())
    return {name: int(mask, 16) & ~(3 << 31) for name, mask in masks.items()}


def test_a_signal_from_the_job_itself_is_nobody_asking(tmp_path: Path) -> None:
    program = python(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(0.5)\n"
        "os.killpg(0, signal.SIGTERM)\n"
    )
    process = subprocess.Popen(doctor(tmp_path / "r", *program), start_new_session=True)
    assert process.wait() == 0
    assert read_json(tmp_path / "r/end.json")["asked"] is None


def _recording(folder: Path) -> Path | None:
    file = folder / "recording.json"
    return folder if file.exists() and "job_pid" in file.read_text() else None
