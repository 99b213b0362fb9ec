"""A snapshot of a job: real processes, read back as the case reads them."""

from __future__ import annotations

import json
import os
import signal
import sysconfig
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from mgpu_probes.outside.job_snapshot import take_snapshot
from mgpu_probes.outside.jobs.running_jobs import LAUNCHER, LOADER, UnreadSource
from mgpu_probes.outside.stacks import bounded_subprocess, pyspy_stacks
from mgpu_probes.outside.stacks.stack_reader import Aid

from mgpu_doctor.case.job_snapshots import JobSnapshot, read_job_snapshot
from tests.support.jobs import until
from tests.support.other_user import as_nobody
from tests.support.stuck_processes import all_stuck, job_of, stuck, wait_for_call

SECONDS = 20.0


def read_back(line: dict[str, object]) -> JobSnapshot:
    """As it is when it has been written into a recording and read again."""
    found = read_job_snapshot(json.loads(json.dumps(line)))
    assert found is not None
    return found


def place(found: JobSnapshot, pid: int) -> str | None:
    stack = found.stack(pid)
    main = None if stack is None else stack.main
    return None if main is None else main.frames[0].function


def test_all_stuck_processes_of_a_job() -> None:
    ways = ("lock", "sleep", "gil", "spin", "pipe", "lock", "sleep", "pipe")
    with all_stuck(*ways) as stuck_ones:
        pids = [one.pid for one in stuck_ones]
        job = job_of(*pids)
        snapshots: list[JobSnapshot] = []

        def all_there() -> bool:
            snapshots.append(read_back(take_snapshot(job, timeout=SECONDS)))
            by_way = dict(zip(ways, snapshots[-1].processes, strict=True))
            reads = (by_way["pipe"].syscall or "").startswith("read pipe:[")
            return reads and {place(snapshots[-1], pid) for pid in pids} == {"stuck_here"}

        before = time.time()
        until(all_there)
        found = snapshots[-1]
    assert before <= found.at <= time.time()
    assert [rank.rank for rank in found.ranks] == list(range(8))
    assert found.world_size == 8
    assert found.untold == ()
    by_way = dict(zip(ways, found.processes, strict=True))
    assert by_way["spin"].state == "R"
    assert all(process.cpu_seconds is not None for process in found.processes)
    assert all(process.main_cpu_seconds is not None for process in found.processes)
    assert {stack.source for stack in found.stacks} == {"py-spy"}


def test_loaders_are_read_and_launchers_are_not() -> None:
    with all_stuck("sleep", "sleep", "sleep") as (launcher, rank, loader):
        job = job_of(launcher.pid, rank.pid, loader.pid)
        roles = (LAUNCHER, job.processes[1].role, LOADER)
        processes = [
            replace(process, role=role) for process, role in zip(job.processes, roles, strict=True)
        ]
        job = replace(job, processes=tuple(processes[::-1]))
        found = read_back(take_snapshot(job, timeout=SECONDS))
        without = read_back(take_snapshot(job, timeout=SECONDS, loaders=False))
    assert [stack.pid for stack in found.stacks] == [rank.pid, loader.pid]
    assert [stack.pid for stack in without.stacks] == [rank.pid]
    assert [process.role.value for process in found.processes] == list(roles[::-1])


def test_the_stopped_the_dead_and_the_gone() -> None:
    with all_stuck("sleep", "sleep", "sleep") as (stopped, dead, gone):
        job = job_of(stopped.pid, dead.pid, gone.pid)
        job = replace(job, missing=(3,))
        stopped.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)
        dead.kill()
        until(lambda: psutil.Process(dead.pid).status() == psutil.STATUS_ZOMBIE)
        gone.kill()
        gone.wait()
        found = read_back(take_snapshot(job, timeout=SECONDS))
    assert [process.state for process in found.processes] == ["T", "Z", None]
    assert [stack.pid for stack in found.stacks] == [stopped.pid]
    assert found.missing == (3,)
    assert found.untold == ()


def test_without_stacks_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: pytest.fail("py-spy was wanted"))
    found = read_back(take_snapshot(job_of(os.getpid()), stacks=False))
    assert found.processes[0].state == "R"
    assert found.stacks == ()


