"""Stacks by py-spy, of processes that really block."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mgpu_probes.outside import processes
from mgpu_probes.outside.stacks import pyspy_stacks, stack_threads
from mgpu_probes.outside.stacks.pyspy_stacks import Failure, Kind

from tests.support.jobs import until
from tests.support.other_user import as_nobody
from tests.support.stuck_processes import stuck, wait_for_call

Json = dict[str, Any]
SECONDS = 20.0


def soon() -> float:
    return time.monotonic() + SECONDS


def main_thread(stack: Json | Failure) -> Json:
    assert not isinstance(stack, Failure), stack
    first: Json = stack["threads"][0]
    assert first["main"]
    assert not any(thread["main"] for thread in stack["threads"][1:])
    return first


def functions(thread: Json) -> list[str]:
    return [frame[0] for frame in thread["frames"]]


def settled(pid: int, innermost: str) -> Json:
    """The process's stack, once it has come where it will be stuck."""
    seen: list[Json | Failure] = []

    def there() -> bool:
        seen.append(pyspy_stacks.read_stack(pid, soon()))
        last = seen[-1]
        if isinstance(last, Failure):
            return False
        name = functions(main_thread(last))[0]  # with its class, but not before Python 3.11
        return name.rpartition(".")[2] == innermost

    until(there)
    last = seen[-1]
    assert not isinstance(last, Failure)
    return last


def sleeps_again(pid: int) -> None:
    """One that was paused goes on as soon as it gets a core."""
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING)


@pytest.mark.parametrize(
    ("how", "call"), [("lock", "futex"), ("sleep", "clock_nanosleep"), ("pipe", "read")]
)
def test_a_process_that_waits(how: str, call: str) -> None:
    with stuck(how) as process:
        wait_for_call(process.pid, call)
        stack = settled(process.pid, "stuck_here")
        main = main_thread(stack)
        assert (stack["pid"], stack["source"]) == (process.pid, "py-spy")
        assert functions(main) == ["stuck_here", "<module>"]
        assert main["frames"][0][1:] == ["<string>", 25]
        assert (main["id"], main["active"], main["gil"]) == (process.pid, False, False)


def test_c_code_that_holds_pythons_lock() -> None:
    with stuck("gil") as process:
        main = main_thread(settled(process.pid, "stuck_here"))
        assert main["gil"] is True


def test_a_loop_that_never_ends() -> None:
    with stuck("spin") as process:
        until(lambda: main_thread(pyspy_stacks.read_stack(process.pid, soon()))["active"] is True)


def test_a_stopped_process_is_read_and_stays_stopped() -> None:
    with stuck("sleep") as process:
        process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        assert (
            functions(main_thread(pyspy_stacks.read_stack(process.pid, soon())))[-1] == "<module>"
        )
        native = pyspy_stacks.read_native_stack(process.pid, soon())
        assert isinstance(native, Failure)
        assert "stopped" in native.text
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


def test_a_thread_that_waits_while_the_main_one_does_too() -> None:
    with stuck("thread") as process:
        stack = settled(process.pid, "_wait_for_tstate_lock" if OLD else "join")
        other = stack["threads"][1]
        assert other["name"] == "ödd \x1b[31m<b>"
        assert "waits_for_ever" in functions(other)


OLD = sys.version_info < (3, 13)


def test_a_deep_recursion_keeps_both_ends() -> None:
    with stuck("deep", "2000") as process:
        main = main_thread(settled(process.pid, "sinks"))
        told = functions(main)
        assert len(told) == stack_threads.INNERMOST + stack_threads.OUTERMOST + 1
        assert told[stack_threads.INNERMOST] == "… 1503 frames"
        assert told[-3:] == ["sinks", "stuck_here", "<module>"]


def test_native_frames_stand_between_and_the_process_goes_on() -> None:
    with stuck("gil") as process:
        settled(process.pid, "stuck_here")
        stack = pyspy_stacks.read_native_stack(process.pid, soon())
        assert not isinstance(stack, Failure), stack
        assert stack["source"] == "py-spy --native"
        told = functions(main_thread(stack))
        assert told.index("stuck_here") > 0
        sleeps_again(process.pid)


def test_one_that_has_ended_is_gone() -> None:
    with stuck("sleep") as process:
        process.kill()
        until(lambda: not processes.is_alive(process.pid))
        assert pyspy_stacks.read_stack(process.pid, soon()) == Failure(Kind.GONE)  # a zombie
    assert pyspy_stacks.read_stack(process.pid, soon()) == Failure(Kind.GONE)


def test_one_that_runs_no_python_is_foreign() -> None:
    with psutil.Popen(["sleep", "600"]) as process:
        stack = pyspy_stacks.read_stack(process.pid, soon())
        process.kill()
    assert stack == Failure(Kind.FOREIGN)


def test_another_users_process_is_denied() -> None:
    pid = 1 if os.geteuid() else os.getpid()

    def kind() -> str:
        stack = pyspy_stacks.read_stack(pid, soon())
        return stack.kind.name if isinstance(stack, Failure) else "read"

    assert as_nobody(kind) == "DENIED"


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Puts a shell script in py-spy's place; it notes with what it was called."""
    script = tmp_path / "py-spy"

    def put(body: str) -> Path:
        calls = tmp_path / "calls"
        script.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{body}\n')
        script.chmod(0o700)
        monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: str(script))
        return calls

    return put


