"""Jobs are started from the live screen, watched and stopped: real processes, without torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from mgpu_probes.outside import processes
from mgpu_probes.outside.jobs import command_lines

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.layout import END, VERDICT
from mgpu_doctor.recording.live_recordings import is_living
from mgpu_doctor.tui.jobs import stopping
from mgpu_doctor.tui.jobs.attach_screen import jobs_here
from mgpu_doctor.tui.jobs.starting import (
    NotStartedError,
    Started,
    farewell,
    run_words,
    shown,
    start,
)
from mgpu_doctor.tui.jobs.stopping import Aim, aim_at_recording
from tests.support.launching import eventually, python, read_json

SLEEPS = "import time\nprint('at work', flush=True)\ntime.sleep(600)"
DEAF = "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
TALKS = "import sys; print('to one'); print('to the other', file=sys.stderr)"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))


@pytest.fixture
def begun() -> Iterator[list[Started]]:
    """Whatever is put in is killed at the end."""
    started: list[Started] = []
    yield started
    for one in started:
        aim = aim_at_recording(one.recording)
        if isinstance(aim, Aim):
            stopping.send(aim, signal.SIGKILL)
            eventually("the end of the doctor", partial(_gone, one.pid))


def _gone(pid: int) -> bool:
    return not processes.is_alive(pid)


def console(one: Started) -> str:
    return "".join(path.read_text() for path in sorted((one.recording / "console").glob("*.log")))


def ended(one: Started) -> bool:
    return (one.recording / END).exists()


def test_a_job_is_nobodys_child_and_runs_in_a_session_of_its_own(begun: list[Started]) -> None:
    one = start(run_words(python(SLEEPS)))
    begun.append(one)
    doctor = processes.read_process(one.pid)
    assert doctor is not None
    assert doctor.parent != os.getpid()
    assert os.getsid(one.pid) != os.getsid(0)
    assert os.getpgid(one.pid) != os.getpgid(0)
    assert os.readlink(f"/proc/{one.pid}/fd/0") == os.devnull
    assert one.recording.parent == runs()
    assert is_living(one.recording)
    eventually("what it prints", lambda: "at work" in console(one))
    assert [job.recording for job in jobs_here() if job.recording] == [one.recording]
    assert farewell(one) == f"the job keeps running; `mgpu-doctor top {one.recording.name}` " + (
        "shows it again."
    )


def test_the_doctor_apart_is_known_as_the_doctor() -> None:
    assert command_lines.is_doctor(
        ("python", "-m", "mgpu_doctor.tui.jobs.detached_start", "3", "run")
    )


def test_its_output_is_in_the_recording_and_its_end_is_reported() -> None:
    one = start(run_words(python(TALKS)))
    eventually("its end", lambda: ended(one))
    assert sorted(console(one).splitlines()) == ["to one", "to the other"]
    name = one.recording.name
    assert farewell(one) == (f"the job has completed; `mgpu-doctor diagnose {name}` shows more.")
    assert aim_at_recording(one.recording) == "the job has ended."


def test_how_it_failed_is_reported_and_listed() -> None:
    one = start(run_words(python("import sys; sys.exit(7)")))
    eventually("its end", lambda: ended(one))
    assert "has ended with exit code 7" in farewell(one)
    eventually("its verdict, for `runs`", (one.recording / VERDICT).exists)
    assert read_json(one.recording / VERDICT)["code"] == "failed-exception"


def test_who_started_it_may_be_killed(begun: list[Started], tmp_path: Path) -> None:
    """The dashboard's process group gets SIGKILL, as by a terminal that is torn down."""
    program = (
        "import sys, time\n"
        "from mgpu_doctor.tui.jobs.starting import run_words, start\n"
        f"one = start(run_words([sys.executable, '-c', {SLEEPS!r}]))\n"
        "print(one.pid, one.recording, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        python(program), stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    ) as dashboard:
        assert dashboard.stdout is not None
        pid, _, folder = dashboard.stdout.readline().strip().partition(" ")
        one = Started(Path(folder), int(pid))
        begun.append(one)
        os.killpg(dashboard.pid, signal.SIGKILL)
    eventually("what it prints", lambda: "at work" in console(one))
    assert is_living(one.recording)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (run_words(["no-such-command"]), "no-such-command: command not found."),
        (("train", "nope"), "there is no trainer 'nope': choose one of torch-ddp"),
        (("run", "--dir", "/", "--", "true"), "/ is not empty. Name a new or empty"),
        (("train", "torch-ddp", "--ranks", "x"), "Invalid value for '--ranks'"),
    ],
    ids=["no command", "no trainer", "occupied folder", "no number"],
)
def test_who_refuses_is_quoted(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(NotStartedError) as refused:
        start(words)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_framework_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'torch' else real(name, *more)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    with pytest.raises(NotStartedError, match="torch-ddp needs torch, which is not installed"):
        start(("train", "torch-ddp"))


def test_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    one = start(("run", "--dir", str(folder), "--", *python(TALKS)))
    assert one.recording == folder
    eventually("its end", lambda: ended(one))
    assert f"diagnose '{folder}'" in farewell(one)


def test_what_is_shown_can_be_typed() -> None:
    assert run_words(["/x/mgpu-doctor", "train", "torch-ddp"]) == ("train", "torch-ddp")
    assert run_words(["mgpu-doctor", "runs"])[:2] == ("run", "--")
    words = run_words(["torchrun", "my script.py"])
    assert shown(words) == "mgpu-doctor run -- torchrun 'my script.py'"


def test_stopping_asks_the_job_through_the_doctor(begun: list[Started]) -> None:
    one = start(run_words(python(SLEEPS)))
    begun.append(one)
    aim = aim_at_recording(one.recording)
    assert isinstance(aim, Aim)
    assert [who.pid for who in aim.asked] == [one.pid]
    eventually("the job at work", lambda: "at work" in console(one))
    assert stopping.send(aim, signal.SIGINT) is None
    eventually("its end", lambda: not aim.alive)
    assert read_json(one.recording / END)["asked"] == "SIGINT"
    assert load_recording(one.recording).job.outcome is Outcome.KILLED
    assert farewell(one).startswith("the job has ended as requested by SIGINT;")


def test_sigkill_ends_what_hears_nothing_and_its_family(begun: list[Started]) -> None:
    child = DEAF + SLEEPS
    parent = f"{DEAF}import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    one = start(run_words(python(parent)))
    begun.append(one)
    aim = aim_at_recording(one.recording)
    assert isinstance(aim, Aim)
    eventually("the job at work", lambda: "at work" in console(one))
    family = processes.list_descendants(aim.roots[0].pid)
    assert family
    assert stopping.send(aim, signal.SIGTERM) is None
    assert stopping.send(aim, signal.SIGKILL) is None
    eventually("its end", lambda: not aim.alive)
    assert not any(processes.is_alive(each.pid, each.start_ticks) for each in family)
    assert read_json(one.recording / END)["signal"] == signal.SIGKILL


def test_another_users_job_is_left_alone(
    begun: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start(run_words(python(SLEEPS)))
    begun.append(one)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 54321)
        assert "another user" in str(aim_at_recording(one.recording))


def test_a_process_that_took_the_pid_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.DEVNULL) as other:
        ticks = processes.find_start_ticks(other.pid)
        assert ticks is not None
        dead = stopping.TargetProcess(other.pid, ticks - 1)
        assert stopping.send(Aim("x", (dead,), (dead,)), signal.SIGKILL) is None
        assert other.poll() is None
        other.kill()


def test_what_is_no_job_cannot_be_stopped(tmp_path: Path) -> None:
    assert "does not say" in str(aim_at_recording(tmp_path))
    assert "no process" in str(stopping.aim_at_process(2**22 + 1))