def test_native_frames_of_the_suspect_alone() -> None:
    with all_stuck("gil", "sleep") as (suspect, other):
        found = read_back(
            take_snapshot(job_of(suspect.pid, other.pid), native=[suspect.pid], timeout=SECONDS)
        )
        until(lambda: psutil.Process(suspect.pid).status() == psutil.STATUS_SLEEPING)
    native = [stack for stack in found.stacks if stack.source == "py-spy --native"]
    assert [one.pid for one in native] == [suspect.pid]
    assert len(found.stacks) == 3
    stack = found.stack(suspect.pid)
    assert stack is not None
    assert stack.source == "py-spy"


def test_one_that_ends_while_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stuck("sleep") as process:
        script = tmp_path / "py-spy"
        script.write_text(f"#!/bin/sh\nkill -KILL {process.pid}\nexit 1\n")
        script.chmod(0o700)
        monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: str(script))
        found = read_back(take_snapshot(job_of(process.pid), timeout=SECONDS))
    assert (found.stacks, found.untold) == ((), ())


def test_a_py_spy_that_hangs_takes_no_more_than_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "py-spy"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o700)
    monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: str(script))
    with all_stuck("sleep", "sleep") as both:
        found = read_back(take_snapshot(job_of(*(one.pid for one in both)), timeout=0.5))
    assert found.stacks == ()
    assert {one.source for one in found.untold} == {"py-spy", "worker socket", "faulthandler"}
    assert not [child for child in psutil.Process().children() if child.name() == "sleep"]


def test_another_users_job_is_reported_with_the_remedy() -> None:
    pid = 1 if os.geteuid() else os.getpid()
    job = job_of(pid)
    found = read_back(as_nobody(lambda: take_snapshot(job, timeout=SECONDS)))
    assert found.processes[0].state is not None
    assert found.processes[0].syscall is None
    assert found.stacks == ()
    first = found.untold[0]
    assert (first.pid, first.source) == (pid, "py-spy")
    assert first.reason.startswith("it belongs to root, and you are ")
    assert first.remedy == "run `mgpu-doctor` as root"


def test_a_job_that_moves_is_never_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    run = bounded_subprocess.run_bounded
    monkeypatch.setattr(pyspy_stacks, "READINGS", 20)  # by chance several in a row are torn

    def noting(command: list[str], **options: Any) -> bounded_subprocess.BoundedRun:
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(bounded_subprocess, "run_bounded", noting)
    with stuck("works") as process:
        job = job_of(process.pid)
        snapshots = [read_back(take_snapshot(job, timeout=SECONDS)) for _ in range(20)]
    assert all(len(snapshot.stacks) == 1 for snapshot in snapshots)
    assert all("--nonblocking" in command for command in commands)


def test_what_the_discovery_could_not_see_is_reported_too() -> None:
    told = UnreadSource(None, "environment", "it belongs to root", "run as root")
    found = read_back(take_snapshot(replace(job_of(os.getpid()), unread=(told,)), stacks=False))
    assert [(one.pid, one.source, one.reason) for one in found.untold] == [
        (None, "environment", "it belongs to root")
    ]


def test_what_a_rank_promised_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: None)
    dump = tmp_path / "dump"
    with stuck("faulthandler", str(dump)) as process:
        wait_for_call(process.pid, "futex")
        aids = {process.pid: Aid(dump_file=str(dump), dump_signal=signal.SIGUSR1)}
        found = read_back(take_snapshot(job_of(process.pid), aids=aids, timeout=SECONDS))
    assert place(found, process.pid) == "stuck_here"
    assert [stack.source for stack in found.stacks] == ["faulthandler"]


def test_py_spy_is_looked_for_before_several_threads_ask_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def path(*_: object) -> str:  # before Python 3.12 it raises where two threads ask at once
        asked.append(threading.current_thread().name)
        return "/nowhere"

    pyspy_stacks.find_pyspy.cache_clear()
    with monkeypatch.context() as patched, all_stuck("sleep", "sleep") as two:
        patched.setattr(sysconfig, "get_path", path)
        take_snapshot(job_of(*(one.pid for one in two)), timeout=SECONDS)
    pyspy_stacks.find_pyspy.cache_clear()
    assert asked
    assert set(asked) == {threading.current_thread().name}
