"""Which thread of the kernel a Python thread is, and whether it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.outside.stacks import stack_threads
from mgpu_probes.outside.stacks.pyspy_stacks import parse_dump
from mgpu_probes.outside.stacks.stack_threads import read_thread_id, settle_threads

from tests.support.launching import eventually

Json = dict[str, Any]


def thread_as_pyspy_reports(main: bool, id: int | None) -> Json:
    """As py-spy would, wrong about its activity."""
    return stack_threads.make_thread([], main=main, id=id, active=True)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 70 with the threads 70 and 71, which are 1 and 2 in its container; 71 runs."""
    for id, inner, state in ((70, 1, "S"), (71, 2, "R")):
        folder = tmp_path / "70" / "task" / str(id)
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"Name:\ta\nNSpid:\t{id}\t5\t{inner}\n")
        rest = " ".join(str(n) for n in range(4, 53))
        (folder / "stat").write_text(f"{id} (a) {state} {rest}")
    return tmp_path


def test_ids_of_a_container_become_ours(proc: Path) -> None:
    found = settle_threads(
        [
            thread_as_pyspy_reports(True, 1),
            thread_as_pyspy_reports(False, 2),
            thread_as_pyspy_reports(False, 3),
        ],
        70,
        proc,
    )
    assert [one["id"] for one in found] == [70, 71, None]
    assert [one["active"] for one in found] == [False, True, None]


def test_an_unknown_id_is_that_of_the_main_thread_or_unknown(proc: Path) -> None:
    found = settle_threads(
        [thread_as_pyspy_reports(True, None), thread_as_pyspy_reports(False, None)], 70, proc
    )
    assert [(one["id"], one["active"]) for one in found] == [(70, False), (None, None)]


def test_what_is_right_stays_as_it_is_reported() -> None:
    me, pid = threading.get_native_id(), os.getpid()
    threads = [thread_as_pyspy_reports(True, me), thread_as_pyspy_reports(True, 1 << 30)]
    right, stale = settle_threads(threads, pid)
    assert right == threads[0]
    assert (stale["id"], stale["active"]) == (pid, True)  # this thread runs


def test_the_id_of_a_thread_of_an_old_python_is_read_from_its_memory() -> None:
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait()

    waiting = threading.Thread(target=wait)
    waiting.start()
    ready.wait()
    pid = os.getpid()
    stat = Path(f"/proc/{pid}/task/{waiting.native_id}/stat")
    try:
        eventually("it waits", lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
        assert waiting.ident is not None
        assert read_thread_id(pid, waiting.ident) == waiting.native_id
        assert read_thread_id(pid, threading.get_ident()) == threading.get_native_id()
        listed = [
            {"thread_name": "MainThread", "thread_id": threading.get_ident(), "active": True},
            {"thread_name": "b", "thread_id": waiting.ident, "active": True},
            {"thread_name": "c", "thread_id": 4096, "active": True},
        ]
        found = settle_threads(parse_dump(json.dumps(listed).encode(), pid), pid)
    finally:
        done.set()
        waiting.join()
    ids = [threading.get_native_id(), waiting.native_id, None]
    assert [one["id"] for one in found] == ids
    assert [one["active"] for one in found] == [True, False, None]


@pytest.mark.parametrize("pthread", [0, 8, 1 << 61, 1 << 70])
def test_no_address_of_a_thread_is_no_id(pthread: int) -> None:
    assert read_thread_id(os.getpid(), pthread) is None


def test_a_process_that_ended_meanwhile() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait()
    found = settle_threads(
        [thread_as_pyspy_reports(True, process.pid), thread_as_pyspy_reports(False, 5)], process.pid
    )
    assert [(one["id"], one["active"]) for one in found] == [(process.pid, None), (None, None)]