def test_one_that_hangs_is_killed(
    instead: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy_stacks, "PATIENCE", 1.0)
    calls = instead("exec sleep 600")
    assert pyspy_stacks.read_stack(os.getpid(), soon()) == Failure(Kind.LATE)
    assert len(calls.read_text().splitlines()) == 1
    assert not [child for child in psutil.Process().children() if child.name() == "sleep"]


def test_one_that_never_stops_printing_is_killed(instead: Callable[[str], Path]) -> None:
    instead("exec yes")
    found = pyspy_stacks.run_dump(os.getpid(), soon())
    assert isinstance(found, Failure)
    assert found.kind is Kind.TORN


def test_nonsense_is_read_again_and_then_given_up(instead: Callable[[str], Path]) -> None:
    for nonsense in ("[", "{}", "7", "[[], {}]", '[{"frames": [1, {"name": 3}]}, null]'):
        calls = instead(f"echo '{nonsense}'")
        before = len(calls.read_text().splitlines()) if calls.exists() else 0
        stack = pyspy_stacks.read_stack(os.getpid(), soon())
        if nonsense.startswith("[{"):
            assert main_thread(stack)["frames"] == [["?", "?", None]]
            continue
        assert stack == Failure(Kind.TORN, "its stacks had no frames")
        made = calls.read_text().splitlines()[before:]
        assert ["--nonblocking" in one for one in made] == [True, True, True, False]


def test_a_torn_reading_is_read_again(instead: Callable[[str], Path], tmp_path: Path) -> None:
    good = json.dumps([{"thread_name": "MainThread", "frames": [{"name": "f", "line": 3}]}])
    instead(f"if mkdir {tmp_path}/once; then exit 1; fi; echo '{good}'")
    assert main_thread(pyspy_stacks.read_stack(os.getpid(), soon()))["frames"] == [["f", "?", 3]]


def test_a_stack_that_was_cut_off_is_read_again(
    instead: Callable[[str], Path], tmp_path: Path
) -> None:
    def told(*names: str) -> str:
        frames = [{"name": name} for name in names]
        return json.dumps([{"thread_name": "MainThread", "frames": frames}])

    whole, cut = told("f", "<module>"), told("f", "g")
    calls = instead(f"if mkdir {tmp_path}/once; then echo '{cut}'; else echo '{whole}'; fi")
    assert functions(main_thread(pyspy_stacks.read_stack(os.getpid(), soon()))) == ["f", "<module>"]
    calls.unlink()
    instead(f"if mkdir {tmp_path}/twice; then echo '{cut}'; else exit 1; fi")
    assert functions(main_thread(pyspy_stacks.read_stack(os.getpid(), soon()))) == ["f", "g"]
    assert "--nonblocking" in calls.read_text().splitlines()[-1]


def test_a_stopped_process_is_never_paused(instead: Callable[[str], Path]) -> None:
    calls = instead("exit 1")
    with stuck("sleep") as process:
        process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        stack = pyspy_stacks.read_stack(process.pid, soon())
    assert isinstance(stack, Failure)
    assert all("--nonblocking" in line for line in calls.read_text().splitlines())


@pytest.mark.slow
def test_a_process_that_was_left_stopped_goes_on(
    instead: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy_stacks, "PATIENCE", 1.0)
    with stuck("sleep") as process:
        instead(f"kill -STOP {process.pid}; exec sleep 600")
        assert pyspy_stacks.read_native_stack(process.pid, soon()) == Failure(Kind.LATE)
        sleeps_again(process.pid)


def test_without_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: None)
    assert pyspy_stacks.read_stack(os.getpid(), soon()) == Failure(Kind.ABSENT)
    monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: str(tmp_path / "none"))
    stack = pyspy_stacks.read_stack(os.getpid(), soon())
    assert isinstance(stack, Failure)
    assert stack.kind is Kind.UNSTARTED
    assert "No such file" in stack.text


def test_no_time_left_starts_nothing(instead: Callable[[str], Path]) -> None:
    calls = instead("exit 1")
    assert pyspy_stacks.read_stack(os.getpid(), time.monotonic()) == Failure(Kind.LATE)
    assert not calls.exists()


def test_the_main_thread_is_found_by_name_or_else_by_id() -> None:
    def told(*threads: tuple[str | None, int]) -> list[bool]:
        listed = [{"thread_name": name, "os_thread_id": id} for name, id in threads]
        return [one["main"] for one in pyspy_stacks.parse_dump(json.dumps(listed).encode(), 70)]

    assert told(("a", 70), ("MainThread", 8)) == [False, True]  # ids of a container's own
    assert told((None, 8), (None, 70)) == [False, True]
    assert told(("MainThread", 70), ("MainThread", 9)) == [True, False]
    assert told(("a", 8), ("b", 9)) == [False, False]
    assert told((None, 8)) == [True]
