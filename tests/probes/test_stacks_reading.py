"""By which source a process's stacks are read, and what is reported of sources that failed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from mgpu_probes.outside import processes
from mgpu_probes.outside.stacks import pyspy_stacks, stack_reader
from mgpu_probes.outside.stacks.pyspy_stacks import Failure, Kind
from mgpu_probes.outside.stacks.stack_reader import Aid

from tests.support.jobs import until
from tests.support.stuck_processes import stuck, wait_for_call
from tests.support.worker_server import answer, worker_server

TEXT = b'Thread 0x01 (most recent call first):\n  File "train.py", line 8 in <module>\n'


def soon() -> float:
    return time.monotonic() + 20.0


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kind], None]:
    """Makes py-spy fail in this way."""

    def close(kind: Kind) -> None:
        monkeypatch.setattr(pyspy_stacks, "read_stack", lambda *_: Failure(kind))

    return close


@pytest.fixture
def socket_path(tmp_path: Path) -> str:
    (tmp_path / "private").mkdir(mode=0o700)
    return str(tmp_path / "private" / "s")


def test_py_spy_is_enough() -> None:
    with stuck("sleep") as process:
        found = stack_reader.read_stacks(process.pid, soon())
    assert [stack["source"] for stack in found.stacks] == ["py-spy"]
    assert found.unread == ()


def test_native_frames_come_beside_the_others() -> None:
    with stuck("sleep") as process:
        found = stack_reader.read_stacks(process.pid, soon(), native=True)
        assert [stack["source"] for stack in found.stacks] == ["py-spy", "py-spy --native"]
        process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        found = stack_reader.read_stacks(process.pid, soon(), native=True)
    assert [stack["source"] for stack in found.stacks] == ["py-spy"]
    assert [failure.source for failure in found.unread] == ["py-spy --native"]


def test_then_the_socket_then_the_signal(
    closed: Callable[[Kind], None], socket_path: str, tmp_path: Path
) -> None:
    closed(Kind.DENIED)
    dump = tmp_path / "dump"
    with stuck("faulthandler", str(dump)) as process:
        wait_for_call(process.pid, "futex")
        started = processes.find_start_ticks(process.pid)
        aid = Aid(socket_path, str(dump), signal.SIGUSR1)
        with worker_server(socket_path, answer(TEXT)):
            found = stack_reader.read_stacks(process.pid, soon(), aid=aid, started=started)
            assert [stack["source"] for stack in found.stacks] == ["worker socket"]
            assert [failure.source for failure in found.unread] == ["py-spy"]
            assert dump.read_text() == ""  # no signal was sent
        found = stack_reader.read_stacks(process.pid, soon(), aid=aid, started=started)
    assert [stack["source"] for stack in found.stacks] == ["faulthandler"]
    assert [failure.source for failure in found.unread] == ["py-spy", "worker socket"]
    assert found.stacks[0]["threads"][0]["frames"][0][0] == "stuck_here"


def test_a_socket_that_was_silent_is_asked_once(
    closed: Callable[[Kind], None], socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(Kind.DENIED)
    monkeypatch.setattr(stack_reader, "_SHARE", 0.2)
    with worker_server(socket_path, answer(b""), drips=True) as requests:
        for _ in range(3):
            found = stack_reader.read_stacks(os.getpid(), soon(), aid=Aid(socket_path))
            assert found.stacks == ()
        until(lambda: len(requests) > 0)
    assert len(requests) == 1
    assert "holds Python's lock" in found.unread[1].reason


def test_where_every_way_is_closed_each_is_reported_with_a_remedy(
    closed: Callable[[Kind], None],
) -> None:
    for kind in (Kind.DENIED, Kind.ABSENT, Kind.LATE, Kind.TORN):
        closed(kind)
        found = stack_reader.read_stacks(os.getpid(), soon())
        assert found.stacks == ()
        assert [failure.source for failure in found.unread] == [
            "py-spy",
            "worker socket",
            "faulthandler",
        ]
        assert all(
            failure.reason and failure.remedy and failure.pid == os.getpid()
            for failure in found.unread
        )


def test_what_is_gone_or_no_python_is_not_asked_otherwise(closed: Callable[[Kind], None]) -> None:
    closed(Kind.GONE)
    assert stack_reader.read_stacks(os.getpid(), soon()) == stack_reader.Reading()
    closed(Kind.FOREIGN)
    found = stack_reader.read_stacks(os.getpid(), soon())
    assert [failure.source for failure in found.unread] == ["py-spy"]


def test_without_time_nothing_is_asked(closed: Callable[[Kind], None], socket_path: str) -> None:
    closed(Kind.LATE)
    with worker_server(socket_path, answer(TEXT)) as requests:
        found = stack_reader.read_stacks(os.getpid(), time.monotonic(), aid=Aid(socket_path))
    assert requests == []
    assert "no time left" in found.unread[1].reason
