"""`run` records the machine's evidence of failures, and is never delayed by it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import threading
from pathlib import Path

import pytest

from mgpu_doctor.case.ending_gaps import read_endings
from mgpu_doctor.launch import exit_watch as module
from mgpu_doctor.launch.exit_watch import ExitWatch
from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.recording import layout
from tests.support.launching import doctor, eventually, python, read_json


def host_folder(recording: Path) -> Path:
    return recording / layout.HOSTS / os.uname().nodename


def test_a_run_leaves_a_private_record_with_its_processes(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = doctor(recording, *python(program))
    file = host_folder(recording) / layout.ENDING
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        eventually("a second look", lambda: file.exists() and _seen(file) is not None)
        job.communicate("")
    assert job.returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    (told,), _ = read_endings([host_folder(recording)], root=recording)
    ended = {exit["pid"] for exit in _exits(recording)}
    (child,) = [process for process in told.processes.values() if process.pid in ended]
    assert child.limits["files"] in {(99, 99), _own_limit()}
    assert {"shm", "tmp", "cwd"} <= {role for place in told.places for role in place.roles}


def _seen(file: Path) -> object:
    return read_json(file).get("processes") or None


def _exits(recording: Path) -> list[dict[str, int]]:

    lines = (host_folder(recording) / layout.EXITS).read_text().splitlines()
    return [json.loads(line) for line in lines]


def _own_limit() -> tuple[int, int]:

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft, hard


class Held:
    """Stands for a file system that does not answer."""

    def __init__(self, *_: object) -> None:
        self.asked = HELD_ASKED
        self.released = HELD_RELEASED

    def poll(self, *_: object, **__: object) -> None:
        self.asked.set()
        self.released.wait()

    def evidence(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass


HELD_ASKED, HELD_RELEASED = threading.Event(), threading.Event()


def test_a_file_system_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ExitEvidence", Held)
    watch = ExitWatch(RunRecording(tmp_path), tmp_path / "ending.json", list, lambda _: 1.0)
    watch.start()
    HELD_ASKED.wait()
    watch.someone_ended()
    watch.finish(0.01)  # returns although the thread still waits
    assert not (tmp_path / "ending.json").exists()
    HELD_RELEASED.set()


def test_a_full_disk_is_remembered_and_ends_nothing(tmp_path: Path) -> None:
    recording = RunRecording(tmp_path)
    watch = ExitWatch(recording, tmp_path / "missing" / "ending.json", list, lambda _: 1.0)
    watch.start()
    watch.finish(60.0)
    assert recording._trouble is not None
    assert isinstance(recording._trouble, FileNotFoundError)
